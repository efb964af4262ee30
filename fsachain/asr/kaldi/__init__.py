"""Files that Kaldi writes, read with bounds, and files that Kaldi reads.

archive         tables: ark, scp, one value at an address
values          matrices, vectors, alignments, posteriors; matrices for Kaldi's decoders
model           topology, transition model (0.trans_mdl, the head of final.mdl), decision tree; HCLG over pdfs
examples        chain examples (cegs), and the objective that a log of Kaldi ends with
lattice         lattices, as graphs over pdfs or as phones with times

`fsachain.stream` reads the bytes of a file, `fsachain.openfst` FSTs, words.txt and phones.txt.
"""

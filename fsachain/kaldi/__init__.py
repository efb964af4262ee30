"""Files that Kaldi writes, read with bounds, and files that Kaldi reads.

stream          the bytes of a file: basic types, binary and text
archive         tables: ark, scp, one value at an address
values          matrices, vectors, alignments, posteriors
fst             FSTs and archives of FSTs
tree            decision tree and context
transitions     topology and transition model (0.trans_mdl, the head of final.mdl)
examples        chain examples (cegs)
symbols         words.txt and phones.txt
decoding        HCLG over pdfs
training_log    the objective that a log of Kaldi ends with
writing         matrices for Kaldi's decoders
"""

"""From network outputs to words, word error rates and alignments.

decoder    beam search over a decoding graph: `decode`, `Decoder`
transcribe words with times and confidences: `Transcriber`; long recordings cut at pauses: `PauseCutter`
align      word and phone times of a known transcript: `align`; of recordings of any length: `LongAligner`
times      boundaries finer than a frame, and how far times are from a reference: `BoundaryModel`, `boundary_errors`
forced     tokens of tensors: `forced_align`, `merge_tokens`, `spans`
ctm        CTM files, and Praat's TextGrids written: `write_textgrid`
textgrid   Praat's TextGrids read: `read_textgrid`
compare    how far the times of two alignments are apart: `compare_times`
wer        word error rate, per-speaker table, Kaldi text files: `score`
tune       LM weight and word insertion penalty on a development set: `tune`
rescore    a second language model after the search: `Rescorer`
keyword    keyword spotting by two graphs: `keyword_scores`
"""

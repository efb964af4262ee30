"""From network outputs to words, word error rates and alignments.

decoder    beam search over a decoding graph: `decode`, `Decoder`
tune       LM weight and word insertion penalty on a development set: `tune`
wer        word error rate, per-speaker table, Kaldi text files: `score`
align      word and phone times of a known transcript, CTM files: `align`
transcribe words with times and confidences: `Transcriber`; confidence, pauses are its parts
long_alignment  the same as align for recordings of any length, in bounded memory: `LongAligner`
"""

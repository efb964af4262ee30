"""The application on top of the library: from recordings and transcripts to a word error rate, alignments and reports.

It uses the losses and graphs of `fsachain` by their public names; nothing in the library imports it. From the bottom up:

kaldi       files that Kaldi writes
data, nn    recordings, features and batches; networks
train       the training loop, checkpoints and schedules
decode      search, rescoring, scoring and alignment
plot        pictures
pipeline    options chosen for the data
report      the HTML page of an experiment
cli         the command `fsachain`
"""

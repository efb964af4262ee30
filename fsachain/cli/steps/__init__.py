"""The steps of an experiment as functions from files and configurations to files.

lang        lexicon -> folder with lexicon.json and tree.npz
graphs      transcripts -> phone language model, denominator, numerators, word grammar
training    data directories and graphs -> model folder
decoding    model folder and data directory -> network outputs -> words, word error rate, alignments
transcribe  model file and recordings -> words with times and confidences
align_long  model file, a recording of any length and its text -> the time of each word
export      model file -> ONNX file
inspect     any file made here -> a few lines that describe it
"""

"""The steps of an experiment as functions from files and configurations to files.

lang        lexicon -> folder with lexicon.json and tree.json
graphs      transcripts -> phone language model, denominator, numerators, word grammar
training    data directories and graphs -> model folder
decoding    model folder and data directory -> network outputs -> words, word error rate, alignments
inspect     any file made here -> a few lines that describe it
"""

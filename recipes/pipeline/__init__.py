"""What all recipes share: stages from a corpus to a word error rate, and writers of data directories.

main        command line of a recipe: stages, seed, folders, wall time of each stage
corpus      a prepared corpus on disk: data directories and a lexicon
"""

"""What all recipes share.

main        a prepared corpus, then `fsachain run`: `python -m recipes RECIPE`
corpus      a prepared corpus on disk: data directories and a lexicon
results     what several runs left, in one table
"""

"""Recipes: from recordings and transcripts to a word error rate; not part of the installed package."""

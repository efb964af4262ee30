"""Graphs from transcripts: lexicon, topology, context, phone LM, numerator, denominator, decoding graph."""

"""From network outputs to words, word error rates and alignments."""

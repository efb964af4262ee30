"""ctc, grid, mbr, paths, sums."""

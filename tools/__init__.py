"""Programs for those who work on fsachain: checks against other programs, benchmarks."""

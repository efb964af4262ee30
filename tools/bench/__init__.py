"""The speed of the CPU backend, each figure next to a yardstick timed in the same run; see `tools.bench.__main__`."""

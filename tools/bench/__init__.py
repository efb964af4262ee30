"""The speed of the CPU backend, each figure next to yardsticks timed in the same rounds; see `tools.bench.report`."""

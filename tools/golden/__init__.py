"""Agreement with values that other programs computed; `python -m tools.golden.table` prints all of it."""

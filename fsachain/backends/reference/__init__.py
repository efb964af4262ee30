"""The oracle: every recursion in numpy float64, one sequence at a time."""

"""The recursions on the CPU, in numba."""

"""The CPU backend: numba kernels. Begin with `backend`, then `sum_product`, `arcs` and `numbers`."""

"""The CUDA backend: drivers of the texts in kernels/."""

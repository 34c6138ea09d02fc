"""Kernel profiles: running, counting, checking and compiling Triton kernels with or without a GPU."""

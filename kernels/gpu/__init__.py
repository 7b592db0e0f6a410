"""Triton kernels and their launchers, one operation per file. Imported only when a tensor is on a GPU."""

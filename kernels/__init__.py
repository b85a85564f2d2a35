"""Triton and CPU kernels, each beside its PyTorch reference."""

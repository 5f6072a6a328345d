"""Fused kernels, each beside the explicit computation that is its oracle."""

"""Fused kernels; the explicit computations that they are tested against are in attention/
and positions/.
"""

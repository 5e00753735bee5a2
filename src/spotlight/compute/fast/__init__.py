"""Faster computation of the same forward and backward: compiled blocks, attention, CUDA graphs, fp8 previews."""

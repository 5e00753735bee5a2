"""Spotlight: reinforcement-learning post-training of Diffusion Transformers on reserved and spot GPUs."""

from spotlight.core.processor import set_strict_rounding

__version__ = "0.1.0"

# Here, because every process imports this before it computes anything.
set_strict_rounding()

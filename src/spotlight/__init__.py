"""Spotlight: reinforcement-learning post-training of Diffusion Transformers on reserved and spot GPUs."""

from spotlight.core.processor import round_alike

__version__ = "0.1.0"

# Here, because every process imports this before it computes anything.
round_alike()

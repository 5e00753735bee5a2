"""Trained weights in the formats of other programs."""

"""Pretraining of the shipped tiny families on pictures rendered from a seed."""

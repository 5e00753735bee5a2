"""Pretraining of the shipped tiny families on images rendered from a seed."""

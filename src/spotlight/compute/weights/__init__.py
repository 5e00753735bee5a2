"""Weights as named, digested, verified things."""

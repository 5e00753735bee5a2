"""Crews of a node: which workers share a sample, and how crews form and end."""

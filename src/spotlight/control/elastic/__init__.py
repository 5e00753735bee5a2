"""Crews of a node: which workers share a sample, and how they come to do so and cease to."""

"""Measures a profile: every operation of a run, timed on this machine with the product's own code."""

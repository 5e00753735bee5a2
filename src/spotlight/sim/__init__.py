"""Simulated machines under virtual time, for the real control plane: fault storms and hand-written stories."""

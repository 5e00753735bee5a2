"""Exploration: which seeds are worth an exact rollout, and how well previews told so."""

"""Exploration: seed selection by previews, the bandit planner, and the fidelity of previews."""

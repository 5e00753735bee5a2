"""Overlap of rollouts and training: parts of updates, timestep batches, assisting trainers, stale samples."""

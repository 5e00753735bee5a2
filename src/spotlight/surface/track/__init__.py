"""Trackers: readers of a run's journal that write to TensorBoard, Weights & Biases or Trackio. docs/trackers.md."""

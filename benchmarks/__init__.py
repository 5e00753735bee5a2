"""Benchmarks: one folder each, run as `python -m benchmarks.NAME` from the root of the repository; see README.md."""

"""Decisions as pure functions: no torch, no ray, no I/O except the journal; time is an argument."""

"""Decisions as pure functions: no torch, no ray, no I/O but the journal, time as an argument."""

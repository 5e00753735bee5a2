"""Processes of a node: its agent, its workers and its reward processes."""

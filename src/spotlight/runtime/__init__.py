"""Processes, pools and clocks."""

"""Paced runs: real processes, sockets and kills; computation is replaced by waiting for a profile's durations."""

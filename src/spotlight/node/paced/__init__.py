"""Paced runs: real processes, sockets and kills, in which computing is waiting as long as a profile says."""

"""Crews: stateless process groups by epoch, and sequence parallelism over the diffusers blocks."""

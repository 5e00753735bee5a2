"""Weights: digests, files, the node's store, sets on a device, and checkpoint shards."""

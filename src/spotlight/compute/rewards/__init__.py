"""Rewards of images: protocol, registry and the built-in rewards."""

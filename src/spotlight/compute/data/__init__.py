"""Prompt sets, and the synthetic images that the tiny families are pretrained on."""

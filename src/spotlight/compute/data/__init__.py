"""Prompt sets and the synthetic pictures the tiny families are pretrained on."""

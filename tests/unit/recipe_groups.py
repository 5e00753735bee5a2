"""Shipped recipes of real models, by the family of their model."""

HUB_RECIPES = {
    "qwen-image-ocr-512": "qwen-image",
    "qwen-image-geneval-1024": "qwen-image",
    "sd35-pickscore": "sd3",
    "flux-clip": "flux",
}
"""Their models are on the hub."""
REAL_RECIPES = {**HUB_RECIPES, "peer-sd3-tiny": "sd3"}

"""Shipped recipes of real models, by the family of their model."""

HUB_RECIPES = {
    "qwen-image-ocr-512": "qwen-image",
    "qwen-image-geneval-1024": "qwen-image",
    "sd35-pickscore": "sd3",
    "flux-clip": "flux",
}
"""Their models are on the hub."""
FLEET_RECIPES = tuple(f"{family}-nft-4-{spot}" for family in ("scenes", "words-large") for spot in (0, 4, 8, 16))
"""Tasks with the plan of previews for a fleet of 4 reserved and some spot slots."""
REAL_RECIPES = {**HUB_RECIPES, "peer-sd3-tiny": "sd3"}

"""Package data by name: tiny weights, OCR models, recipes, word lists."""

from pathlib import Path

ROOT = Path(__file__).parent


def asset(name: str) -> Path:
    """Path of one shipped file."""
    return ROOT / name

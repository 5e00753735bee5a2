"""Package data: tiny weights, the reading models, recipes, word lists. Found by name, never by path."""

from pathlib import Path

ROOT = Path(__file__).parent


def asset(name: str) -> Path:
    """Path of one shipped file."""
    return ROOT / name

"""The variants of the sweep: a setup, and its settings beside those of the headline's task (`variants.csv`).

A name gives seeds x steps of the previews, then prompts, updates, timesteps and other differences. An empty field of
the table leaves the task's own setting.
"""

import csv
from pathlib import Path
from typing import NamedTuple

OWN = "own"
"""The variant that the others are compared with."""


class Variant(NamedTuple):
    setup: str
    settings: tuple[str, ...]


def _variants() -> dict[str, dict[str, Variant]]:
    found: dict[str, dict[str, Variant]] = {}
    with Path(__file__).with_name("variants.csv").open(newline="") as table:
        for row in csv.DictReader(table):
            task, name, setup = (row.pop(column) for column in ("task", "variant", "setup"))
            settings = tuple(f"{key}={value}" for key, value in row.items() if value)
            found.setdefault(task, {})[name] = Variant(setup, settings)
    return found


VARIANTS = _variants()
"""Variants by task and name."""

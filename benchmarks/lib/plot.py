"""Common parts of pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure


def band(axis: Any, x: Sequence[float], curves: Sequence[Sequence[float | None]], colour: str, **line: Any) -> None:
    """A line at the mean of the curves, and a band from the lowest to the highest."""
    values = np.array(curves, dtype=float)
    axis.plot(x, values.mean(0), color=colour, linewidth=2, **line)
    axis.fill_between(x, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)


def save(picture: Figure, path: Path, **layout: Any) -> None:
    picture.tight_layout(**layout)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=130)

"""Crews over time: slots that share samples, by degree, beside the slots present; regroups as marks and as a table."""

from statistics import median

import msgspec

from spotlight.surface.crew_rows import Regrouped
from spotlight.surface.projections import RunView

BINS = 223
"""Parts of the run's time in the drawing."""
MOST_ROWS = 24
"""Largest number of regroups in the table; longer runs show the last."""


class CrewDegree(msgspec.Struct, frozen=True, kw_only=True):
    """Crews of one size."""

    degree: int
    formed: int
    slot_hours: float
    share: float
    """Of the time that slots were held."""
    slots: list[float]
    """Mean number of slots in them, by part of the run's time."""


class CrewPanel(msgspec.Struct, frozen=True, kw_only=True):
    regroups: int
    formed: int
    median_s: float
    longest_s: float
    degrees: list[CrewDegree]
    present: list[float]
    """Mean number of slots with a worker, by part of the run's time."""
    newest: list[Regrouped]


def crew_panel(view: RunView) -> CrewPanel | None:
    """None if no crew was ever formed."""
    crews = view.crews
    if not crews.regroups:
        return None
    end = max(view.at, 1e-9)
    (held,), (means,) = slots_present(view, end, 1), crews.slots_over(end, 1)
    parts = crews.slots_over(end, BINS)
    took = sorted(one.seconds for one in crews.regroups)
    degrees = [
        CrewDegree(
            degree=degree,
            formed=formed,
            slot_hours=means.get(degree, 0.0) * end / 3600,
            share=means.get(degree, 0.0) / held if held else 0.0,
            slots=[part.get(degree, 0.0) for part in parts],
        )
        for degree, formed in sorted(crews.formed.items())
    ]
    return CrewPanel(
        regroups=len(crews.regroups),
        formed=sum(crews.formed.values()),
        median_s=median(took),
        longest_s=took[-1],
        degrees=degrees,
        present=slots_present(view, end, BINS),
        newest=crews.regroups[-MOST_ROWS:],
    )


def slots_present(view: RunView, end: float, bins: int) -> list[float]:
    """Mean number of slots with a worker, in equal parts of the time until `end`."""
    means, width = [0.0] * bins, end / bins
    for slot in view.timeline.rows.values():
        for life in slot.lives:
            stop = end if life.end is None else life.end
            for number in range(int(life.start / width), min(bins, int(stop / width) + 1)):
                inside = min(stop, (number + 1) * width) - max(life.start, number * width)
                means[number] += max(0.0, inside) / width
    return means

"""From records of a journal to calls of a tracker.

Figures are those of status and report, because the same view is folded. A step is the number of finished iterations, so
that a score and the training that led to it share one. Names and captions are safe: whatever a prompt holds, a tracker
receives printable text.
"""

import math
from collections.abc import Mapping
from pathlib import Path

from spotlight.control.market.prices import PriceTable
from spotlight.core.events import Evaluated, IterationDone, Record, RunStopped
from spotlight.core.work import SlotClass
from spotlight.surface.formats import score
from spotlight.surface.media import PictureFolder
from spotlight.surface.plain_text import plain
from spotlight.surface.projections import RunView
from spotlight.surface.timeline import TimelineState
from spotlight.surface.track.tracker import TrackedPicture, Tracker, safe_name

PICTURES = 16
"""Held-out pictures per evaluation: the first prompts, the same every time."""
CAPTION = 300


class TrackerFeed:
    """Folds records, and calls the tracker for those that it shows."""

    def __init__(self, folder: Path, prices: PriceTable, prompts: Mapping[str, str]) -> None:
        self.view = RunView()
        self._media = PictureFolder(folder)
        self._prices = prices
        self._prompts = prompts

    def apply(self, record: Record) -> bool:
        """Fold in a record; whether the tracker has something to show of it."""
        self.view.apply(record)
        return isinstance(record.event, IterationDone | Evaluated | RunStopped)

    def show(self, record: Record, tracker: Tracker) -> None:
        """Call the tracker for the newest record."""
        match record.event:
            case IterationDone(iteration=iteration):
                tracker.scalars(iteration + 1, _finite(self._figures(iteration)))
            case Evaluated(iteration=iteration):
                tracker.scalars(iteration, _finite(self._scores()))
                pictures = self._pictures(iteration)
                if pictures:
                    tracker.pictures(iteration, pictures)
            case RunStopped():
                tracker.bill(len(self.view.iterations), self.view.bill(self._prices))
            case _:
                pass

    def _figures(self, iteration: int) -> dict[str, float]:
        """Figures of a finished iteration."""
        view = self.view
        done, bill, line = view.iterations[-1], view.bill(self._prices), view.timeline
        spot = [line.state(row) for row in line.ordered() if row.slot_class is SlotClass.SPOT]
        found = {
            "reward/training_groups": done.reward,
            "time/rollout_s": done.rollout_s,
            "time/train_s": done.train_s,
            "time/hours": done.at / 3600,
            "cost/dollars": bill.dollars,
            "market/preemptions": len(line.preemptions),
            "market/spot_slots": sum(state is not TimelineState.AWAY for state in spot),
            "samples/redone_share": view.waste,
            **{f"iteration/{safe_name(name)}": value for name, value in done.figures.items()},
        }
        alternatives = {"cost/all_on_demand": bill.all_reserved, "cost/reserved_only": bill.reserved_only}
        found |= {name: dollars for name, dollars in alternatives.items() if dollars is not None}
        steps = view.training.steps
        if steps:
            found |= {f"training/{safe_name(name)}": value for name, value in steps[max(steps)].items()}
        explored = view.explorations.get(iteration)
        if explored is not None:
            found |= {"explore/previews": explored.done, "explore/planned": explored.planned}
            found |= {f"explore/{safe_name(name)}": value for name, value in explored.figures.items()}
        return found

    def _scores(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, interval in self.view.evaluations[-1].scores.items():
            key = f"held_out/{safe_name(name)}"
            found |= {key: interval.value, f"{key}_low": interval.low, f"{key}_high": interval.high}
        return found

    def _pictures(self, iteration: int) -> list[TrackedPicture]:
        shown: dict[str, TrackedPicture] = {}
        for picture in sorted(self.view.gallery, key=lambda one: (one.group, one.seed)):
            path = self._media.find(picture.path) if picture.iteration == iteration else None
            if path is not None and path.suffix == ".png" and self._media.is_embeddable(picture.path):
                key = f"{picture.group:03d}_{picture.seed}"
                text = plain(self._prompts.get(picture.prompt, picture.prompt), CAPTION)
                # After a restore an iteration is evaluated again: the later picture counts.
                shown[key] = TrackedPicture(key=key, path=path, caption=f"{text} ({score(picture.reward)})")
        return list(shown.values())[:PICTURES]


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}

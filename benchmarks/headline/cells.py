"""One simulated run of the headline as a curve that can be priced by any row of a table."""

from pathlib import Path

import msgspec

from benchmarks.lib import merge
from spotlight.control.market.bill import HOUR_S
from spotlight.control.market.cost import CostMeter
from spotlight.control.market.prices import Price
from spotlight.core import journal
from spotlight.core.events import ExplorationClosed, IterationDone, NodeLost
from spotlight.core.work import SlotClass
from spotlight.folder import RunFolder
from spotlight.surface.compare import Curve, CurvePoint
from spotlight.surface.projections import RunView

SCORE = "reward"


class CellPoint(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation: the hours to its weights, and their score."""

    iteration: int
    hours: float
    reserved_hours: float
    """Slot-hours since the start."""
    spot_hours: float
    score: float


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One setup of one task with one seed, on the machines of one profile and trace."""

    family: str
    setup: str
    seed: int
    profile: str
    profile_digest: str
    trace: str
    trace_digest: str
    iterations: int
    losses: int
    """Spot machines that were taken during the run."""
    previews: int
    points: tuple[CellPoint, ...]
    commit: str
    date: str
    hardware: str
    seconds: float
    """Seconds of the computation."""
    processor_s: float = 0.0
    """Of these, on a processor; 0 in old cells."""
    numerics: str = "real"
    settings: str = ""
    """Digest of the resolved recipe; empty in old cells."""

    @property
    def name(self) -> str:
        return f"{self.family}-{self.profile}-{self.trace}-{self.setup}-seed{self.seed}"

    def curve(self, price: Price) -> Curve:
        """The curve, priced as if all machines were of this row."""
        spot = price.spot_per_hour
        assert spot is not None or not any(point.spot_hours for point in self.points)
        spot_rate = price.per_gpu_hour(SlotClass.SPOT) if spot is not None else 0.0
        rate = price.per_gpu_hour(SlotClass.RESERVED)
        points = tuple(
            CurvePoint(
                iteration=point.iteration,
                hours=point.hours,
                dollars=point.reserved_hours * rate + point.spot_hours * spot_rate,
                score=point.score,
            )
            for point in self.points
        )
        return Curve(setup=self.setup, seed=self.seed, score=SCORE, points=points)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a run from its journal."""

    points: tuple[CellPoint, ...]
    iterations: int
    losses: int
    previews: int


def read_run(folder: RunFolder) -> Summary:
    """Read the journal once; a point has the cost at the end of its weights' iteration, as in `surface/compare`."""
    view, meter = RunView(), CostMeter()
    began: float | None = None
    made = {0: (0.0, 0.0, 0.0)}
    losses = previews = 0
    for record in journal.read(folder.journal):
        view.apply(record)
        meter.apply(record)
        began = record.at if began is None else began
        match record.event:
            case IterationDone():
                made = {count: before for count, before in made.items() if count <= record.event.iteration}
                spent = dict.fromkeys(SlotClass, 0.0)
                for tally in meter.tallies():
                    spent[tally.slot_class] += tally.total / HOUR_S
                hours = (record.at - began) / HOUR_S
                made[record.event.iteration + 1] = (hours, spent[SlotClass.RESERVED], spent[SlotClass.SPOT])
            case NodeLost():
                losses += 1
            case ExplorationClosed():
                previews += record.event.finished
    points = tuple(
        CellPoint(
            iteration=iteration,
            hours=made[iteration][0],
            reserved_hours=made[iteration][1],
            spot_hours=made[iteration][2],
            score=value.value,
        )
        for iteration, value in view.curve(SCORE)
        if iteration in made
    )
    return Summary(points=points, iterations=max(made), losses=losses, previews=previews)


def read(path: Path) -> Cell:
    return merge.read(path, Cell, "headline")

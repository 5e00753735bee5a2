"""`status --json`: a run in a stable, typed form, without anything that grows with the length of the timeline.

Its numbers are those of the panels (`surface/panels`), which page and report show.
"""

import msgspec

from spotlight.control.market.bubbles import bubbles_of
from spotlight.control.market.occupancy import Tenure
from spotlight.control.market.prices import PriceTable
from spotlight.core.node_spec import NodeStanding
from spotlight.core.work import SlotClass
from spotlight.surface.liveness import RunStanding, State, standing_of
from spotlight.surface.panels.cost_panel import CostPanel, cost_panel
from spotlight.surface.panels.ledger_panel import GapStatus, SampleStatus, gap_status, sample_status
from spotlight.surface.panels.timeline_panel import LossStatus, loss_status
from spotlight.surface.projections import (
    EvaluationView,
    ExplorationView,
    IterationView,
    ProblemView,
    RunFacts,
    RunView,
)
from spotlight.surface.timeline import SlotRow, Timeline, row_name


class SlotStatus(msgspec.Struct, frozen=True, kw_only=True):
    slot: str
    slot_class: SlotClass
    state: str
    zone: str
    kind: str
    """Kind of its device."""
    age_s: float | None
    """Seconds since its machine started; None while no machine fills the slot."""


class CrewStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Crews of slots that share samples, each with the leader first, and the number of crews formed so far."""

    now: list[list[str]]
    formed: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    state: State
    reason: str | None
    pid: int | None
    pid_alive: bool
    last_progress_s: float | None
    waiting_for: str | None
    machines: tuple[NodeStanding, ...]
    run: RunFacts
    seq: int
    seconds: float
    headline: str | None
    iterations: list[IterationView]
    evaluations: list[EvaluationView]
    explorations: list[ExplorationView]
    slots: list[SlotStatus]
    losses: LossStatus
    crews: CrewStatus
    samples: SampleStatus
    gaps: GapStatus
    problems: list[ProblemView]
    cost: CostPanel
    idle_share: dict[Tenure, float]
    """Idle share of the time that slots of a class were held."""


def status(view: RunView, prices: PriceTable, standing: RunStanding | None = None) -> Status:
    """The status; without `standing`, as if no controller worked on the run."""
    line = view.timeline
    return Status(
        **msgspec.structs.asdict(standing or standing_of(view)),
        run=view.facts,
        seq=view.seq,
        seconds=view.at,
        headline=view.headline(),
        iterations=view.iterations,
        evaluations=view.evaluations,
        explorations=[view.explorations[key] for key in sorted(view.explorations)],
        slots=[_slot_status(row, line) for row in line.ordered()],
        losses=loss_status(view),
        crews=CrewStatus(
            now=[[row_name(member) for member in crew] for _, crews in sorted(line.crews.items()) for crew in crews],
            formed=line.crews_formed,
        ),
        samples=sample_status(view),
        gaps=gap_status(view),
        problems=view.problems,
        cost=cost_panel(view, prices),
        idle_share=bubbles_of(view.meter, newest=0).idle_shares(),
    )


def _slot_status(row: SlotRow, line: Timeline) -> SlotStatus:
    since = row.machine_since if row.live is not None else None
    return SlotStatus(
        slot=row.name,
        slot_class=row.slot_class,
        state=line.state(row).value,
        zone=row.zone,
        kind=row.kind,
        age_s=None if since is None else line.at - since,
    )

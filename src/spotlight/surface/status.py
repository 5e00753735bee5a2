"""`status --json`: a run in a stable, typed form, without anything that grows with the length of the timeline."""

import msgspec

from spotlight.control.market.bubbles import bubbles_of
from spotlight.control.market.occupancy import Tenure
from spotlight.control.market.prices import PriceTable
from spotlight.core.node_spec import NodeStanding
from spotlight.core.work import Activity, SlotClass
from spotlight.surface.liveness import RunStanding, State, standing_of
from spotlight.surface.projections import (
    EvaluationView,
    ExplorationView,
    IterationView,
    ProblemView,
    RunFacts,
    RunView,
)
from spotlight.surface.timeline import row_name


class SlotStatus(msgspec.Struct, frozen=True, kw_only=True):
    slot: str
    slot_class: SlotClass
    state: str


class LossStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of lost machines and workers."""

    preemptions: int
    noticed: int
    unnoticed: int
    spot_workers: int
    reserved_workers: int
    restarts: int


class CrewStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Crews of slots that share samples, each with the leader first, and the number of crews formed so far."""

    now: list[list[str]]
    formed: int


class SampleStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Every rollout is in exactly one of the counts; waste is a share of denoising steps."""

    rollouts: dict[str, int]
    refused: dict[str, int]
    released: dict[str, int]
    steps_done: int
    steps_redone: dict[str, int]
    waste: float


class CostStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Priced as if every slot were a GPU of the table."""

    priced_as_if: str
    date: str
    digest: str
    dollars: float
    all_reserved: float | None
    reserved_only: float | None
    unpriced_seconds: float
    stand_ins: float
    """Dollars of on-demand nodes that replaced spot nodes; part of the sum."""
    seconds: dict[SlotClass, dict[Activity, float]]
    cents: dict[Activity, int]
    """Cents by activity; they add up to the rounded dollars."""


class GapStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Missing groups, evaluations and samples; see `control/ledger/gaps.py`."""

    whole: bool
    """Whether no group and no evaluation is missing."""
    groups_skipped: int
    evaluations_empty: list[int]
    samples_dropped: int
    samples_unscored: int
    previews_unscored: int
    sentences: list[str]


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
    cost: CostStatus
    idle_share: dict[Tenure, float]
    """Idle share of the time that slots of a class were held."""


def status(view: RunView, prices: PriceTable, standing: RunStanding | None = None) -> Status:
    """The status; without `standing`, as if no controller worked on the run."""
    bill, line = view.bill(prices), view.timeline
    noticed = sum(taken.noticed for taken in line.preemptions)
    return Status(
        **msgspec.structs.asdict(standing or standing_of(view)),
        run=view.facts,
        seq=view.seq,
        seconds=view.at,
        headline=view.headline(),
        iterations=view.iterations,
        evaluations=view.evaluations,
        explorations=[view.explorations[key] for key in sorted(view.explorations)],
        slots=[
            SlotStatus(slot=row.name, slot_class=row.slot_class, state=line.state(row).value) for row in line.ordered()
        ],
        losses=LossStatus(
            preemptions=len(line.preemptions),
            noticed=noticed,
            unnoticed=len(line.preemptions) - noticed,
            spot_workers=sum(taken.workers for taken in line.preemptions),
            reserved_workers=line.failures,
            restarts=len(line.restarts),
        ),
        crews=CrewStatus(
            now=[[row_name(member) for member in crew] for _, crews in sorted(line.crews.items()) for crew in crews],
            formed=line.crews_formed,
        ),
        samples=SampleStatus(
            rollouts=view.samples.rollouts(),
            refused=view.samples.refused,
            released=view.samples.released,
            steps_done=view.samples.steps_done,
            steps_redone=view.samples.redone_by,
            waste=view.waste,
        ),
        gaps=gap_status(view),
        problems=view.problems,
        cost=CostStatus(
            priced_as_if=bill.table,
            date=bill.date,
            digest=bill.digest,
            dollars=bill.dollars,
            all_reserved=bill.all_reserved,
            reserved_only=bill.reserved_only,
            unpriced_seconds=bill.unpriced_seconds,
            stand_ins=bill.stand_in_dollars,
            cents=bill.cents_by_activity(),
            seconds={slot_class: bill.seconds(slot_class) for slot_class in SlotClass},
        ),
        idle_share=bubbles_of(view.meter).idle_shares(),
    )


def gap_status(view: RunView) -> GapStatus:
    gaps = view.gaps
    return GapStatus(
        whole=gaps.whole,
        groups_skipped=sum(gaps.skipped.values()),
        evaluations_empty=gaps.empty_evaluations,
        samples_dropped=len(gaps.dropped),
        samples_unscored=len(gaps.unscored),
        previews_unscored=gaps.unscored_previews,
        sentences=gaps.sentences(),
    )


def as_json(view: RunView, prices: PriceTable, standing: RunStanding | None = None) -> str:
    return msgspec.json.encode(status(view, prices, standing)).decode()

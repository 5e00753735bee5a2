"""What happened: the records of a run's journal, as one tagged union.

Resume, audit, status, report and cost are folds over these. Metadata only: tensors and pictures are files, named here
with their digest. `at` of a record counts seconds since the run first started and goes on across restarts.

Order of a sample's life, which the audit checks:

    Issued -> Leased -> Accepted -> StepCommitted          (trained on)
                 |  `-> Released -> Leased -> ...           (handed back, recalled, lost: another attempt)
                 `-> Refused                                (a late reply of an older attempt)
    Issued -> ... -> Dropped                                (with a reason)
    StepCommitted -> Restored -> StepCommitted              (the gang fell back to a checkpoint)

Previews are not followed one by one: `Previewed` tells a whole batch of them.
"""

from enum import StrEnum
from typing import TypeAlias

import msgspec

from spotlight.core.types import Frontier, NodeId, Version, WorkerId
from spotlight.core.work import Activity, NoticeKind, Request, RequestId, SlotClass, WeightsId

SCHEMA = 1
"""Version of these records and of the messages; a reader of another one refuses."""


class Event(
    msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """Base of all events; `tag` is the class name. No event leads back to itself, so none is garbage to look for."""


# -- the run -----------------------------------------------------------------------------------------------------------


class RunStarted(Event, frozen=True, kw_only=True):
    schema: int
    run_seed: int
    recipe: str
    config_digest: str
    code: str
    """Version of the package."""
    base_digest: str
    wall: float


class RunResumed(Event, frozen=True, kw_only=True):
    attempt: int
    wall: float


class RunStopped(Event, frozen=True, kw_only=True):
    reason: str
    finished: bool = False
    failed: bool = False
    """Whether an error ended it; else it finished, or was asked to stop, or its budget was spent."""


class ProblemNoted(Event, frozen=True, kw_only=True):
    """Something went wrong that the run survives, or is about to stop for; a sentence for people."""

    source: str
    """A node, a worker or a part of the controller."""
    problem: str


# -- samples -----------------------------------------------------------------------------------------------------------


class Issued(Event, frozen=True, kw_only=True):
    """Requests enter the ledger; rollouts of one iteration in one record, evaluations and audits likewise."""

    requests: tuple[Request, ...]
    positions: tuple[int, ...] = ()
    """Of rollouts: place in the prompt order of each group, by group number."""


class Leased(Event, frozen=True, kw_only=True):
    request: RequestId
    attempt: int
    worker: WorkerId
    step: int = 0
    """Where the attempt goes on from: the step of the flight it was given."""


class ReleaseReason(StrEnum):
    HANDED_BACK = "handed_back"
    """Under notice or drain, with its flight."""
    RECALLED = "recalled"
    """A straggler's, moved to a faster worker."""
    LOST = "lost"
    """Its worker died."""
    SILENT = "silent"
    """Its worker was fenced after silence."""
    FAILED = "failed"
    """The attempt raised an error."""
    UNSCORED = "unscored"
    """It was finished, but no reward could score it: another attempt resumes at the newest commit."""
    RESTART = "restart"
    """The controller restarted; flights are volatile."""


class Released(Event, frozen=True, kw_only=True):
    request: RequestId
    attempt: int
    reason: ReleaseReason
    step: int = 0
    """Steps that the next attempt need not redo."""
    redone: int = 0
    """Steps that were done and must be done again."""


class Accepted(Event, frozen=True, kw_only=True):
    request: RequestId
    attempt: int
    worker: WorkerId
    digest: str
    """Of the weights that it was made with."""
    reward: float
    components: dict[str, float] = {}
    scorer: str = ""
    """Version of the scorer."""
    payload: str | None = None
    """File of its tensors, relative to the run's folder."""
    payload_digest: str | None = None
    steps: int = 0
    """Denoising steps that this attempt ran itself."""
    problem: str = ""
    """Why it has no score, where `reward` is NaN."""


class RefusalReason(StrEnum):
    FENCED = "fenced"
    """An older attempt than the current one."""
    DUPLICATE = "duplicate"
    """Already accepted."""
    UNKNOWN = "unknown"
    """Never issued, dropped, or cancelled."""
    WRONG_WEIGHTS = "wrong_weights"
    """Made with other weights than the published ones."""


class Refused(Event, frozen=True, kw_only=True):
    request: RequestId
    attempt: int
    worker: WorkerId
    reason: RefusalReason


class Dropped(Event, frozen=True, kw_only=True):
    request: RequestId
    reason: str


class Reopened(Event, frozen=True, kw_only=True):
    """An accepted sample whose file was lost or damaged is wanted again."""

    request: RequestId
    reason: str


# -- training ----------------------------------------------------------------------------------------------------------


class Compared(Event, frozen=True, kw_only=True):
    """Advantages of one iteration, in the order of its rollout requests."""

    iteration: int
    rewards: tuple[tuple[float, ...], ...]
    """By group; NaN where a sample has no usable reward."""
    advantages: tuple[tuple[float, ...], ...]
    kept: tuple[tuple[bool, ...], ...]
    problems: tuple[str, ...] = ()


class StepCommitted(Event, frozen=True, kw_only=True):
    """One optimizer step: the samples it used, what is trained now, and the weights that came out. Atomic."""

    step: int
    """Counted from 0 over the whole run."""
    iteration: int
    update: int
    requests: tuple[RequestId, ...]
    frontier: Frontier
    digest: str
    """Of theta after the step."""
    figures: dict[str, float] = {}


class Published(Event, frozen=True, kw_only=True):
    weights: WeightsId
    digest: str
    step: int
    """Optimizer steps that these weights contain."""
    size: int = 0


class Checkpointed(Event, frozen=True, kw_only=True):
    step: int
    """Optimizer steps that it contains: resume goes on with this one."""
    path: str


class Restored(Event, frozen=True, kw_only=True):
    """The gang went back to a checkpoint: later steps are undone, their samples are accepted but not trained."""

    step: int
    reason: str


class IterationDone(Event, frozen=True, kw_only=True):
    iteration: int
    rollout_s: float
    train_s: float
    reward: float
    """Mean of the training groups; biased by selection, never a target."""
    figures: dict[str, float] = {}


class Evaluated(Event, frozen=True, kw_only=True):
    iteration: int
    """Iterations trained so far."""
    scores: dict[str, tuple[float, float, float]]
    """Value and 95 % interval by name: reward, exact, ..."""


# -- exploration -------------------------------------------------------------------------------------------------------


class Planned(Event, frozen=True, kw_only=True):
    """What the planner wants previewed for the iteration."""

    iteration: int
    seeds: tuple[int, ...]
    """Previews by candidate."""
    steps: int
    budget_s: float
    predicted_s: float
    reason: str = ""
    given_up: int = 0
    """Of these previews, those that candidates lose which scouts speak against."""

    @property
    def previews(self) -> int:
        """That are drawn where nothing cuts them off."""
        return sum(self.seeds) - self.given_up


class Previewed(Event, frozen=True, kw_only=True):
    """A batch of finished previews, of one prompt group or of many."""

    iteration: int
    steps: int
    version: Version
    groups: tuple[int, ...]
    """By number of the candidate."""
    seeds: tuple[int, ...]
    rewards: tuple[float, ...]


class ExplorationClosed(Event, frozen=True, kw_only=True):
    iteration: int
    finished: int
    discarded: int
    seconds: float
    discarded_steps: int = 0
    """That the discarded ones had done, as far as their workers had told."""


class Selected(Event, frozen=True, kw_only=True):
    """Seeds that are rolled out for the iteration, by group; `fresh` of them, from the end, were never previewed."""

    iteration: int
    seeds: tuple[tuple[int, ...], ...]
    fresh: tuple[int, ...]
    audit: tuple[tuple[int, ...], ...] = ()
    """Unselected seeds that are rolled out too, to measure previews."""
    prompts: tuple[int, ...] = ()
    """By group, which of the iteration's candidates it is; empty: the first group is the first, and so on."""

    def candidate(self, group: int) -> int:
        return self.prompts[group] if self.prompts else group


class Fidelity(Event, frozen=True, kw_only=True):
    """How well previews ranked, measured on exact rewards."""

    iteration: int
    steps: int
    figures: dict[str, float]
    """spearman, captured_variance, payoff, pairs, ..."""


# -- machines ----------------------------------------------------------------------------------------------------------


class NodeJoined(Event, frozen=True, kw_only=True):
    node: NodeId
    slot_class: SlotClass
    slots: int
    zone: str = ""
    price: str = ""
    """Row of the price table that it is billed by."""


class NodeLost(Event, frozen=True, kw_only=True):
    node: NodeId
    cause: str


class WorkerJoined(Event, frozen=True, kw_only=True):
    worker: WorkerId
    node: NodeId
    slot_class: SlotClass
    rows: int
    pid: int = 0
    trains: bool | None = None
    """Whether it takes part in training; journals from before this was told have None."""


class Holding(Event, frozen=True, kw_only=True):
    """A worker applied weights and says which bytes it holds."""

    worker: WorkerId
    weights: WeightsId
    digest: str


class NoticeGiven(Event, frozen=True, kw_only=True):
    worker: WorkerId
    kind: NoticeKind
    seconds: float
    """Until the deadline."""


class WorkerLost(Event, frozen=True, kw_only=True):
    worker: WorkerId
    cause: str
    noticed: bool = False


class Crewing(Event, frozen=True, kw_only=True):
    """From now on these workers of a node share their samples, leader first; whoever is not named stands alone."""

    node: NodeId
    epoch: int
    crews: tuple[tuple[WorkerId, ...], ...]
    reason: str
    seconds: float
    """From the loss or the decision until all were ready."""


class Worked(Event, frozen=True, kw_only=True):
    """A worker did one thing from `start` to `end` (run seconds)."""

    worker: WorkerId
    activity: Activity
    start: float
    end: float
    iteration: int = -1


AnyEvent: TypeAlias = (
    RunStarted | RunResumed | RunStopped | ProblemNoted
    | Issued | Leased | Released | Accepted | Refused | Dropped | Reopened
    | Compared | StepCommitted | Published | Checkpointed | Restored | IterationDone | Evaluated
    | Planned | Previewed | ExplorationClosed | Selected | Fidelity
    | NodeJoined | NodeLost | WorkerJoined | Holding | NoticeGiven | WorkerLost | Crewing | Worked
)  # fmt: skip


BULK: frozenset[type[Event]] = frozenset({Leased, Accepted, Worked, Holding})
"""Nearly all of a journal: what is told of single samples and workers that are well."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One line of the journal."""

    seq: int
    at: float
    event: AnyEvent

"""Events of a run's journal, as one tagged union.

Resume, audit, status, report and cost are folds over these. Events hold metadata only: tensors and images are files,
named with their digest. `at` of a record counts seconds since the run first started and continues across restarts.

States of a sample, which the audit checks:

    Issued -> Leased -> Accepted -> StepCommitted          (trained on)
                 |  `-> Released -> Leased -> ...           (handed back, recalled, lost: another attempt)
                 `-> Refused                                (a late reply of an older attempt)
    Issued -> ... -> Dropped                                (with a reason)
    StepCommitted -> Restored -> StepCommitted              (the gang restored a checkpoint)

Previews have no states of their own: one `Previewed` records a whole batch.
"""

from typing import TypeAlias

import msgspec

from spotlight.core.types import Frontier, NodeId, Version, WorkerId
from spotlight.core.work import (
    Activity,
    NoticeKind,
    RefusalReason,
    ReleaseReason,
    Request,
    RequestId,
    SlotClass,
    WeightsId,
)

SCHEMA = 1
"""Version of the records and messages; readers refuse other versions."""


class Event(
    msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """Base of all events; `tag` is the class name. No event refers to itself, so `gc=False` is safe."""


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
    """True if an error ended the run; otherwise it finished, was stopped by request, or spent its budget."""


class ProblemNoted(Event, frozen=True, kw_only=True):
    """A problem that the run survives, or that is about to stop it; a sentence for the user."""

    source: str
    """Node, worker or part of the controller."""
    problem: str


class Encoded(Event, frozen=True, kw_only=True):
    """Prompts were encoded by one process, which has ended."""

    prompts: int
    seconds: float


# -- samples -----------------------------------------------------------------------------------------------------------


class Issued(Event, frozen=True, kw_only=True):
    """Requests enter the ledger; one record each for the rollouts, evaluations and audits of an iteration."""

    requests: tuple[Request, ...]
    positions: tuple[int, ...] = ()
    """Position of each group in the prompt order, by group number; for rollouts only."""


class Leased(Event, frozen=True, kw_only=True):
    request: RequestId
    attempt: int
    worker: WorkerId
    step: int = 0
    """Step at which the attempt starts: the step of its flight."""


class Released(Event, frozen=True, kw_only=True):
    request: RequestId
    attempt: int
    reason: ReleaseReason
    step: int = 0
    """Step at which the next attempt resumes."""
    redone: int = 0
    """Completed steps that must be redone."""


class Accepted(Event, frozen=True, kw_only=True):
    request: RequestId
    attempt: int
    worker: WorkerId
    digest: str
    """Digest of the weights that made the sample."""
    reward: float
    components: dict[str, float] = {}
    scorer: str = ""
    """Version of the scorer."""
    payload: str | None = None
    """File of the sample's tensors, relative to the run's folder."""
    payload_digest: str | None = None
    steps: int = 0
    """Denoising steps that this attempt ran."""
    problem: str = ""
    """Reason for a missing score, if `reward` is NaN."""


class Refused(Event, frozen=True, kw_only=True):
    request: RequestId
    attempt: int
    worker: WorkerId
    reason: RefusalReason


class Dropped(Event, frozen=True, kw_only=True):
    request: RequestId
    reason: str


class Reopened(Event, frozen=True, kw_only=True):
    """An accepted sample must be made again, because its file is lost or damaged."""

    request: RequestId
    reason: str


# -- training ----------------------------------------------------------------------------------------------------------


class Compared(Event, frozen=True, kw_only=True):
    """Advantages of one iteration, in the order of its rollout requests."""

    iteration: int
    rewards: tuple[tuple[float, ...], ...]
    """Rewards by group; NaN for a sample without a usable reward."""
    advantages: tuple[tuple[float, ...], ...]
    kept: tuple[tuple[bool, ...], ...]
    problems: tuple[str, ...] = ()
    terms: dict[str, tuple[tuple[float, ...], ...]] = {}
    """Raw scores of each of several rewards, by its name and by group; NaN for a sample without one of them."""


class StepCommitted(Event, frozen=True, kw_only=True):
    """One optimizer step: the samples used, the new frontier and the resulting weights. Atomic."""

    step: int
    """Index of the optimizer step in the whole run, from 0."""
    iteration: int
    update: int
    requests: tuple[RequestId, ...]
    frontier: Frontier
    digest: str
    """Digest of theta after the step."""
    figures: dict[str, float] = {}


class Published(Event, frozen=True, kw_only=True):
    weights: WeightsId
    digest: str
    step: int
    """Number of optimizer steps in these weights."""
    size: int = 0


class Checkpointed(Event, frozen=True, kw_only=True):
    step: int
    """Number of optimizer steps in the checkpoint: the index of the next step."""
    path: str


class Restored(Event, frozen=True, kw_only=True):
    """The gang restored a checkpoint: later steps are undone, and their samples are accepted but not trained."""

    step: int
    reason: str


SAMPLES = "samples"
"""Figure of an iteration: number of its samples that were scored."""


class IterationDone(Event, frozen=True, kw_only=True):
    iteration: int
    rollout_s: float
    train_s: float
    reward: float
    """Mean reward of the training groups; biased by selection, never a target."""
    figures: dict[str, float] = {}


class Evaluated(Event, frozen=True, kw_only=True):
    iteration: int
    """Number of iterations trained so far."""
    scores: dict[str, tuple[float, float, float]]
    """Value and bounds of the 95 % interval by name: reward, exact, ..."""


# -- exploration -------------------------------------------------------------------------------------------------------


class Planned(Event, frozen=True, kw_only=True):
    """The planner's previews for the iteration."""

    iteration: int
    seeds: tuple[int, ...]
    """Number of previews per candidate."""
    steps: int
    budget_s: float
    predicted_s: float
    reason: str = ""
    given_up: int = 0
    """Number of planned previews that are withdrawn from candidates with poor scout previews."""
    awaited_s: float = 0.0
    """Predicted seconds after training that the loop waits for these previews, because slots are missing."""

    @property
    def previews(self) -> int:
        """Number of previews that are drawn if exploration is not cut off."""
        return sum(self.seeds) - self.given_up


class Previewed(Event, frozen=True, kw_only=True):
    """A batch of finished previews, of one or several prompt groups."""

    iteration: int
    steps: int
    version: Version
    groups: tuple[int, ...]
    """Candidate number of each preview."""
    seeds: tuple[int, ...]
    rewards: tuple[float, ...]


class ExplorationClosed(Event, frozen=True, kw_only=True):
    iteration: int
    finished: int
    discarded: int
    seconds: float
    discarded_steps: int = 0
    """Denoising steps that workers had reported for the discarded previews."""


class Selected(Event, frozen=True, kw_only=True):
    """Seeds that are rolled out for the iteration, by group; the last `fresh` ones of a group were never previewed."""

    iteration: int
    seeds: tuple[tuple[int, ...], ...]
    fresh: tuple[int, ...]
    audit: tuple[tuple[int, ...], ...] = ()
    """Unselected seeds that are also rolled out, to measure previews."""
    prompts: tuple[int, ...] = ()
    """Candidate number of each group; empty: group i is candidate i."""

    def candidate(self, group: int) -> int:
        return self.prompts[group] if self.prompts else group


class Fidelity(Event, frozen=True, kw_only=True):
    """Ranking quality of the previews, measured on exact rewards."""

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
    """Row of the price table that bills the node."""
    is_far: bool = False
    """Whether it is on another machine than the run's folder, so that its commits count some time later."""
    age_s: float = 0.0
    """Seconds since its machine started, at this time."""


class NodeLost(Event, frozen=True, kw_only=True):
    node: NodeId
    cause: str


class Reconnected(Event, frozen=True, kw_only=True):
    """The broken connection of a node was resumed within its grace: nothing was lost."""

    node: NodeId
    seconds: float


class WorkerJoined(Event, frozen=True, kw_only=True):
    worker: WorkerId
    node: NodeId
    slot_class: SlotClass
    rows: int
    pid: int = 0
    trains: bool | None = None
    """Whether the worker trains; None in journals older than this field."""
    kind: str = ""
    """Kind of its device: the name of a GPU, or cpu."""


class Holding(Event, frozen=True, kw_only=True):
    """A worker applied weights and reports the digest that it holds."""

    worker: WorkerId
    weights: WeightsId
    digest: str


class NoticeGiven(Event, frozen=True, kw_only=True):
    worker: WorkerId
    kind: NoticeKind
    seconds: float | None
    """Seconds until the deadline; None: not announced."""


class NoticeWithdrawn(Event, frozen=True, kw_only=True):
    worker: WorkerId


class WorkerLost(Event, frozen=True, kw_only=True):
    worker: WorkerId
    cause: str
    noticed: bool = False


class Crewing(Event, frozen=True, kw_only=True):
    """A node's crews from now on, leader first; workers that are not named run alone."""

    node: NodeId
    epoch: int
    crews: tuple[tuple[WorkerId, ...], ...]
    reason: str
    seconds: float
    """Seconds from the loss or the decision until all members are ready."""


class Worked(Event, frozen=True, kw_only=True):
    """One activity of a worker from `start` to `end` (run seconds)."""

    worker: WorkerId
    activity: Activity
    start: float
    end: float
    iteration: int = -1


AnyEvent: TypeAlias = (
    RunStarted | RunResumed | RunStopped | ProblemNoted | Encoded
    | Issued | Leased | Released | Accepted | Refused | Dropped | Reopened
    | Compared | StepCommitted | Published | Checkpointed | Restored | IterationDone | Evaluated
    | Planned | Previewed | ExplorationClosed | Selected | Fidelity
    | NodeJoined | NodeLost | Reconnected | WorkerJoined | Holding | NoticeGiven | NoticeWithdrawn | WorkerLost
    | Crewing | Worked
)  # fmt: skip


BULK: frozenset[type[Event]] = frozenset({Leased, Accepted, Worked, Holding})
"""Event types of normal operation, which make up nearly all of a journal."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One line of the journal."""

    seq: int
    at: float
    event: AnyEvent

"""Messages between controller, agents and workers: one tagged union, the same on pipe, unix socket and TLS.

`core/wire.py` frames a message as the msgpack of one of these classes and an optional blob of safetensors bytes.
Unknown fields are refused, and so is a `Hello` of another schema or code version.

    worker -> controller   Hello, Pull, Commit, HandBack, Result, Alive, Held, Failed
    training ranks         StoreOpened, GangFormed, GangBroken, AwaitsRanks, Accumulated, Stepped, PublishedWeights,
                           Saved
    agent  -> controller   NodeHello, Gone, Warned, Noted, RewardAwaited, StoreFailed, Ping
    controller -> worker   Grant, Recall, Discard, Fenced, Load, FormGang, Train, Publish, Save, Restore, Drain
    controller -> agent    (node-wide) Fetch, Load, Drain, Welcome, Rejected, Ping
    machines that join     the messages of `core/join_messages.py`
    within a node          Commits, the messages of `core/crew_messages.py`
    agent <-> blob server  the messages of `core/blob_messages.py`

An agent relays its workers' messages with their id (`Envelope`). It changes `Result` alone, to which it adds the score.
"""

from typing import TypeAlias

import msgspec

from spotlight.core import blob_messages as blobs
from spotlight.core import crew_messages as crews
from spotlight.core import join_messages as joins
from spotlight.core.blobs import BlobRef, BlobSource
from spotlight.core.gang_messages import AwaitsRanks as AwaitsRanks
from spotlight.core.gang_messages import GangBroken as GangBroken
from spotlight.core.gang_messages import GangFormed as GangFormed
from spotlight.core.gang_messages import StoreOpened as StoreOpened
from spotlight.core.message import Message
from spotlight.core.node_messages import Gone as Gone
from spotlight.core.node_messages import NodeHello as NodeHello
from spotlight.core.node_messages import Ping as Ping
from spotlight.core.node_messages import Rejected as Rejected
from spotlight.core.node_messages import RewardAwaited as RewardAwaited
from spotlight.core.node_messages import StoreFailed as StoreFailed
from spotlight.core.node_messages import Warned as Warned
from spotlight.core.node_messages import Welcome as Welcome
from spotlight.core.types import NodeId, Prompt, WorkerId
from spotlight.core.work import Activity, Request, RequestId, SlotClass, WeightsId, Work

# -- worker -> controller ----------------------------------------------------------------------------------------------


class Hello(Message, frozen=True, kw_only=True):
    """A worker joins and can hold `rows` samples at a time."""

    schema: int
    code: str
    node: NodeId
    slot_class: SlotClass
    rows: int
    pid: int
    holds: tuple[tuple[WeightsId, str], ...] = ()
    trains: bool = False
    """Whether this worker can also take the training role."""
    kind: str = ""
    """Device kind: a GPU's name, or cpu."""
    kernels: str = ""
    """Kernels that it computes with; empty: those of diffusers."""


class Pull(Message, frozen=True, kw_only=True):
    """Offer of `free_rows` rows; valid until a grant answers it or another Pull replaces it."""

    free_rows: int
    row_steps_per_s: float | None = None
    """Measured speed: denoising steps of single rows per second at a full batch."""
    saturating_rows: float | None = None
    """Measured: rows that would take as long, at `row_steps_per_s`, as a step of the worker's smallest batch."""
    answered: int | None = None
    """Number of grants received so far; a pull that crossed a grant on the way is out of date."""
    number: int | None = None
    """Counts the pulls of a worker; a repeated one that arrives after a later one is out of date."""


class Commit(Message, frozen=True, kw_only=True):
    """A flight at a step boundary (the part since the previous commit). The attempt continues."""

    request: RequestId
    attempt: int
    step: int
    since: int = 0
    """Step of the previous commit, which holds the earlier part; 0: this commit is complete."""
    flight: BlobRef | None = None
    """Set by the worker if it stores the bytes itself, else by the agent, to which it sends them along."""


class HandBack(Message, frozen=True, kw_only=True):
    """The attempt ends at this step."""

    request: RequestId
    attempt: int
    step: int
    flight: BlobRef | None = None
    """Its whole flight, as in a commit; None if no work is worth keeping."""


class Commits(Message, frozen=True, kw_only=True):
    """All of one step, with stored flights; the agent relays one after the other."""

    messages: tuple[Commit | HandBack, ...]


class Score(msgspec.Struct, frozen=True, gc=False):
    """Reward of one image."""

    reward: float
    components: dict[str, float] = {}
    scorer: str = ""


class Result(Message, frozen=True, kw_only=True):
    """A finished sample; a worker sends its tensors and its image along, which the agent stores and scores."""

    request: RequestId
    attempt: int
    digest: str
    """Digest of the weights that made the sample."""
    steps: int
    """Denoising steps that this attempt ran."""
    score: Score | None = None
    """Set by the agent; None until then."""
    problem: str = ""
    """Reason why there is no usable score."""
    payload: BlobRef | None = None
    """Tensors of a rollout, or the picture of an evaluation; set by the agent."""


class Progress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Current step of one attempt."""

    request: RequestId
    attempt: int
    step: int


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One activity of a worker; `start` and `end` are seconds before this message was sent (start > end >= 0)."""

    activity: Activity
    start: float
    end: float


class Alive(Message, frozen=True, kw_only=True):
    """Heartbeat; renews the leases it names."""

    progress: tuple[Progress, ...] = ()
    spans: tuple[Span, ...] = ()
    gain: float | None = None
    """Speedup of a crew over its leader alone at the same number of rows; sent by leaders only."""
    warms_up: bool = False
    """Whether the step in progress compiles its forward, which takes far longer than a step."""


class Held(Message, frozen=True, kw_only=True):
    """The worker applied these weights and read back this digest."""

    weights: WeightsId
    digest: str


class Accumulated(Message, frozen=True, kw_only=True):
    """The gradient of one part of an optimizer step was added."""

    step: int
    part: int


class Stepped(Message, frozen=True, kw_only=True):
    """One optimizer step was taken, in memory only."""

    step: int
    digest: str
    figures: dict[str, float]


class PublishedWeights(Message, frozen=True, kw_only=True):
    """These weights are in the node's store."""

    weights: WeightsId
    digest: str
    size: int
    step: int


class Saved(Message, frozen=True, kw_only=True):
    """A checkpoint of `step` optimizer steps is durable at `path`, or was restored from it."""

    step: int
    path: str
    restored: bool = False


class Failed(Message, frozen=True, kw_only=True):
    """An error was raised; `request` and `attempt` name the attempt, if it belongs to one."""

    problem: str
    request: RequestId | None = None
    attempt: int = 0
    fatal: bool = False
    exit_code: int = 1
    """Exit code of the command if this error ends the run."""


class Noted(Message, frozen=True, kw_only=True):
    """A problem worth recording; the sender continues."""

    problem: str


# -- controller -> worker ----------------------------------------------------------------------------------------------


class Granted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One lease."""

    request: Request
    attempt: int
    step: int = 0
    prompt: Prompt
    commit_every: int = 0
    """Steps between commits; 0: no commits (previews)."""
    flight: tuple[BlobRef, ...] = ()
    """Parts of the flight at `step`; the agent reads them and sends their bytes along."""


class Grant(Message, frozen=True, kw_only=True):
    """New leases; an agent sends the flights along, by request, or nothing if all samples start at step 0."""

    leases: tuple[Granted, ...]


class Recall(Message, frozen=True, kw_only=True):
    """Hand these back at the next step boundary: another worker finishes them sooner."""

    requests: tuple[RequestId, ...]


class Discard(Message, frozen=True, kw_only=True):
    """Drop all requests of this kind at the next step boundary; nothing is handed back."""

    work: Work


class Fenced(Message, frozen=True, kw_only=True):
    """This attempt is no longer the request's current one: drop it."""

    request: RequestId
    attempt: int


class Load(Message, frozen=True, kw_only=True):
    """Fetch and apply these weights before any work that needs them."""

    weights: WeightsId
    digest: str
    path: str
    """Path in the run's folder; the node copies the file once."""
    keep: tuple[WeightsId, ...] = ()
    """Older weights that requests may still need."""
    sources: tuple[BlobSource, ...] = ()
    """For a node on another machine: nodes to read the file from, before the run's own server."""


class Fetch(Message, frozen=True, kw_only=True):
    """Copy the file of these weights to the node; the Load that announces them may follow."""

    load: Load


class TrainItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One sample of an update."""

    request: Request
    prompt: Prompt
    payload: str
    advantage: float
    kept: bool


class FormGang(Message, frozen=True, kw_only=True):
    """Leave any earlier gang and connect to the other ranks of gang `epoch`; the reply is GangFormed.

    Rank 0 first receives it without a store: it opens one, replies StoreOpened, and then receives it with the others.
    """

    epoch: int
    rank: int
    ranks: int
    store: str = ""
    """host:port of rank 0's store."""


class Train(Message, frozen=True, kw_only=True):
    """Take optimizer step `step` over these samples; after the `last` one of an iteration the behaviour policy follows.

    A step may come in parts, whose gradients add up. Part 0 starts the step anew. The final part ends in the
    optimizer's step and is answered by Stepped, the others by Accumulated. Every rank of the gang receives all items,
    trains its share and replies.
    """

    step: int
    iteration: int
    items: tuple[TrainItem, ...]
    last: bool
    rank: int = 0
    ranks: int = 1
    part: int = 0
    samples: int | None = None
    """Samples of the whole step, kept or not: the divisor of its gradient. None: the number of `items`."""
    is_final: bool = True


class Publish(Message, frozen=True, kw_only=True):
    """Write these weight sets into the node's store; every rank takes part, rank 0 writes and replies."""

    weights: tuple[WeightsId, ...]


class Save(Message, frozen=True, kw_only=True):
    """Write a durable checkpoint of the current state to `path`, concurrently with later orders.

    Every rank writes its part; rank 0 replies when the checkpoint is whole.
    """

    step: int
    path: str


class Restore(Message, frozen=True, kw_only=True):
    """Restore this checkpoint; an empty path is the initial state. Every rank replies."""

    step: int
    path: str
    source: int | None = None
    """Rank whose state in memory all ranks receive, instead of reading `path`."""


class Drain(Message, frozen=True, kw_only=True):
    """Hand back everything and exit."""


AnyMessage: TypeAlias = (
    Hello | Pull | Commit | HandBack | Commits | Result | Alive | Held
    | StoreOpened | GangFormed | AwaitsRanks | GangBroken | Accumulated | Stepped | PublishedWeights | Saved | Failed
    | Noted
    | NodeHello | Gone | Warned | RewardAwaited | StoreFailed | Welcome | Ping
    | crews.Prepare | crews.Prepared | crews.Form | crews.Formed | crews.Broke | crews.Disband | crews.Disbanded
    | crews.Forward | crews.ForwardDone | crews.Crewed | crews.Demand | crews.AskNeighbour | crews.Offered
    | crews.Adopt | crews.CopyDamaged
    | blobs.OpenBlobs | blobs.BlobsOpen | blobs.PutBlob | blobs.AppendBlob | blobs.ReadBlob | blobs.ReadFile
    | blobs.ListFiles | blobs.FilesListed | blobs.BlobStored | blobs.BlobBytes | blobs.BlobRefused
    | Grant | Recall | Discard | Fenced | Fetch | Load | FormGang | Train | Publish | Save | Restore | Drain | Rejected
    | joins.Join | joins.Joined | joins.JoinRefused | joins.KillOrder | joins.NoticeOrder | joins.Leave
)  # fmt: skip


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """A message with its sending or receiving worker; None is the node itself."""

    worker: WorkerId | None
    message: AnyMessage

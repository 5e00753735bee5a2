"""What controller, agents and workers say to one another: one tagged union, the same on pipe, unix socket and TLS.

A message travels as `core/wire.py` frames it: the msgpack of one of these, and an optional blob of safetensors
bytes. Unknown fields are refused, and a `Hello` of another schema or code version is turned away.

    worker -> controller   Hello, Pull, Commit, HandBack, Result, Alive, Held, Failed
    the training worker    Accumulated, Stepped, PublishedWeights, Saved
    agent  -> controller   NodeHello, Gone, Warned, Noted
    controller -> worker   Grant, Recall, Discard, Fenced, Load, Train, Publish, Save, Restore, Drain
    controller -> agent    (node-wide) Load, Drain, Rejected
    within a node          what `core/crew_messages.py` lists

An agent relays its workers' messages with their id (`Envelope`), and never changes them, but for `Result`: that one it
scores on the way.
"""

from typing import TypeAlias

import msgspec

from spotlight.core import crew_messages as crews
from spotlight.core.message import Message
from spotlight.core.types import NodeId, Prompt, WorkerId
from spotlight.core.work import Activity, NoticeKind, Request, RequestId, SlotClass, WeightsId, Work

# -- worker -> controller ----------------------------------------------------------------------------------------------


class Hello(Message, frozen=True, kw_only=True):
    """A worker is there and can take `rows` samples at a time."""

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
    """Of its device: a GPU's name, or cpu."""


class Pull(Message, frozen=True, kw_only=True):
    """Room for `free_rows` more samples; stands until it is answered or replaced by another Pull."""

    free_rows: int
    row_steps_per_s: float | None = None
    """Measured speed: denoising steps of single rows per second at a full batch."""
    answered: int | None = None
    """Grants received so far: a pull that crossed a grant on the way is out of date."""


class Commit(Message, frozen=True, kw_only=True):
    """A flight at a step boundary (blob: what is new of it). The attempt goes on."""

    request: RequestId
    attempt: int
    step: int
    since: int = 0
    """The step of the commit that holds what was recorded before; 0: this one is whole."""


class HandBack(Message, frozen=True, kw_only=True):
    """The attempt ends here; blob: its flight, or none where nothing is worth keeping."""

    request: RequestId
    attempt: int
    step: int


class Score(msgspec.Struct, frozen=True, gc=False):
    """The judges' verdict on one picture."""

    reward: float
    components: dict[str, float] = {}
    scorer: str = ""


class Result(Message, frozen=True, kw_only=True):
    """A finished sample; blob: its tensors (rollouts, audits) or its picture on the way to the agent's judges."""

    request: RequestId
    attempt: int
    digest: str
    """Of the weights it was made with."""
    steps: int
    """Denoising steps that this attempt ran."""
    score: Score | None = None
    """Set by the agent; None until then."""
    problem: str = ""
    """Why there is no usable score."""


class Progress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far one attempt is."""

    request: RequestId
    attempt: int
    step: int


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One thing that a worker did, in seconds before this message was sent (start > end >= 0)."""

    activity: Activity
    start: float
    end: float


class Alive(Message, frozen=True, kw_only=True):
    """Heartbeat; renews the leases it names."""

    progress: tuple[Progress, ...] = ()
    spans: tuple[Span, ...] = ()
    gain: float | None = None
    """Of a crew's leader: how many times faster the crew steps than it did alone, with as many rows."""


class Held(Message, frozen=True, kw_only=True):
    """The worker applied these weights and read back this digest."""

    weights: WeightsId
    digest: str


class Accumulated(Message, frozen=True, kw_only=True):
    """The gradient of one part of a step was added."""

    step: int
    part: int


class Stepped(Message, frozen=True, kw_only=True):
    """One optimizer step was taken in memory."""

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
    """A checkpoint of this many steps is durable at `path`; or one was restored from it."""

    step: int
    path: str
    restored: bool = False


class Failed(Message, frozen=True, kw_only=True):
    """Something raised; `request` and `attempt` say which attempt, if it was one."""

    problem: str
    request: RequestId | None = None
    attempt: int = 0
    fatal: bool = False
    exit_code: int = 1
    """Of the error: what the command returns if the run ends because of it."""


class Noted(Message, frozen=True, kw_only=True):
    """Something that people should know; the sender goes on."""

    problem: str


# -- agent -> controller -----------------------------------------------------------------------------------------------


class NodeHello(Message, frozen=True, kw_only=True):
    """A node's agent dials in."""

    schema: int
    code: str
    node: NodeId
    slot_class: SlotClass
    slots: int
    zone: str = ""
    price: str = ""
    token: str = ""


class Gone(Message, frozen=True, kw_only=True):
    """A worker of this node died."""

    worker: WorkerId
    cause: str


class Warned(Message, frozen=True, kw_only=True):
    """A preemption notice for the whole node; `seconds` until the deadline."""

    kind: NoticeKind
    seconds: float


# -- controller -> worker ----------------------------------------------------------------------------------------------


class Granted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One lease; its flight, if any, is in the grant's blob under the request's id."""

    request: Request
    attempt: int
    step: int = 0
    prompt: Prompt
    commit_every: int = 0
    """Steps between commits; 0 for never (previews)."""


class Grant(Message, frozen=True, kw_only=True):
    leases: tuple[Granted, ...]


NO_FLIGHTS = msgspec.msgpack.encode({})
"""The blob of a grant whose samples all begin anew, as nearly all do."""


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
    """Fetch and apply these weights before anything that needs them; `keep` says what may still be asked for."""

    weights: WeightsId
    digest: str
    path: str
    """In the publisher's store; the node copies it once."""
    keep: tuple[WeightsId, ...] = ()


class TrainItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One sample of an update."""

    request: Request
    prompt: Prompt
    payload: str
    advantage: float
    kept: bool


class Train(Message, frozen=True, kw_only=True):
    """Take optimizer step `step` over these samples; `last` of the iteration lets the behaviour policy follow.

    A step may come in parts, whose gradients add up; only the final one ends in the optimizer's step, and is answered
    by Stepped, the others by Accumulated. Part 0 begins the step anew. Every rank of the gang gets the whole order and
    takes its share of the items; rank 0 answers.
    """

    step: int
    iteration: int
    items: tuple[TrainItem, ...]
    last: bool
    rank: int = 0
    ranks: int = 1
    part: int = 0
    samples: int | None = None
    """Of the whole step, kept or not: what its gradient is divided by. None: these items are all."""
    is_final: bool = True


class Publish(Message, frozen=True, kw_only=True):
    """Write these weight sets into the node's store."""

    weights: tuple[WeightsId, ...]


class Save(Message, frozen=True, kw_only=True):
    """Write a durable checkpoint there, of the state of now, beside whatever is ordered next."""

    step: int
    path: str


class Restore(Message, frozen=True, kw_only=True):
    """Take the state of this checkpoint; an empty path is the beginning."""

    step: int
    path: str


class Drain(Message, frozen=True, kw_only=True):
    """Hand back everything and exit."""


class Rejected(Message, frozen=True, kw_only=True):
    """The controller will not work with this node: another version of the code, or a wrong token."""

    reason: str


AnyMessage: TypeAlias = (
    Hello | Pull | Commit | HandBack | Result | Alive | Held | Accumulated | Stepped | PublishedWeights | Saved | Failed
    | Noted
    | NodeHello | Gone | Warned
    | crews.Prepare | crews.Prepared | crews.Form | crews.Formed | crews.Broke | crews.Disband | crews.Disbanded
    | crews.Forward | crews.ForwardDone | crews.Crewed | crews.Demand | crews.AskNeighbour | crews.Offered
    | crews.Adopt
    | Grant | Recall | Discard | Fenced | Load | Train | Publish | Save | Restore | Drain | Rejected
)  # fmt: skip


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """A message with the worker it comes from or goes to; None is the node itself."""

    worker: WorkerId | None
    message: AnyMessage

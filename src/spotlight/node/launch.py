"""What an agent and a worker are told when they are started: typed, and passed as bytes, never as pickle."""

import msgspec

from spotlight.compute.rewards.config import SecondJudge
from spotlight.control.elastic.config import ElasticConfig
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind, Request, SlotClass, Work


class SlotDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a slot computes."""

    name: str = "cpu"
    """As torch names it."""
    processes: int = 1
    """Of the run, that compute on it, this slot's included: what is free there is divided among them."""


class WorkerLaunch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The bytes that a worker's entry function gets are the msgpack of this."""

    node: NodeId
    slot_class: SlotClass
    rows: int | None
    """None: it measures how many suit its device."""
    trains: bool
    threads: int
    heartbeat_s: float
    """An Alive is due this often, whatever else the worker does."""
    store: str
    """Folder of the node's weights."""
    settings: bytes
    """What the run tells all its workers."""
    patience_s: float = 12.0
    """How long it holds still for a crew that is being formed."""
    exchange_s: float = 1.5
    """How long one exchange with its crew may take."""
    first_exchange_s: float = 45.0
    """The same in the first forward of a crew."""
    transport: str = "gloo"
    device: SlotDevice = SlotDevice()
    shared: str = ""
    """Folder that all processes of the run on this machine see, for as long as the run lasts."""

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> "WorkerLaunch":
        return msgspec.msgpack.decode(data, type=cls)


class AgentLaunch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The JSON file that an agent is started with; readable by its owner alone, because of the token."""

    node: NodeId
    spec: NodeSpec
    controller: str
    """Unix socket that it dials."""
    nursery: str
    token: str
    store: str
    spill: str
    """Folder on disk for weights that the store has no room for."""
    shared: str
    """As of WorkerLaunch."""
    logs: str
    reward: str
    judge: SecondJudge | None = None
    """Of held-out pictures, in the same processes; None: there is none."""
    reward_processes: int
    reward_timeout_s: float
    """A reward process that gives no answer for so long hangs, and is killed."""
    threads: int
    heartbeat_s: float
    silence_s: float
    """A worker that says nothing for so long hangs, and is killed."""
    start_s: float
    """The same until its first word, which comes after the model is loaded."""
    drain_s: float
    """How long workers may take to hand back and exit."""
    settings: bytes
    elastic: str
    """JSON of the section `cluster.elastic`."""
    heads: int
    """Attention heads of the model: no crew is larger."""
    token_pixels: int
    """Pixels of a picture that one token of the model stands for."""
    devices: tuple[SlotDevice, ...]
    """Of its slots."""

    def is_judged(self, request: Request) -> bool:
        """Whether the second judge scores this picture too."""
        return self.judge is not None and request.work is Work.EVALUATION and self.judge.is_due(request.iteration)

    def for_worker(self, slot: int) -> WorkerLaunch:
        """Of the node's slots only the first one trains: a gang has one worker."""
        elastic = ElasticConfig.model_validate_json(self.elastic)
        return WorkerLaunch(
            node=self.node,
            slot_class=self.spec.slot_class,
            rows=self.spec.rows,
            trains=self.spec.trains and slot == 0,
            threads=self.threads,
            heartbeat_s=self.heartbeat_s,
            store=self.store,
            settings=self.settings,
            patience_s=elastic.patience_s,
            exchange_s=elastic.exchange_s,
            first_exchange_s=elastic.first_exchange_s,
            transport=elastic.transport.value,
            device=self.devices[slot],
            shared=self.shared,
        )


class AgentOrder(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """What the pool tells a running agent, as lines of JSON on its stdin; the end of stdin ends the node."""


class GiveNotice(AgentOrder, frozen=True, kw_only=True):
    """The machine will be taken."""

    kind: NoticeKind
    seconds: float


class KillWorker(AgentOrder, frozen=True, kw_only=True):
    worker: WorkerId


AnyAgentOrder = GiveNotice | KillWorker

"""Launch settings of agents and workers: typed, and passed as bytes, never as pickle."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from spotlight.compute.rewards.config import SecondJudge, Term
from spotlight.control.elastic.config import ElasticConfig
from spotlight.core.blobs import BlobSource
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind, Request, SlotClass, Work
from spotlight.node.node_settings import NodeSettings
from spotlight.node.notices.config import NoticesConfig


class SlotDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Device of a slot."""

    name: str = "cpu"
    """Device name as in torch."""
    processes: int = 1
    """Processes of the run on this device, this slot's included; they divide the free memory."""
    memory: int | None = None
    """Bytes of the device that this process may use; None on a CPU, whose memory is not divided."""
    has_spare: bool = False
    """Whether the memory plan leaves room for the context of the node's spare process."""


def spare_device(devices: Sequence[SlotDevice]) -> str:
    """The device that a node's spare process opens; empty if the slots have several: it would keep memory on each."""
    names = {device.name for device in devices}
    return names.pop() if len(names) == 1 and all(device.has_spare for device in devices) else ""


class WorkerLaunch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one worker; its entry function receives them as msgpack."""

    node: NodeId
    slot_class: SlotClass
    rows: int | None
    """Samples in flight; None: the worker measures the best count of its device."""
    trains: bool
    threads: int
    heartbeat_s: float
    """Seconds between two Alive messages."""
    store: str
    """Folder of the node's weights."""
    settings: bytes
    """JSON of the run's WorkerSettings."""
    patience_s: float = 12.0
    """Longest wait without steps for a crew to form."""
    exchange_s: float = 1.5
    """Time limit of one exchange within a crew."""
    first_exchange_s: float = 45.0
    """Time limit of one exchange in a crew's first forward."""
    transport: str = "gloo"
    gang_port: int = 0
    """Port of rank 0's store; 0: any free one."""
    speed: float = 1.0
    """Speed relative to the profile of a paced run."""
    device: SlotDevice = SlotDevice()
    shared: str = ""
    """Folder shared by all processes of the run on this machine, for the duration of the run."""
    home: str = ""
    """The run's folder, where the worker stores its flights; empty: it is on another machine, and the agent does."""

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> "WorkerLaunch":
        return msgspec.msgpack.decode(data, type=cls)


class AgentLaunch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one agent, in a JSON file that only its owner can read, because it holds the token."""

    node: NodeId
    spec: NodeSpec
    controller: str
    """Unix socket of the controller, or host:port."""
    fingerprint: str = ""
    """Of the controller's certificate, with TLS; empty over a unix socket."""
    blobs: str = ""
    """host:port of the run's blob server; empty where `home` is the run's folder itself."""
    blob_token: str = ""
    """Proof for the run's blob server that this is the node."""
    peer_token: str = ""
    """Proof for blob servers of other nodes that the node belongs to the run."""
    token: str
    nursery: str = ""
    """This and the next four paths are the machine's own; `pools/machine.py` adds them to the controller's template."""
    store: str = ""
    spill: str = ""
    """Folder on disk for weights that do not fit the store."""
    shared: str = ""
    """See WorkerLaunch."""
    logs: str = ""
    rewards: tuple[Term, ...]
    judge: SecondJudge | None = None
    """Second judge of held-out pictures, which runs in the processes of the first reward; None: there is none."""
    threads: int
    heartbeat_s: float
    silence_s: float
    """Seconds of silence after which a worker is killed as hung."""
    grace_s: float
    home: str
    """The run's folder, or this machine's mirror of it."""
    start_s: float
    """Seconds until a worker's first message, which follows the load of the model; then it is killed as hung."""
    drain_s: float
    """Seconds for workers to hand back their samples and exit."""
    settings: bytes
    elastic: str
    """JSON of the section `cluster.elastic`."""
    heads: int
    """Attention heads of the model: no crew is larger."""
    token_pixels: int
    """Pixels of a picture per token of the model."""
    gang_port: int
    """See WorkerLaunch."""
    devices: tuple[SlotDevice, ...] = ()
    """Devices of the node's slots, by slot number."""
    notices: str
    """JSON of the section `cluster.notices`."""
    copy_s: float = 0.0
    """Seconds of a copy of weights to the node in a paced run; 0: as long as it takes."""

    @property
    def farewell(self) -> Path:
        """File in which the agent leaves the controller's order to leave, for the owner of the machine."""
        return Path(self.shared) / f"{self.spec.name}.left"

    def at_home(self, home: str) -> "AgentLaunch":
        """The launch on a machine where the run's folder, or its mirror, is `home`."""
        if home == self.home:
            return self
        return msgspec.structs.replace(self, home=home, settings=_moved(self.settings, self.home, home))

    def is_judged(self, request: Request) -> bool:
        """Whether the second judge scores this picture too."""
        return self.judge is not None and request.work is Work.EVALUATION and self.judge.is_due(request.iteration)

    def notices_config(self) -> NoticesConfig:
        return NoticesConfig.model_validate_json(self.notices).of_node(self.spec.name)

    def node_settings(self, group_store: str, serves: BlobSource | None = None, age_s: float = 0.0) -> NodeSettings:
        """Settings of the agent's decisions."""
        return NodeSettings(
            node=self.node,
            spec=self.spec,
            elastic=ElasticConfig.model_validate_json(self.elastic),
            heads=self.heads,
            token_pixels=self.token_pixels,
            token=self.token,
            is_far=bool(self.blobs),
            serves=serves,
            age_s=age_s,
            group_store=group_store,
            heartbeat_s=self.heartbeat_s,
            silence_s=self.silence_s,
            start_s=self.start_s,
            drain_s=self.drain_s,
        )

    def for_worker(self, slot: int) -> WorkerLaunch:
        """Settings of the worker on this slot."""
        elastic = ElasticConfig.model_validate_json(self.elastic)
        return WorkerLaunch(
            node=self.node,
            slot_class=self.spec.slot_class,
            rows=self.spec.rows,
            trains=slot < self.spec.trains,
            threads=self.threads,
            heartbeat_s=self.heartbeat_s,
            store=self.store,
            settings=self.settings,
            patience_s=elastic.patience_s,
            exchange_s=elastic.exchange_s,
            first_exchange_s=elastic.first_exchange_s,
            transport=elastic.transport.value,
            gang_port=self.gang_port,
            speed=self.spec.speed,
            device=self.devices[slot],
            shared=self.shared,
            home="" if self.blobs else self.home,
        )


class MachineLaunch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a machine receives when it joins: the launch of its agent, and the settings of its nursery."""

    agent: AgentLaunch
    """Without the paths and devices of the machine."""
    entry: str
    """`package.module:function` that a worker runs."""
    preload: tuple[str, ...]
    warm: str
    model: str = ""
    """See `pools.machine.MachineSettings`."""
    device: str
    """Device of the workers: cpu, cuda, or one GPU."""
    shares_devices: bool

    def to_bytes(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> "MachineLaunch":
        return msgspec.json.decode(data, type=cls)


def _moved(settings: bytes, old: str, new: str) -> bytes:
    """WorkerSettings whose paths in the folder `old` are in `new`."""
    content = msgspec.json.decode(settings)
    content["run_folder"] = new
    model = content["model"]
    if model["name"].startswith(f"{old}/"):
        model["name"] = new + model["name"].removeprefix(old)
    return msgspec.json.encode(content)


class AgentOrder(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Base of the pool's orders to a running agent: lines of JSON on its stdin; the end of stdin ends the node."""


class GiveNotice(AgentOrder, frozen=True, kw_only=True):
    """The node will go in `seconds`."""

    kind: NoticeKind
    seconds: float


class KillWorker(AgentOrder, frozen=True, kw_only=True):
    worker: WorkerId


class DrainNode(AgentOrder, frozen=True, kw_only=True):
    """Make the workers hand back their samples and exit, then exit."""


AnyAgentOrder = GiveNotice | KillWorker | DrainNode

"""Lines of JSON between the controller and its process in the Ray cluster (`pools/ray_driver.py`)."""

import msgspec

from spotlight.core.work import SlotClass


class RayNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the Ray cluster, as Ray's table has it."""

    id: str
    name: str
    is_alive: bool = True
    labels: dict[str, str] = {}
    resources: dict[str, float] = {}
    death: str = ""
    """Ray's words for its end."""


class Line(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Base of all lines."""


# -- from the controller; the end of the pipe ends the process and its actors ------------------------------------------


class ConnectRay(Line, frozen=True, kw_only=True):
    """Connect to a Ray cluster; the reply is `Connected` or `ConnectRefused`."""

    address: str
    namespace: str
    spot: tuple[str, ...]
    """Marks of spot nodes, any of which is enough: KEY=VALUE is a label, NAME a custom resource."""
    reserved: tuple[str, ...]
    uses_gpus: bool
    slots: int
    """Slots of a node where the run computes on CPUs."""
    threads: int


class PlaceMachines(Line, frozen=True, kw_only=True):
    """Start a machine on every marked node from now on."""

    token_path: str
    """The run's token file, read before each start: the token may change."""
    folder: str
    """Name of the machines' folders."""


# -- to the controller -------------------------------------------------------------------------------------------------


class Connected(Line, frozen=True, kw_only=True):
    version: str
    host: str
    """Address of this machine, as Ray's nodes reach it."""
    nodes: tuple[RayNode, ...]
    """Living nodes, without this machine's own."""


class ConnectRefused(Line, frozen=True, kw_only=True):
    """No connection; the process ends."""

    problem: str


class Draining(Line, frozen=True, kw_only=True):
    """The machine will go in `seconds`; repeated every second."""

    name: str
    seconds: float


class Ended(Line, frozen=True, kw_only=True):
    """The machine's processes are gone."""

    name: str
    cause: str


class RayProblem(Line, frozen=True, kw_only=True):
    """A problem, for the journal."""

    problem: str


AnyOrder = ConnectRay | PlaceMachines
AnyReport = Connected | ConnectRefused | Draining | Ended | RayProblem


class ActorLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """What an actor is to serve as."""

    token_file: bytes
    name: str
    slot_class: SlotClass
    slots: int
    zone: str
    folder: str


class ActorEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How an actor's machine ended, when it could report it."""

    exit_code: int = 0
    problem: str = ""

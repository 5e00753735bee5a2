"""Packets between agents, the nursery and its spare processes: one msgpack packet per message."""

from typing import TypeAlias

import msgspec

from spotlight.core.types import WorkerId

PACKET_LIMIT = 128 << 10
"""Most bytes of one packet; the kernel's default send buffer takes a packet of about 200 KiB."""


class Packet(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Base of the messages between agents and the nursery; `tag` is the class name."""


class Spawn(Packet, frozen=True, kw_only=True):
    """Start a worker; the packet carries its socket. The nursery passes it on to a spare, if the node has one."""

    worker: WorkerId
    launch: bytes
    log: str
    """File to which the worker's output is appended."""


class KeepSpare(Packet, frozen=True, kw_only=True):
    """Keep one spare process until the next `Spawn`; a no-op if the nursery forks from imported modules."""

    device: str
    """Device on which the spare opens a context; empty: none."""
    log: str
    """File to which the spare's output is appended until it is a worker."""


class KillChild(Packet, frozen=True, kw_only=True):
    """Send SIGKILL to a child of the requesting agent; a no-op if it is gone. A parent never hits a reused pid."""

    pid: int


class Spawned(Packet, frozen=True, kw_only=True):
    worker: WorkerId
    pid: int


class Unborn(Packet, frozen=True, kw_only=True):
    """The worker could not be forked, with the reason."""

    worker: WorkerId
    problem: str


class Exited(Packet, frozen=True, kw_only=True):
    """A worker has ended."""

    pid: int
    status: int
    """Exit code; if negative, minus the signal that killed it."""


NurseryRequest: TypeAlias = Spawn | KeepSpare | KillChild
NurseryReply: TypeAlias = Spawned | Unborn | Exited

"""The Pool protocol: where nodes come from and how they go, whether simulated on this machine or rented.

A pool starts one agent per node; the agent dials the controller by itself, so work never passes through the pool. What
the pool tells is only that a machine came or went, in `events`.

    add_node -> NodeUp -> (warn)* -> kill_node, drain_node, or the agent dies -> NodeDown -> add_node: the next one
"""

from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Protocol, TypeAlias

import msgspec

from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind


class Departure(StrEnum):
    """Why a node is no longer there."""

    KILLED = "killed"
    """We, the market or the provider took it; it comes back when it is added again."""
    LEFT = "left"
    """It drained and exited by itself."""
    CRASHED = "crashed"
    """Its agent died unasked."""


class NodeUp(msgspec.Struct, frozen=True, kw_only=True):
    """An agent was started; it dials the controller next."""

    node: NodeId
    spec: NodeSpec


class NodeDown(msgspec.Struct, frozen=True, kw_only=True):
    """An agent and all its processes are gone."""

    node: NodeId
    spec: NodeSpec
    departure: Departure
    cause: str
    returns: bool = False
    """Whether the pool starts its next incarnation by itself."""


PoolEvent: TypeAlias = NodeUp | NodeDown


class Pool(Protocol):
    """Nodes on demand. Every method may be called from one event loop only."""

    async def start(self) -> None: ...

    def events(self) -> AsyncIterator[PoolEvent]:
        """What happens from now on, in order; ends after `stop`."""

    async def add_node(self, spec: NodeSpec) -> NodeId:
        """Start the node, or the next incarnation of one that is gone."""

    def nodes(self) -> tuple[NodeId, ...]:
        """Those that are up now, in the order of their names."""

    def current(self, name: str) -> NodeId | None:
        """The incarnation of the node of this name that is up now."""

    async def warn(self, node: NodeId, kind: NoticeKind, seconds: float) -> None:
        """Tell the node that it goes in so many seconds; it tells the controller. Nothing is killed by this."""

    async def kill_node(self, node: NodeId) -> None:
        """SIGKILL, all processes of the node at once; returns when they are gone. Nothing if it is gone already."""

    async def drain_node(self, node: NodeId) -> None:
        """Give the node back: its workers hand back and exit; returns when it is gone. Nothing if it is already."""

    async def kill_worker(self, worker: WorkerId) -> None:
        """SIGKILL to one worker; its agent starts the next incarnation. Nothing if it is gone already."""

    async def stop(self) -> None:
        """End everything that this pool started; harmless to repeat."""

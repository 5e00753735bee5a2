"""The Pool protocol: starts and ends nodes, simulated on this machine or rented.

A pool starts one agent per node; the agent connects to the controller, so work never passes through the pool. The pool
reports only that nodes start and end, in `events`.

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
    """Why a node ended."""

    KILLED = "killed"
    """The run, the market or the provider took it; it returns when it is added again."""
    LEFT = "left"
    """It drained and exited."""
    CRASHED = "crashed"
    """Its agent died unexpectedly."""


class NodeUp(msgspec.Struct, frozen=True, kw_only=True):
    """An agent was started; it connects to the controller next."""

    node: NodeId
    spec: NodeSpec


class NodeDown(msgspec.Struct, frozen=True, kw_only=True):
    """An agent and all its processes are gone."""

    node: NodeId
    spec: NodeSpec
    departure: Departure
    cause: str
    returns: bool = False
    """Whether the pool starts its next incarnation without an `add_node`."""


PoolEvent: TypeAlias = NodeUp | NodeDown


class Pool(Protocol):
    """Starts and ends nodes; all methods are called from one event loop."""

    async def start(self) -> None: ...

    def events(self) -> AsyncIterator[PoolEvent]:
        """Events from now on, in order; ends after `stop`."""

    async def add_node(self, spec: NodeSpec) -> NodeId:
        """Start the node, or the next incarnation of one that is gone."""

    def nodes(self) -> tuple[NodeId, ...]:
        """Running nodes, in the order of their names."""

    def current(self, name: str) -> NodeId | None:
        """The running incarnation of the node of this name."""

    async def warn(self, node: NodeId, kind: NoticeKind, seconds: float) -> None:
        """Send the node a notice that it goes in `seconds`, which it reports to the controller; kills nothing."""

    async def kill_node(self, node: NodeId) -> None:
        """Send SIGKILL to all processes of the node and wait until they are gone; a no-op if they are already."""

    async def drain_node(self, node: NodeId) -> None:
        """Return the node: its workers hand back their samples and exit; waits until it is gone."""

    async def kill_worker(self, worker: WorkerId) -> None:
        """Send SIGKILL to one worker, after which its agent starts the next; a no-op if it is gone already."""

    async def stop(self) -> None:
        """End every process that this pool started; idempotent."""

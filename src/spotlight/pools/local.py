"""Simulated nodes on this machine: one agent process per node, all workers forked from one nursery.

`Machine` starts and ends their processes. A killed node returns when it is added again; one whose agent died
unexpectedly is restarted by the pool.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from spotlight.compute.rewards.config import SecondJudge, Term
from spotlight.control.profiles import Profile
from spotlight.core.errors import SpotlightError
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind
from spotlight.node.launch import AgentLaunch, GiveNotice, KillWorker
from spotlight.pools.config import ClusterConfig
from spotlight.pools.devices import DeviceTable
from spotlight.pools.machine import AgentEnd, Machine, MachineSettings
from spotlight.pools.pool import Departure, NodeDown, NodeUp, PoolEvent
from spotlight.pools.processes import Incarnations

STABLE_S = 30.0
"""An agent that ran this long did not fail to start."""
RESTARTS = 5
"""Failed starts in a row before the pool stops restarting a node: more would repeat a wrong setting."""
COUNTS = "incarnations.json"


@dataclass(frozen=True, kw_only=True)
class LocalPoolSettings:
    """Settings of a run's pool."""

    run: Path
    """The run folder; it holds the logs and the incarnation counters."""
    controller: Path
    """Unix socket of the controller; paths in the folder `sockets(run)` are short enough."""
    token: str
    entry: str
    """See MachineSettings."""
    preload: tuple[str, ...]
    is_bare: bool = False
    warm: str = ""
    worker_settings: bytes
    model: str = ""
    """See MachineSettings."""
    rewards: tuple[Term, ...]
    judge: SecondJudge | None = None
    cluster: ClusterConfig
    heads: int = 1
    """Attention heads of the model; with one, workers never share a sample."""
    token_pixels: int = 1
    """Pixels of a picture per token of the model."""
    devices: DeviceTable = field(default_factory=DeviceTable)
    """Device of every slot, for all incarnations of its node."""

    def machine(self) -> MachineSettings:
        """Settings of the controller's own machine."""
        return MachineSettings(
            folder=self.run,
            home=self.run,
            entry=self.entry,
            preload=self.preload,
            is_bare=self.is_bare,
            warm=self.warm,
            store=self.cluster.store,
            model=self.model,
            drain_s=self.cluster.drain_s,
            keep=self.controller,
        )

    def template(self, spec: NodeSpec, node: NodeId) -> AgentLaunch:
        """Launch of a node's agent without the paths and devices of its machine, which `Machine` adds."""
        cluster = self.cluster
        return AgentLaunch(
            node=node,
            spec=spec,
            controller=str(self.controller),
            token=self.token,
            rewards=self.rewards,
            judge=self.judge,
            threads=cluster.threads,
            heartbeat_s=cluster.heartbeat_s,
            silence_s=cluster.silence_s,
            grace_s=cluster.grace_s,
            home=str(self.run),
            start_s=cluster.start_s,
            drain_s=cluster.drain_s,
            settings=self.worker_settings,
            elastic=cluster.elastic.model_dump_json(),
            heads=self.heads,
            token_pixels=self.token_pixels,
            gang_port=cluster.gang_port,
            notices=cluster.notices.on_simulated_nodes().model_dump_json(),
            copy_s=0.0 if cluster.pace is None else Profile.load(cluster.pace).node_copy_s / cluster.pace_speed,
        )


class LocalPool:
    """Implements `Pool` on the controller's machine."""

    def __init__(self, settings: LocalPoolSettings) -> None:
        self._settings = settings
        self._machine = Machine(settings.machine(), self._ended)
        self._failed_starts: dict[str, int] = {}
        self._restarts: dict[str, asyncio.Task[None]] = {}
        self._events: asyncio.Queue[PoolEvent | None] = asyncio.Queue()
        self._is_stopping = False
        self._counts = Incarnations(settings.run / COUNTS)

    async def start(self) -> None:
        await self._machine.start()

    async def events(self) -> AsyncIterator[PoolEvent]:
        while (event := await self._events.get()) is not None:
            yield event

    def nodes(self) -> tuple[NodeId, ...]:
        return self._machine.nodes()

    def current(self, name: str) -> NodeId | None:
        return self._machine.current(name)

    async def add_node(self, spec: NodeSpec) -> NodeId:
        self._cancel_restart(spec.name)
        await self._machine.ensure_nursery()
        if (running := self._machine.current(spec.name)) is not None:
            return running
        node = spec.incarnation(self._counts.next(spec.name))
        self._machine.run_agent(self.launch_of(spec, node))
        self._events.put_nowait(NodeUp(node=node, spec=spec))
        return node

    def launch_of(self, spec: NodeSpec, node: NodeId) -> AgentLaunch:
        """Launch settings of the agent of this incarnation."""
        return self._machine.completed(self._settings.template(spec, node), self._settings.devices.of(spec))

    async def warn(self, node: NodeId, kind: NoticeKind, seconds: float) -> None:
        self._machine.order(node, GiveNotice(kind=kind, seconds=seconds))

    async def kill_worker(self, worker: WorkerId) -> None:
        self._machine.order(NodeId(worker.partition("/")[0]), KillWorker(worker=worker))

    async def kill_node(self, node: NodeId) -> None:
        self._cancel_restart(node.rpartition(".")[0])
        await self._machine.kill(node)

    async def drain_node(self, node: NodeId) -> None:
        await self._machine.drain(node)
        self._cancel_restart(node.rpartition(".")[0])

    async def stop(self) -> None:
        self._is_stopping = True
        for name in list(self._restarts):
            self._cancel_restart(name)
        if await self._machine.stop():
            self._events.put_nowait(None)

    # -- ends and restarts ---------------------------------------------------------------------------------------------

    def _ended(self, end: AgentEnd) -> None:
        name = end.spec.name
        departure = Departure.KILLED if end.is_killed else Departure.LEFT if end.status == 0 else Departure.CRASHED
        has_failed = departure is Departure.CRASHED and end.ran_s <= STABLE_S
        failed = self._failed_starts[name] = self._failed_starts.get(name, 0) + 1 if has_failed else 0
        returns = departure is Departure.CRASHED and failed <= RESTARTS and not self._is_stopping
        cause = f"agent ended with status {end.status}, see {end.log}"
        self._events.put_nowait(
            NodeDown(node=end.node, spec=end.spec, departure=departure, cause=cause, returns=returns)
        )
        if returns:
            self._restarts[name] = asyncio.create_task(self._restart(end.spec, 0.25 * 2**failed))

    async def _restart(self, spec: NodeSpec, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        del self._restarts[spec.name]
        try:
            await self.add_node(spec)
        except (OSError, SpotlightError) as error:
            node, cause = NodeId(spec.name), f"it cannot be restarted: {error}"
            self._events.put_nowait(NodeDown(node=node, spec=spec, departure=Departure.CRASHED, cause=cause))

    def _cancel_restart(self, name: str) -> None:
        """Cancel a pending restart: an explicit add or kill of the node replaces it."""
        if (restart := self._restarts.pop(name, None)) is not None:
            restart.cancel()

"""Machines of a Ray cluster: an actor on every marked node brings its machine into the run, as `spotlight join` does.

    CONNECTING --Connected--> PLACING --process died--> CONNECTING, every RETRY_S
        `--ConnectRefused--> the run does not start

Ray supplies membership, placement and drains. Messages, bytes, leases and fences are the run's own, over its own links.
The controller does not import ray: `pools/ray_driver.py` is a process beside it.

Invariants (tests/processes/test_ray_pool.py): the cluster stays when the run ends, and no actor does; the loss of
nodes, or of the whole cluster, does not end the run.
"""

import asyncio
import contextlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import msgspec

from spotlight.compute.models.config import CPU, device_of
from spotlight.controller.door import Door
from spotlight.core import join_messages as joins
from spotlight.core.errors import EnvironmentProblem
from spotlight.core.types import NodeId
from spotlight.core.work import NoticeKind
from spotlight.pools.config import ClusterConfig
from spotlight.pools.join_pool import JoinPool, JoinSettings
from spotlight.pools.local import LocalPool
from spotlight.pools.machine import private_name
from spotlight.pools.ray_lines import (
    AnyOrder,
    AnyReport,
    Connected,
    ConnectRay,
    ConnectRefused,
    Draining,
    Ended,
    PlaceMachines,
    RayNode,
    RayProblem,
)
from spotlight.pools.ray_membership import PREFIX, gpus_of, slot_class_of
from spotlight.pools.tokens import RunSecrets

SPOT_MARKS = ("spotlight=spot", "ray.io/market-type=spot", "spot")
RESERVED_MARKS = ("spotlight=reserved", "reserved")
OLDEST, NEWEST = (2, 58), (2, 62)
"""Versions of Ray from the first on, before the second."""
CONNECT_S = 60.0
RETRY_S = 5.0
"""Pause before the process is started again."""
STOP_S = 20.0
LINE_LIMIT = 16 << 20
"""Bytes of a line; the first one names all nodes of the cluster, with some 500 bytes each."""
LOG = "ray.log"


def check_installed() -> None:
    """Raise if this machine has no Ray, or another version than those that are tested."""
    if importlib.util.find_spec("ray") is None:
        raise EnvironmentProblem(
            "cluster.pool is ray, but Ray is not installed; install the extra with `pip install 'spotlight-rl[ray]'`, "
            "here and on the Ray nodes."
        )
    version = installed_version()
    if not OLDEST <= _numbers(version) < NEWEST:
        raise EnvironmentProblem(
            f"Ray {version} is installed, but this version of spotlight works with {_shown(OLDEST)} to before "
            f"{_shown(NEWEST)}, because it reads drain notices from Ray's private interface; install `ray"
            f">={_shown(OLDEST)},<{_shown(NEWEST)}` on all nodes."
        )


def installed_version() -> str:
    return metadata.version("ray")


def connect_order(cluster: ClusterConfig, device: str, run: Path) -> ConnectRay:
    """How a run with these settings uses a Ray cluster."""
    spot, reserved = cluster.ray_spot_label, cluster.ray_reserved_label
    return ConnectRay(
        address=cluster.address,
        namespace=private_name(run),
        spot=SPOT_MARKS if spot is None else (spot,),
        reserved=RESERVED_MARKS if reserved is None else (reserved,),
        uses_gpus=cluster.pace is None and device_of(device)[0] != CPU,
        slots=cluster.slots,
        threads=cluster.threads,
    )


async def found_in_cluster(connect: ConnectRay, is_resumed: bool) -> str:
    """Connect once, and say what the run can use there; raises if that is nothing."""
    cluster = RayCluster(connect)
    try:
        return used_nodes(await cluster.connect(), connect, is_resumed)
    finally:
        await cluster.stop()


def used_nodes(connected: Connected, connect: ConnectRay, is_resumed: bool) -> str:
    """A sentence on the nodes that the run uses; raises if there are nodes and none is marked, unless the run is
    resumed, which may have lost all of them."""
    marked: dict[str, list[str]] = {}
    for node in connected.nodes:
        slot_class = slot_class_of(node, connect)
        if slot_class is not None:
            marked.setdefault(slot_class.value, []).append(_described(node))
    if connected.nodes and not marked and not is_resumed:
        raise EnvironmentProblem(
            f"none of the {len(connected.nodes)} other nodes of the Ray cluster at {connect.address} is marked as spot "
            f"({' or '.join(connect.spot)}) or reserved ({' or '.join(connect.reserved)}), so the run could use none; "
            "start their Ray with `ray start --labels spotlight=spot`, or name your label KEY=VALUE or custom resource "
            "with cluster.ray_spot_label."
        )
    found = "; ".join(f"{name} {', '.join(sorted(nodes))}" for name, nodes in sorted(marked.items()))
    return f"Ray {connected.version} at {connect.address}: {found or 'no node but this one yet'}"


def _described(node: RayNode) -> str:
    gpus = gpus_of(node)
    return f"{node.name} ({gpus} GPU{'' if gpus == 1 else 's'})" if gpus else node.name


class RayCluster:
    """The process in the Ray cluster, started again when it dies."""

    def __init__(self, connect: ConnectRay, log: Path | None = None) -> None:
        """`log` receives the output of Ray."""
        self._connect = connect
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._place: PlaceMachines | None = None
        self._is_stopping = False

    async def connect(self) -> Connected:
        """Raise if the cluster cannot be used."""
        command = (sys.executable, "-m", "spotlight.pools.ray_driver")
        # Ray copies the module path of its driver to all nodes.
        environment = os.environ | {"PYTHONSAFEPATH": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        with open(self._log or os.devnull, "ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=environment,
                limit=LINE_LIMIT,
            )
        self._order(self._connect)
        try:
            reply = await asyncio.wait_for(self._read(), CONNECT_S)
        except TimeoutError:
            reply = ConnectRefused(problem=f"no reply in {CONNECT_S:g} s")
            self._process.kill()
        if isinstance(reply, Connected):
            return reply
        await self._end()
        why = reply.problem if isinstance(reply, ConnectRefused) else "the connection broke"
        raise EnvironmentProblem(
            f"the Ray cluster at cluster.address={self._connect.address} cannot be used ({why.rstrip('.')}); check "
            "that it runs, that this machine is one of its nodes (`ray status`), and that RAY_AUTH_MODE and its token "
            "are the cluster's."
        )

    def place(self, place: PlaceMachines) -> None:
        """Start machines from now on."""
        self._place = place
        self._order(place)

    async def reports(self) -> AsyncIterator[AnyReport]:
        """What happens in the cluster, until `stop`."""
        while not self._is_stopping:
            while (report := await self._read()) is not None:
                yield report
            if self._is_stopping:
                return
            await self._end()
            yield RayProblem(
                problem="the connection to the Ray cluster is lost, and its machines with it; trying again."
            )
            await self._reconnected()

    async def stop(self) -> None:
        """End all actors and the process; the cluster stays."""
        self._is_stopping = True
        await self._end()

    async def _reconnected(self) -> None:
        while not self._is_stopping:
            await asyncio.sleep(RETRY_S)
            with contextlib.suppress(EnvironmentProblem):
                await self.connect()
                if self._place is not None:
                    self._order(self._place)
                return

    async def _read(self) -> AnyReport | None:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        return msgspec.json.decode(line, type=AnyReport) if line.endswith(b"\n") else None

    def _order(self, order: AnyOrder) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")

    async def _end(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


class RayMachines(NamedTuple):
    """Where machines come from."""

    cluster: RayCluster
    note: Callable[[str], None]
    """Records a problem."""


class RayPool(JoinPool):
    """Implements `Pool` for machines of a Ray cluster; others may join too."""

    def __init__(
        self, local: LocalPool, door: Door, settings: JoinSettings, secrets: RunSecrets, machines: RayMachines
    ) -> None:
        super().__init__(local, door, settings, secrets)
        self._cluster, self._note = machines
        self._place = PlaceMachines(token_path=str(secrets.token_path), folder=private_name(settings.pool.run))
        self._following: asyncio.Task[None] | None = None
        self._warned: set[NodeId] = set()

    async def start(self) -> None:
        await super().start()
        self._cluster.place(self._place)
        self._following = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        await super().stop()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._cluster.stop()

    def name_problem(self, join: joins.Join) -> str:
        """Drains and ends come by name from Ray, so that no other machine may have the name of a Ray node."""
        if join.from_ray or not join.name.startswith(PREFIX):
            return ""
        return (
            f"the name {join.name} is kept for a Ray node of the run, as are all that begin with {PREFIX}; choose "
            "another with --name."
        )

    async def _follow(self) -> None:
        async for report in self._cluster.reports():
            match report:
                case Draining(name=name, seconds=seconds):
                    await self._drains(name, seconds)
                case Ended(name=name, cause=cause):
                    self.ended(name, cause)
                case RayProblem(problem=problem):
                    self._note(problem)

    async def _drains(self, name: str, seconds: float) -> None:
        """Give the node one notice, once its agent is connected."""
        node = self.connected(name)
        if node is not None and node not in self._warned:
            self._warned.add(node)
            await self.warn(node, NoticeKind.IMMINENT, seconds)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _shown(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"

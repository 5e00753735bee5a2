"""One run in virtual time: the real control plane over machines with the durations of a profile.

    outcome = simulate(Simulation(config, recipe, profile, numerics), folder)

The folder is an ordinary run folder: status, report, audit and bill read its journal. Invariant: the journal depends
only on the recipe, the profile, the trace and the numerics (tests/storm/test_simulate.py compares two processes).
"""

import asyncio
import errno
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from spotlight.budget import Budget
from spotlight.compute.profiling.pace import NEEDED, preview_operation
from spotlight.config import RunConfig
from spotlight.control.market.bill import settle
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Operation, Profile, efficient_batch
from spotlight.control.scheduler.scheduler import Scheduler
from spotlight.core.errors import ConfigError
from spotlight.core.events import IterationDone, Record
from spotlight.core.journal import Disk
from spotlight.core.node_spec import NodeSpec
from spotlight.core.segments import list_segments
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind
from spotlight.folder import RunFolder
from spotlight.pools.market import StandIns, bring_spot
from spotlight.pools.pool import PoolEvent
from spotlight.sim.controller import Controller, Ending
from spotlight.sim.machine_settings import SimMachineSettings
from spotlight.sim.message_trace import MessageTrace
from spotlight.sim.numerics import Numerics
from spotlight.sim.profiled import ProfiledPolicy
from spotlight.sim.sim_world import SimWorld
from spotlight.sim.storage import SimStorage
from spotlight.sim.virtual_loop import VirtualClock, run_virtually
from spotlight.wiring import MakeScheduler, Wired

BUFFER_BYTES = 1 << 16
"""Size of the write buffer; a disk that fails loses it and the record after it."""


class BufferedDisk:
    """Buffers writes to one file at a time, because a journal has one open."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._is_torn = False
        """Whether a write of the buffer failed part-way."""

    def disk(self) -> Disk:
        return Disk(write=self._write, sync=self._flush, close=self._close)

    def _write(self, handle: int, data: bytes | memoryview) -> int:
        before = len(self._waiting)
        try:
            self._waiting += data
            if len(self._waiting) > BUFFER_BYTES:
                self._flush(handle)
        except BaseException:
            # To the journal this record is not written; it may write another with the same number.
            self._waiting = self._waiting[:before]
            raise
        return len(data)

    def _flush(self, handle: int) -> None:
        if not self._waiting:
            return
        if self._is_torn:
            raise OSError(errno.EIO, "an earlier write was not finished")
        self._is_torn = True
        rest, self._waiting = memoryview(self._waiting), bytearray()
        while rest:
            rest = rest[os.write(handle, rest) :]
        self._is_torn = False

    def _close(self, handle: int) -> None:
        try:
            self._flush(handle)
        finally:
            os.close(handle)


class SimPool:
    """`pools.pool.Pool` over a world: a killed node stays away until it is added again."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world

    async def start(self) -> None:
        pass

    async def events(self) -> AsyncIterator[PoolEvent]:
        """No events: the controller sees nodes by their connections."""
        none: tuple[PoolEvent, ...] = ()
        for event in none:
            yield event

    async def add_node(self, spec: NodeSpec) -> NodeId:
        self._world.add(spec)
        return self._world.nodes[spec.name].id

    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(self._world.nodes[name].id for name in self._world.names())

    def current(self, name: str) -> NodeId | None:
        known = self._world.nodes.get(name)
        return None if known is None else known.id

    async def warn(self, node: NodeId, kind: NoticeKind, seconds: float) -> None:
        self._world.warn(_name(node), kind, seconds)

    async def kill_node(self, node: NodeId) -> None:
        self._world.remove(_name(node))
        self._world.kill(_name(node))

    async def drain_node(self, node: NodeId) -> None:
        self._world.remove(_name(node))
        here = self._world.nodes.get(_name(node))
        if here is not None:
            await here.drain()

    async def kill_worker(self, worker: WorkerId) -> None:
        self._world.kill_worker(worker)

    async def stop(self) -> None:
        self._world.unplug()


def _name(node: NodeId) -> str:
    return node.rpartition(".")[0]


RAREST_HEARTBEAT_S, SILENCE_S, TICK_S = 10.0, 60.0, 2.0
"""Virtual workers are never silent unless they are lost, so large fleets have rare heartbeats."""
HEARTBEATS_PER_S = 30
"""Heartbeats of a fleet per virtual second, until a worker's are the rarest. Small fleets (up to 15 slots by default)
have the heartbeat of a run, because shares follow the reported progress."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """Inputs of one simulated run."""

    config: RunConfig
    recipe: str
    profile: Profile
    numerics: Numerics
    prices: PriceTable
    progress: Callable[[int], None] = lambda iteration: None
    scheduler: MakeScheduler = Scheduler
    """Another one where a benchmark compares rules of the scheduler."""


class SimulationEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Ending and size of a simulated run."""

    folder: str
    ending: Ending
    reason: str
    iterations: int
    seconds: float
    """Virtual time."""
    events: int
    """Messages between the controller and the machines."""
    digest: str
    """Digest of the whole journal."""


def simulated(config: RunConfig, profile: Profile) -> RunConfig:
    """The recipe as the simulator runs it: the profile's rows, role switch and degrees of crews, rare heartbeats of a
    large fleet, an unsynced journal."""
    rows = efficient_batch(profile, Operation.DENOISE_STEP)
    settings, cluster = config.model_dump(), config.cluster
    slots = (cluster.reserved + cluster.spot) * cluster.slots
    heartbeat_s = max(cluster.heartbeat_s, min(slots / HEARTBEATS_PER_S, RAREST_HEARTBEAT_S))
    settings["cluster"] |= {"rows": rows, "heartbeat_s": heartbeat_s, "silence_s": max(SILENCE_S, 4 * heartbeat_s)}
    if config.cluster.elastic.degrees == "auto":
        most = min(config.cluster.slots, config.cluster.elastic.max_degree or config.cluster.slots)
        degrees = [degree for degree in crew_degrees(profile) if degree <= most]
        settings["cluster"]["elastic"] |= {"degrees": degrees}
    if Operation.ROLE_SWITCH in profile.operations:
        settings["pipeline"] |= {"switch_s": profile.seconds(Operation.ROLE_SWITCH)}
    settings["output"]["journal"] |= {"sync": "never"}
    return RunConfig.model_validate(settings)


def simulate(simulation: Simulation, folder: RunFolder) -> SimulationEnd:
    """Run to the end of the recipe or of its budget."""
    check(simulation.config, simulation.profile, simulation.recipe)
    return run_virtually(_run(simulation, folder))


def crew_degrees(profile: Profile) -> list[int]:
    """Numbers of slots per crew whose forwards were timed."""
    timed = profile.degrees(Operation.DENOISE_STEP)
    previews = [profile.degrees(each) or timed for each in (Operation.PREVIEW_STEP, Operation.FP8_PREVIEW_STEP)]
    return [degree for degree in timed if all(degree in known for known in previews)]


def check(config: RunConfig, profile: Profile, recipe: str) -> None:
    """Refuse a profile that lacks an operation of the recipe, before anything is written."""
    needed = [*NEEDED, Operation.REGROUP] if config.cluster.slots > 1 else list(NEEDED)
    if config.explores:
        needed.append(preview_operation(profile, config.explore.precision))
    profile.require(needed, recipe)
    listed, timed = config.cluster.elastic.degrees, crew_degrees(profile)
    unknown = [degree for degree in listed if degree not in timed] if listed != "auto" else []
    if config.cluster.slots > 1 and unknown:
        raise ConfigError(
            f"cluster.elastic.degrees has {unknown[0]}, but the profile '{profile.name}' has times of crews of "
            f"{', '.join(map(str, timed))} slots only; choose among these, or leave degrees out."
        )
    ranks = profile.degrees(Operation.OPTIMIZER_STEP)
    if config.cluster.gang not in ranks:
        raise ConfigError(
            f"cluster.gang is {config.cluster.gang}, but the profile '{profile.name}' has an optimizer step of "
            f"{', '.join(map(str, ranks))} ranks only; choose one of these, or add it to the profile."
        )


async def _run(simulation: Simulation, folder: RunFolder) -> SimulationEnd:
    loop, config = asyncio.get_running_loop(), simulation.config
    policy = ProfiledPolicy(simulation.profile, config)
    events = MessageTrace(is_kept=False)
    machines = SimMachineSettings.of(config, simulation.profile.copies_sets)
    world = SimWorld(policy, SimStorage(), events, True, machines, numerics=simulation.numerics)
    controller = Controller(
        config, folder, world, VirtualClock(loop), BufferedDisk().disk(), simulation.recipe, simulation.scheduler
    )
    run_log = controller.run_log
    pool = SimPool(world)
    iterations = 0

    def observe(record: Record) -> None:
        nonlocal iterations
        if isinstance(record.event, IterationDone):
            iterations += 1
            simulation.progress(iterations)

    def dollars() -> float:
        return settle(run_log.meter.tallies(), simulation.prices, config.cluster.reserved).dollars

    limits = Budget(config.budget, lambda: run_log.run_time() / 3600, dollars, folder.name)
    purse = limits.purse(config.iterations, config.cluster, config.market, simulation.prices)
    stand_ins = StandIns.of(config.cluster, config.market, pool, purse=purse)

    def ready(wired: Wired) -> None:
        run_log.watchers += [observe, stand_ins.observe]
        simulation.numerics.begin_run(wired.hub.dispatcher.ledger.iteration, config.explore.precision)
        wired.hub.tick_s = TICK_S

    controller.limits = limits
    market = asyncio.create_task(_market(config, pool, stand_ins))
    ending = await controller.live(config.cluster.reserved_nodes(config.market.reserved_price), ready)
    market.cancel()
    with suppress(asyncio.CancelledError):
        await market
    return SimulationEnd(
        folder=str(folder.path),
        ending=ending,
        reason=controller.reason,
        iterations=iterations,
        seconds=loop.time(),
        events=world.events,
        digest=_digest(folder),
    )


async def _market(config: RunConfig, pool: SimPool, stand_ins: StandIns) -> None:
    # The controller connects first: earlier nodes would have no controller to connect to.
    await asyncio.sleep(0)
    await asyncio.gather(bring_spot(config.cluster, config.market, pool), stand_ins.keep())


def _digest(folder: RunFolder) -> str:
    hasher = hashlib.blake2b(digest_size=16)
    for segment in list_segments(folder.journal):
        hasher.update(segment.read_bytes())
    return hasher.hexdigest()

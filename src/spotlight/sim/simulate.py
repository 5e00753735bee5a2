"""One run in virtual time: the real control plane over machines that are as fast as a profile says.

    outcome = simulate(Simulation(config, recipe, profile, numerics), folder)

The folder is an ordinary run folder: status, report, audit and bill read its journal. Invariant: what happens depends
on the recipe, the profile, the trace and the numerics alone (tests/storm/test_simulate.py compares two processes).
"""

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from spotlight.budget import Budget
from spotlight.compute.profiling.pace import NEEDED
from spotlight.config import RunConfig
from spotlight.control.market.bill import settle
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Operation, Profile, efficient_batch
from spotlight.core.errors import ConfigError
from spotlight.core.events import IterationDone, Record
from spotlight.core.segments import list_segments
from spotlight.folder import RunFolder
from spotlight.pools.market import StandIns, bring_spot
from spotlight.sim.controller import Controller, Ending
from spotlight.sim.gathered import Gathering
from spotlight.sim.machines import SimPool
from spotlight.sim.numerics import Numerics
from spotlight.sim.profiled import ProfiledFate
from spotlight.sim.storage import SimStorage
from spotlight.sim.trace import Trace as Events
from spotlight.sim.virtual_loop import VirtualClock, run_virtually
from spotlight.sim.world import World
from spotlight.wiring import Wired

HEARTBEAT_S, SILENCE_S, TICK_S = 10.0, 60.0, 2.0
"""Virtual workers are never silent without being lost, so that signs of life may be rare."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """What is to be simulated."""

    config: RunConfig
    recipe: str
    profile: Profile
    numerics: Numerics
    prices: PriceTable
    progress: Callable[[int], None] = lambda iteration: None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a simulated run ended."""

    folder: str
    ending: Ending
    reason: str
    iterations: int
    seconds: float
    """Of virtual time."""
    events: int
    """Messages that crossed between the controller and the machines."""
    digest: str
    """Of the whole journal."""


def simulated(config: RunConfig, profile: Profile) -> RunConfig:
    """The recipe as the simulator runs it: rows and changes of role as the profile has them, rare heartbeats, an
    unsynced journal."""
    rows = efficient_batch(profile, Operation.DENOISE_STEP)
    settings = config.model_dump()
    settings["cluster"] |= {"rows": rows, "heartbeat_s": HEARTBEAT_S, "silence_s": SILENCE_S}
    if Operation.ROLE_SWITCH in profile.operations:
        settings["pipeline"] |= {"switch_s": profile.seconds(Operation.ROLE_SWITCH)}
    settings["output"]["journal"] |= {"sync": "never"}
    return RunConfig.model_validate(settings)


def simulate(simulation: Simulation, folder: RunFolder) -> Outcome:
    """From the first record to the end of the run, or to the end of its budget."""
    check(simulation.config, simulation.profile, simulation.recipe)
    return run_virtually(_run(simulation, folder))


def check(config: RunConfig, profile: Profile, recipe: str) -> None:
    """Before anything is written: does the profile know all that the recipe needs?"""
    needed = [*NEEDED, Operation.REGROUP] if config.cluster.slots > 1 else list(NEEDED)
    profile.require(needed, recipe)
    ranks = profile.degrees(Operation.OPTIMIZER_STEP)
    if config.cluster.gang not in ranks:
        raise ConfigError(
            f"cluster.gang is {config.cluster.gang}, but the profile '{profile.name}' knows an optimizer step of "
            f"{', '.join(map(str, ranks))} ranks only; choose one of these, or add it to the profile."
        )


async def _run(simulation: Simulation, folder: RunFolder) -> Outcome:
    loop, config = asyncio.get_running_loop(), simulation.config
    fate = ProfiledFate(simulation.profile, config)
    events = Events(is_kept=False)
    world = World(
        fate, SimStorage(), events, is_exact=True, elastic=config.cluster.elastic, numerics=simulation.numerics
    )
    controller = Controller(config, folder, world, VirtualClock(loop), Gathering().disk(), simulation.recipe)
    chronicle = controller.chronicle
    pool = SimPool(world, config.cluster.drain_s)
    stand_ins = StandIns.of(config.cluster, config.market, pool)
    iterations = 0

    def observe(record: Record) -> None:
        nonlocal iterations
        if isinstance(record.event, IterationDone):
            iterations += 1
            simulation.progress(iterations)

    def dollars() -> float:
        return settle(chronicle.meter.tallies(), simulation.prices, config.cluster.reserved).dollars

    def ready(wired: Wired) -> None:
        chronicle.watchers += [observe, stand_ins.observe]
        simulation.numerics.attend(wired.hub.dispatcher.ledger.iteration)
        wired.hub.tick_s = TICK_S

    controller.limits = Budget(config.budget, lambda: chronicle.run_time() / 3600, dollars, folder.name)
    market = asyncio.create_task(_market(config, pool, stand_ins))
    ending = await controller.live(config.cluster.reserved_nodes(config.market.reserved_price), ready)
    market.cancel()
    with suppress(asyncio.CancelledError):
        await market
    return Outcome(
        folder=str(folder.path),
        ending=ending,
        reason=controller.reason,
        iterations=iterations,
        seconds=loop.time(),
        events=world.events,
        digest=_digest(folder),
    )


async def _market(config: RunConfig, pool: SimPool, stand_ins: StandIns) -> None:
    # The controller is plugged in first: nodes that come before it would have nobody to dial.
    await asyncio.sleep(0)
    await asyncio.gather(bring_spot(config.cluster, config.market, pool), stand_ins.keep())


def _digest(folder: RunFolder) -> str:
    hasher = hashlib.blake2b(digest_size=16)
    for segment in list_segments(folder.journal):
        hasher.update(segment.read_bytes())
    return hasher.hexdigest()

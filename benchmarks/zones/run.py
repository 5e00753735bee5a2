"""Markets, work, and simulated runs of the benchmark."""

import os
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import track

from benchmarks.zones.policies import ZONES, Rule
from spotlight.control.market.prices import PriceTable
from spotlight.control.market.traces import Trace, in_order
from spotlight.control.market.weather import Weather, generate
from spotlight.control.profiles import Profile
from spotlight.core.errors import InputError
from spotlight.core.events import Accepted, IterationDone, NodeLost, Record, Released
from spotlight.core.journal import read
from spotlight.core.work import ReleaseReason
from spotlight.folder import RunFolder
from spotlight.sim.simulate import Simulation, simulate
from spotlight.surface.simulating import Assumed, model_numerics, simulated_config

RECIPE = "words-large-nft+disaggregated-serial"
"""All rollouts are on spot slots, so that losses cost the most."""
LEARNING = "words-large-nft"
TRAINERS = 4
WEATHER = Weather(zones=len(ZONES), median_zone_s=3600.0, noticed_share=0.0)
"""Lifetimes and absences fitted to published markets (`control/market/weather.py`): they are Lomax distributed, so the
hazard falls with age. A zone loses all its nodes at one instant, in half of all cases within an hour. No loss has a
notice."""
HOURS, BEFORE_H = 6.0, 0.25
"""Length of a market; time before the bulk loss with which a recorded one begins."""
NOTICE_S = 5.0
"""Notice of `Rule.NOTICE`: enough to hand back all samples, and hardly a loss of time."""
WARM_UP = 2
STEADY = ("eval.every=1000", "eval.prompts=1", "output.checkpoint_every=1000", "rollout.initial_noise=per_sample")
UPDATE = ("algorithm.timesteps_per_sample=2", "train.updates_per_iteration=1", "market.boot_s=60")


class Work(msgspec.Struct, frozen=True):
    """Samples of an iteration, and the machines that draw them."""

    name: str
    profile: str
    prompts: int
    group: int
    steps: int
    nodes: int
    slots: int
    iterations: int


WORK = (
    Work("24x16 samples, 512 px", "h200-qwen-image-512", 24, 16, 20, 12, 1, 60),
    Work("2x16 samples, 512 px", "h200-qwen-image-512", 2, 16, 40, 12, 1, 160),
    Work("8x16 samples, 1280 px", "h200-qwen-image-1280", 8, 16, 20, 12, 1, 30),
    Work("1x8 samples, 1280 px, crews", "h200-qwen-image-1280", 1, 8, 40, 6, 4, 120),
)
"""All slots full; fewer samples than rows; few rows per slot; slots of a node that share samples."""


class Commits(StrEnum):
    """How often flights are committed."""

    USUAL = "usual"
    """Every two steps, the default."""
    NEVER = "never"
    """A lost sample starts over: what commits leave to such rules."""


class Case(msgspec.Struct, frozen=True):
    """One run."""

    work: Work
    rule: Rule
    commits: Commits
    seed: int
    traces: tuple[str, ...] = ()
    """Recorded counts, one file per zone; empty: a generated market."""


class Outcome(msgspec.Struct, frozen=True):
    case: Case
    iteration_s: float
    losses: int
    """Nodes lost in the iterations that count."""
    lost: float
    """Samples taken from lost workers, per sample."""


def cases_of(seeds: Sequence[int], traces: Sequence[str], quick: bool) -> list[Case]:
    if traces and len(traces) != len(ZONES):
        raise InputError(
            f"--traces names {len(traces)} files, but there are {len(ZONES)} zones; name one file per zone."
        )
    work = WORK[1:2] if quick else WORK
    return [
        Case(each, rule, commits, seed, tuple(traces))
        for each, rule, commits, seed in product(work, Rule, Commits, seeds)
    ]


def outcomes_of(cases: Sequence[Case]) -> list[Outcome]:
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as processes:
        found = processes.map(outcome_of, cases, chunksize=4)
        return list(track(found, "runs", len(cases), console=Console(stderr=True)))


def market_of(case: Case) -> Trace:
    """The trace of all nodes; node n is in zone n modulo their number."""
    names = [f"spot-{number}" for number in range(1, case.work.nodes + 1)]
    if not case.traces:
        return generate(case.seed, names, HOURS, WEATHER)
    held = [Trace.load(source, case.work.nodes // len(ZONES)) for source in case.traces]
    bulk = _bulk_losses(held)
    start_h = max(0.0, bulk[case.seed % len(bulk)] / 3600 - BEFORE_H)
    events = []
    for zone, trace in enumerate(held):
        for event in trace.window(start_h, HOURS).events:
            number = int(re.sub(r"\D", "", event.node))
            node = names[(number - 1) * len(ZONES) + zone]
            events.append(msgspec.structs.replace(event, node=node))
    return in_order("recorded zones", events)


def _bulk_losses(zones: Sequence[Trace]) -> list[float]:
    """Times at which one of the zones loses at least half of its nodes, early enough for a whole window."""
    last_s = min(trace.seconds for trace in zones) - HOURS * 3600
    return sorted(
        time_s
        for trace in zones
        for time_s, count in Counter(event.time_s for event in trace.kills).items()
        if 2 * count >= len(trace.nodes) and time_s <= last_s
    )


def outcome_of(case: Case) -> Outcome:
    work, prices = case.work, PriceTable.load()
    profile = Profile.load(work.profile)
    reserved = TRAINERS // work.slots
    trace = market_of(case).with_notice(NOTICE_S if case.rule is Rule.NOTICE else 0.0)
    zones = [{"zone": zone} for zone in ZONES]
    machines = [f"cluster.spot={work.nodes}", f"cluster.slots={work.slots}", f"cluster.reserved={reserved}"]
    machines += [f"cluster.gang={TRAINERS}", f"cluster.fleet={zones}"]
    machines += [f"cluster.commit_every={2 if case.commits is Commits.USUAL else work.steps}"]
    samples = [f"rollout.prompts={work.prompts}", f"rollout.group_size={work.group}", f"rollout.steps={work.steps}"]
    run = [f"seed={case.seed}", f"iterations={work.iterations}"]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "market.csv"
        path.write_text(trace.to_csv())
        assumed = Assumed(profile=profile, prices=prices, trace=str(path))
        config = simulated_config(RECIPE, [*STEADY, *UPDATE, *machines, *samples, *run], assumed)
        folder = RunFolder(Path(scratch) / "run")
        folder.path.mkdir()
        simulation = Simulation(
            config=config,
            recipe=RECIPE,
            profile=profile,
            numerics=model_numerics(config, LEARNING),
            prices=prices,
            scheduler=case.rule.scheduler(WEATHER),
        )
        simulate(simulation, folder)
        return _measured(case, list(read(folder.journal)))


def _measured(case: Case, records: Sequence[Record]) -> Outcome:
    ends = [record.at for record in records if isinstance(record.event, IterationDone)]
    assert len(ends) == case.work.iterations
    counted = [record.event for record in records if ends[WARM_UP - 1] < record.at <= ends[-1]]
    samples = sum(isinstance(event, Accepted) for event in counted)
    lost = sum(isinstance(event, Released) and event.reason is ReleaseReason.LOST for event in counted)
    return Outcome(
        # Names without folders: results are published.
        case=msgspec.structs.replace(case, traces=tuple(Path(source).name for source in case.traces)),
        iteration_s=(ends[-1] - ends[WARM_UP - 1]) / (len(ends) - WARM_UP),
        losses=sum(isinstance(event, NodeLost) for event in counted),
        lost=lost / samples,
    )


def description(seeds: Sequence[int], traces: Sequence[str]) -> dict[str, Any]:
    market = {"recorded": [Path(each).name for each in traces]} if traces else msgspec.to_builtins(WEATHER)
    return {
        "market": market,
        "zones": len(ZONES),
        "work": msgspec.to_builtins(WORK),
        "notice_s": NOTICE_S,
        "trace_hours": HOURS,
        "seeds_of_traces": list(seeds),
    }

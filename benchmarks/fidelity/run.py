"""Real runs and their simulations: on this machine, paced by a profile, and under a trace."""

import math
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import yaml
from rich.console import Console

from benchmarks.fidelity.figures import Pair, table_of
from benchmarks.fidelity.losses import Undisturbed, check_lost, losses, lost_early
from benchmarks.lib.local_runs import WARM_UP, Timing, timing, trained, warmed_up
from benchmarks.lib.provenance import provenance
from spotlight.config import RunConfig, load_config
from spotlight.control.market.prices import PriceTable
from spotlight.control.market.traces import PUNCTUALITY_S, Happening, Trace, TraceEvent, in_order
from spotlight.control.profiles import Operation, Point, Profile, Series, efficient_batch
from spotlight.core.errors import EnvironmentProblem
from spotlight.core.events import NodeJoined, NodeLost, NoticeGiven, Record
from spotlight.core.journal import read
from spotlight.core.types import NodeId
from spotlight.core.work import SlotClass
from spotlight.folder import RunFolder
from spotlight.node.paced.quicker import quicker
from spotlight.sim.numerics import HashNumerics
from spotlight.sim.simulate import Simulation, simulate, simulated

CPU_PROFILE = "cpu-words"
START_S = 8.0
"""Seconds of this machine by which a real run may start later than a simulation; until then it loses no node."""
STARTS = 3
"""Most runs under a trace that lost nodes in their warm-up."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pair of runs: a profile, a fleet and a trace."""

    settings: Mapping[str, object]
    recipe: str
    profile: Profile
    speed: float = 1.0
    trace: Trace | None = None
    """Trace in seconds of the profile."""
    is_fresh: bool = False
    """Whether the profile is measured before the run, and again after it."""


def cpu_case(profile: Profile, iterations: int, seed: int) -> Case:
    settings = {
        "seed": seed,
        "iterations": WARM_UP + iterations,
        "train": {"micro_batch": efficient_batch(profile, Operation.TRAIN_TIMESTEP)},
        "eval": {"every": 1000, "prompts": 8},
        "cluster": {
            "reserved": 1, "spot": 1, "threads": 1, "rows": efficient_batch(profile, Operation.DENOISE_STEP)
        },
        "reward": {"processes": 1},
    }  # fmt: skip
    return Case(settings=settings, recipe="words-nft", profile=profile)


def paced_case(profile_name: str, iterations: int, seed: int, speed: float) -> Case:
    profile = Profile.load(profile_name)
    settings = {
        "seed": seed,
        "iterations": WARM_UP + iterations,
        "rollout": {"prompts": 12, "group_size": 16},
        "explore": {"seeds": 24, "steps": 6},
        "eval": {"every": 1000, "prompts": 8},
        "cluster": {
            "pace": profile_name, "pace_speed": speed, "rows": efficient_batch(profile, Operation.DENOISE_STEP)
        },
        "reward": {"processes": 1},
    }  # fmt: skip
    return Case(settings=settings, recipe="words-large-nft+spotlight-fixed", profile=profile, speed=speed)


def with_trace(case: Case, seed: int, iterations: int, calm: Undisturbed) -> Case:
    nodes = [f"spot-{number}" for number in range(1, 9)]
    return replace(case, trace=losses(seed, nodes, calm, iterations, START_S * case.speed))


def compared(case: Case, folder: Path) -> tuple[Timing, Timing]:
    """The real run and the simulated one."""
    real = trained(configured(case, folder, "real"), folder)
    if case.is_fresh:
        case = replace(case, profile=between(case.profile, fresh_profile(folder / "after")))
    return timing(real, case.speed), timing(virtually(case, folder, "simulated"), case.speed)


def compared_with_losses(case: Case, seed: int, iterations: int, folder: Path) -> tuple[Timing, Timing]:
    """The real run under a trace and the simulated one, whose trace is what happened in the real one."""
    undisturbed = virtually(case, folder, "undisturbed")
    real = trained_with_losses(case, seed, iterations, Undisturbed.of(undisturbed, case.speed), folder)
    # The run has no loss before the end of its warm-up, which is time 0 of the simulated trace.
    happened = observed(real, warmed_up(undisturbed) - warmed_up(real), case.speed)
    simulated = virtually(replace(case, trace=happened), folder, "simulated")
    timings = timing(real, case.speed), timing(simulated, case.speed)
    check_lost(timings)
    return timings


def trained_with_losses(case: Case, seed: int, iterations: int, calm: Undisturbed, folder: Path) -> list[Record]:
    """A real run without losses in its warm-up; one that started too slowly is repeated with later losses."""
    for start in range(1, STARTS + 1):
        disturbed = with_trace(case, seed, iterations, calm)
        real = trained(configured(disturbed, folder, "real" if start == 1 else f"real-{start}"), folder)
        if not lost_early(real):
            return real
        calm = msgspec.structs.replace(calm, warm_up_s=warmed_up(real) * case.speed)
    raise EnvironmentProblem(
        f"{STARTS} runs in a row lost nodes in their warm-up, the last of which took {warmed_up(real):.0f} s, so their "
        "iterations cannot be compared with a simulation; run it again when fewer processes use this machine."
    )


def configured(case: Case, folder: Path, name: str) -> RunConfig:
    """Load the settings through a file, as a user would."""
    path = folder / f"{name}.yaml"
    settings = dict(case.settings)
    if case.trace is not None:
        trace = folder / f"{name}.csv"
        trace.write_text(case.trace.to_csv())
        settings["market"] = {"trace": str(trace), "speed": case.speed}
    output = {"folder": str(folder / "runs"), "name": name, "journal": {"sync": "never"}}
    path.write_text(yaml.safe_dump({**settings, "output": output}))
    return load_config(f"{case.recipe}+{path}")


def virtually(case: Case, folder: Path, name: str) -> list[Record]:
    profile = quicker(case.profile, case.speed)
    config = simulated(configured(case, folder, name), profile)
    run = RunFolder.create(config.output, "fidelity")
    simulate(
        Simulation(
            config=config, recipe=case.recipe, profile=profile, numerics=HashNumerics(), prices=PriceTable.load(None)
        ),
        run,
    )
    return list(read(run.journal))


def observed(records: Sequence[Record], shift_s: float, speed: float) -> Trace:
    """Times at which spot nodes joined, were warned and were lost; those of the warm-up are present from the start."""
    events = []
    for record in records:
        time_s = max(0.0, record.at + shift_s) * speed
        match record.event:
            case NodeJoined(node=node, slot_class=SlotClass.SPOT):
                is_early = record.at <= warmed_up(records)
                events.append(TraceEvent(0.0 if is_early else time_s, name_of(node), Happening.UP))
            case NodeLost(node=node):
                events.append(TraceEvent(time_s, name_of(node), Happening.KILL))
            case NoticeGiven(worker=worker, seconds=seconds) if seconds is not None:
                node = NodeId(worker.partition("/")[0])
                events.append(TraceEvent(time_s, name_of(node), Happening.NOTICE, seconds * speed + PUNCTUALITY_S))
    return in_order("observed", events)


def name_of(node: NodeId) -> str:
    """The node's name without its incarnation."""
    return node.rpartition(".")[0]


def fresh_profile(folder: Path, beside: int = 1) -> Profile:
    """As `spotlight profile` measures it, with the threads of a worker and `beside` other slots at work."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{CPU_PROFILE}.json"
    command = [sys.executable, "-m", "spotlight.surface.cli.main", "profile", "--model", "words"]
    command += ["--beside", str(beside), "--out", str(path)]
    subprocess.run(command, check=True, stdout=sys.stderr, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return Profile.load(path)


def between(before: Profile, after: Profile) -> Profile:
    """The profile with the geometric mean of both seconds: a shared machine's speed changes within minutes."""

    def mean(one: Point, other: Point) -> Point:
        return Point(one.batch, one.degree, math.sqrt(one.p50 * other.p50), math.sqrt(one.p99 * other.p99))

    def joined(one: Series, other: Series) -> Series:
        return msgspec.structs.replace(one, points=tuple(map(mean, one.points, other.points)))

    operations = {
        operation: msgspec.structs.replace(
            times, series=tuple(map(joined, times.series, after.operations[operation].series))
        )
        for operation, times in before.operations.items()
    }
    return msgspec.structs.replace(before, operations=operations)


def case_of(kind: str, seed: int, args: Namespace, folder: Path) -> Case:
    if kind == "cpu":
        profile = fresh_profile(folder / "before") if args.fresh_profile else Profile.load(CPU_PROFILE)
        return replace(cpu_case(profile, args.iterations, seed), is_fresh=args.fresh_profile)
    return paced_case(args.profile, args.iterations, seed, args.speed)


def pairs_of(kind: str, args: Namespace, folder: Path) -> list[Pair]:
    pairs = []
    for seed in args.seeds:
        place = folder / f"{kind}-{seed}"
        place.mkdir()
        case = case_of(kind, seed, args, place)
        if kind == "trace":
            real, simulated = compared_with_losses(case, seed, args.iterations, place)
        else:
            real, simulated = compared(case, place)
        profile = f"{case.profile.name} {case.profile.digest}"
        pair = Pair(seed=seed, commit=provenance()["commit"], profile=profile, real=real, simulated=simulated)
        pairs.append(pair)
        Console(stderr=True).print(table_of({kind: [pair]}))
    return pairs


@contextmanager
def kept_or_not(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True)
        yield folder.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="fidelity-") as scratch:
        yield Path(scratch)

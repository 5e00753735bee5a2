"""Real runs and their simulations: on this machine, paced by a profile, and under a trace."""

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
from benchmarks.lib.local_runs import WARM_UP, Timing, timing, trained
from benchmarks.lib.provenance import provenance
from spotlight.config import RunConfig, load_config
from spotlight.control.market.prices import PriceTable
from spotlight.control.market.traces import PUNCTUALITY_S, Happening, Trace, TraceEvent, in_order
from spotlight.control.market.weather import Weather, generate
from spotlight.control.profiles import Operation, Profile, efficient_batch
from spotlight.core.events import IterationDone, NodeJoined, NodeLost, NoticeGiven, Record
from spotlight.core.journal import read
from spotlight.core.types import NodeId
from spotlight.core.work import SlotClass
from spotlight.folder import RunFolder
from spotlight.node.paced.quicker import quicker
from spotlight.sim.numerics import HashNumerics
from spotlight.sim.simulate import Simulation, simulate, simulated

CPU_PROFILE = "cpu-words"
WEATHER = Weather(
    median_life_s=150,
    shortest_life_s=60,
    mean_absence_s=45,
    shortest_absence_s=20,
    median_zone_s=240,
    mean_outage_s=40,
    noticed_share=0.5,
    notices_s=(30, 10),
)
"""A node lives for a few iterations, and sometimes all nodes go at once."""
WEATHER_S = 3600.0
LEAD_IN_S = 300.0
"""Time to the first loss: longer than the warm-up, even if twelve agents start slowly at once."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pair of runs: a profile, a fleet and a trace."""

    settings: Mapping[str, object]
    recipe: str
    profile: Profile
    speed: float = 1.0
    trace: Trace | None = None
    """Trace in seconds of the profile."""


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


def with_trace(case: Case, seed: int) -> Case:
    nodes = [f"spot-{number}" for number in range(1, 9)]
    weather = generate(seed, nodes, WEATHER_S / 3600, WEATHER, "fidelity")
    return replace(case, trace=later(weather, LEAD_IN_S))


def later(trace: Trace, seconds: float) -> Trace:
    """The trace with all events after the beginning delayed by `seconds`."""
    events = [
        msgspec.structs.replace(event, time_s=event.time_s + seconds) if event.time_s else event
        for event in trace.events
    ]
    return in_order(trace.name, events)


def compared(case: Case, folder: Path) -> tuple[Timing, Timing]:
    """The real run and the simulated one."""
    real = trained(configured(case, folder, "real"), folder)
    if case.trace is None:
        return timing(real, case.speed), timing(virtually(case, folder, "simulated"), case.speed)
    # The run has no loss before the end of its warm-up, which is time 0 of the simulated trace.
    start_s = warmed_up(virtually(case, folder, "undisturbed"))
    happened = observed(real, start_s - warmed_up(real), case.speed)
    simulated = virtually(replace(case, trace=happened), folder, "simulated")
    return timing(real, case.speed), timing(simulated, case.speed)


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


def warmed_up(records: Sequence[Record]) -> float:
    """Time at which the warm-up ended."""
    return [record.at for record in records if isinstance(record.event, IterationDone)][WARM_UP - 1]


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
    path = folder / f"{CPU_PROFILE}.json"
    command = [sys.executable, "-m", "spotlight.surface.cli.main", "profile", "--model", "words"]
    command += ["--beside", str(beside), "--out", str(path)]
    subprocess.run(command, check=True, stdout=sys.stderr, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return Profile.load(path)


def case_of(kind: str, seed: int, args: Namespace, folder: Path) -> Case:
    if kind == "cpu":
        profile = fresh_profile(folder) if args.fresh_profile else Profile.load(CPU_PROFILE)
        return cpu_case(profile, args.iterations, seed)
    case = paced_case(args.profile, args.iterations, seed, args.speed)
    return with_trace(case, seed) if kind == "trace" else case


def pairs_of(kind: str, args: Namespace, folder: Path) -> list[Pair]:
    pairs = []
    for seed in args.seeds:
        place = folder / f"{kind}-{seed}"
        place.mkdir()
        case = case_of(kind, seed, args, place)
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

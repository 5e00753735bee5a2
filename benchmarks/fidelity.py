"""Is the simulator right? Iteration times of real runs against simulations of the same recipe.

    python benchmarks/fidelity.py [--only cpu paced trace] [--fresh-profile] [--repeats 3] [--json]

- cpu: `words-nft` really trains on one reserved and one spot process, one thread each, on this machine; the simulation
  takes its durations from the profile `cpu-words`, or with --fresh-profile from one that is measured now.
- paced: four reserved slots that train together and eight spot slots, real controller, agents, workers and sockets;
  each operation is held to its duration in a profile (`spotlight train --pace`).
- trace: the same while spot nodes come and go as a generated trace says, warned or not, by SIGKILL.

Paced runs pass several seconds of the profile in one (--speed); the simulation then takes the profile divided by that,
and both the trace, so that fixed waits (heartbeats, sockets, restarts) weigh more than they would at full length, never
less. An iteration's time is from the end of the one before it to its own end in the journal, and the first two do not
count; of cpu and paced the figure is the error of the median, of the trace that of the sum. A positive error says that
the simulation is slower than the run.

How long a dozen processes take to start at once on this machine is not what is asked here. So the trace loses nobody
before the end of the second iteration, and the simulation replays what the run's nodes did from then on: it has each of
them from when it dialled in, warned when it was warned, until it was gone.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import msgspec
import yaml
from provenance import provenance
from rich.console import Console
from rich.table import Table

from spotlight.config import RunConfig, load_config
from spotlight.control.ledger.audit import audit
from spotlight.control.market.prices import PriceTable
from spotlight.control.market.traces import PUNCTUALITY_S, Happening, Trace, TraceEvent, in_order
from spotlight.control.market.weather import Weather, generate
from spotlight.control.profiles import Operation, Profile
from spotlight.core.events import IterationDone, NodeJoined, NodeLost, NoticeGiven, Record
from spotlight.core.journal import read
from spotlight.core.types import NodeId
from spotlight.core.work import SlotClass
from spotlight.folder import RunFolder
from spotlight.runtime.paced.quicker import quicker
from spotlight.runtime.sim.numerics import HashNumerics
from spotlight.runtime.sim.profiled import efficient_batch
from spotlight.runtime.sim.simulate import Simulation, simulate, simulated

CPU_PROFILE, PACED_PROFILE = "cpu-words", "h200-qwen-image-512"
WARM_UP = 2
"""Iterations at the beginning that do not count: workers start, speeds are unknown, the base is evaluated."""
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
"""Harsh: a node lives for a few iterations, and now and then all of them go at once."""
WEATHER_S = 3600.0
LEAD_IN_S = 300.0
"""Until the first loss: longer than the warm-up takes, even where twelve agents are slow to start at once."""
LIMITS = {"cpu": 0.05, "paced": 0.05, "trace": 0.10}


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Of one run, real or simulated; in seconds of the profile."""

    iterations: Sequence[float]
    """Without the warm-up."""
    rollout: float
    train: float
    """Medians of these."""
    losses: int
    """Nodes, while these ran."""

    @property
    def iteration(self) -> float:
        return statistics.median(self.iterations)

    @property
    def total(self) -> float:
        return sum(self.iterations)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A run and its simulation."""

    real: Timing
    simulated: Timing

    @property
    def iteration_error(self) -> float:
        return self.simulated.iteration / self.real.iteration - 1

    @property
    def total_error(self) -> float:
        return self.simulated.total / self.real.total - 1


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is run and simulated."""

    settings: Mapping[str, object]
    recipe: str
    profile: Profile
    speed: float = 1.0
    trace: Trace | None = None
    """In seconds of the profile."""


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
    """All but who is there from the beginning."""
    events = [
        msgspec.structs.replace(event, time_s=event.time_s + seconds) if event.time_s else event
        for event in trace.events
    ]
    return in_order(trace.name, events)


def compared(case: Case, folder: Path) -> Pair:
    real = really(case, folder)
    if case.trace is None:
        return Pair(real=timing(real, case.speed), simulated=timing(virtually(case, folder, "simulated"), case.speed))
    # Undisturbed up to the end of its warm-up, whatever comes then: that moment sets the clock.
    start_s = warmed_up(virtually(case, folder, "undisturbed"))
    happened = observed(real, start_s - warmed_up(real), case.speed)
    simulated = virtually(replace(case, trace=happened), folder, "simulated")
    return Pair(real=timing(real, case.speed), simulated=timing(simulated, case.speed))


def configured(case: Case, folder: Path, name: str) -> RunConfig:
    """Through a file, as a user would."""
    path = folder / f"{name}.yaml"
    settings = dict(case.settings)
    if case.trace is not None:
        trace = folder / f"{name}.csv"
        trace.write_text(case.trace.to_csv())
        settings["market"] = {"trace": str(trace), "speed": case.speed}
    output = {"folder": str(folder / "runs"), "name": name, "journal": {"sync": "never"}}
    path.write_text(yaml.safe_dump({**settings, "output": output}))
    return load_config(f"{case.recipe}+{path}")


def really(case: Case, folder: Path) -> list[Record]:
    config = configured(case, folder, "real")
    path = folder / "whole.yaml"
    path.write_text(json.dumps(config.model_dump(mode="json")))
    command = [sys.executable, "-m", "spotlight.surface.cli.main", "train", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"the run failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    records = list(read(folder / "runs" / "real" / "journal"))
    found = audit(records)
    if not found.clean:
        raise SystemExit("the run is not clean:\n" + "\n".join(found.sentences()))
    return records


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
    """When the warm-up was over."""
    return [record.at for record in records if isinstance(record.event, IterationDone)][WARM_UP - 1]


def observed(records: Sequence[Record], shift_s: float, speed: float) -> Trace:
    """What spot nodes really did: when they dialled in, were warned and were gone; who was early was there at once."""
    events = []
    for record in records:
        time_s = max(0.0, record.at + shift_s) * speed
        match record.event:
            case NodeJoined(node=node, slot_class=SlotClass.SPOT):
                is_early = record.at <= warmed_up(records)
                events.append(TraceEvent(0.0 if is_early else time_s, name_of(node), Happening.UP))
            case NodeLost(node=node):
                events.append(TraceEvent(time_s, name_of(node), Happening.KILL))
            case NoticeGiven(worker=worker, seconds=seconds):
                node = NodeId(worker.partition("/")[0])
                events.append(TraceEvent(time_s, name_of(node), Happening.NOTICE, seconds * speed + PUNCTUALITY_S))
    return in_order("observed", events)


def name_of(node: NodeId) -> str:
    """Without its incarnation."""
    return node.rpartition(".")[0]


def timing(records: Sequence[Record], speed: float) -> Timing:
    done = [record for record in records if isinstance(record.event, IterationDone)]
    counted = done[WARM_UP:]
    events = [record.event for record in counted if isinstance(record.event, IterationDone)]
    ends = [record.at for record in done[WARM_UP - 1 :]]
    return Timing(
        iterations=[(end - begin) * speed for begin, end in pairwise(ends)],
        rollout=statistics.median(event.rollout_s for event in events) * speed,
        train=statistics.median(event.train_s for event in events) * speed,
        losses=sum(isinstance(record.event, NodeLost) and ends[0] < record.at <= ends[-1] for record in records),
    )


def fresh_profile(folder: Path) -> Profile:
    """As `spotlight profile` measures it, with as many threads as a worker has."""
    path = folder / f"{CPU_PROFILE}.json"
    command = [sys.executable, "-m", "spotlight.surface.cli.main", "profile", "--model", "words", "--out", str(path)]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return Profile.load(path)


def pairs_of(kind: str, args: argparse.Namespace, profile: Profile | None, folder: Path) -> list[Pair]:
    pairs = []
    for seed in range(args.repeats):
        place = folder / f"{kind}-{seed}"
        place.mkdir()
        if kind == "cpu":
            assert profile is not None
            case = cpu_case(profile, args.iterations, seed)
        else:
            case = paced_case(args.profile, args.iterations, seed, args.speed)
            case = with_trace(case, seed) if kind == "trace" else case
        pairs.append(compared(case, place))
        show(kind, pairs[-1:])
    return pairs


def show(kind: str, pairs: Sequence[Pair]) -> None:
    table = Table(kind, "iteration s", "rollout s", "train s", "total s", "nodes lost")
    for pair in pairs:
        for name, found in (("real", pair.real), ("simulated", pair.simulated)):
            seconds = (found.iteration, found.rollout, found.train, found.total)
            table.add_row(name, *(f"{each:.2f}" for each in seconds), str(found.losses))
        table.add_row(
            f"error (wanted: {LIMITS[kind]:.0%})",
            f"{pair.iteration_error:+.1%}",
            "",
            "",
            f"{pair.total_error:+.1%}",
            "",
        )
    Console(stderr=True).print(table)


def figure(errors: Sequence[float], unit: str) -> dict[str, float | str]:
    return {"value": statistics.median(errors), "low": min(errors), "high": max(errors), "unit": unit}


def figures(found: Mapping[str, Sequence[Pair]], args: argparse.Namespace) -> dict[str, dict[str, float | str]]:
    slots = f"4 + 8 slots paced by {args.profile}"
    units = {
        "cpu": ("fidelity_cpu_error", "simulated / real median iteration time - 1, words-nft on 1 + 1 processes"),
        "paced": ("fidelity_paced_error", f"simulated / real median iteration time - 1, {slots}"),
        "trace": ("fidelity_paced_trace_error", f"simulated / real time of all iterations - 1, {slots}, nodes killed"),
    }
    shown = {}
    for kind, pairs in found.items():
        errors = [pair.total_error if kind == "trace" else pair.iteration_error for pair in pairs]
        shown[units[kind][0]] = figure(errors, units[kind][1])
        for name, seconds in (("real", pairs[0].real), ("simulated", pairs[0].simulated)):
            value = seconds.total if kind == "trace" else seconds.iteration
            shown[f"{kind}_{name}_s"] = {"value": value, "low": value, "high": value, "unit": "s, first repeat"}
    return shown


@contextmanager
def kept_or_not(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True)
        yield folder.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="fidelity-") as scratch:
        yield Path(scratch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(LIMITS), default=list(LIMITS))
    parser.add_argument("--fresh-profile", action="store_true", help=f"measure {CPU_PROFILE} now")
    parser.add_argument("--profile", default=PACED_PROFILE, help="of the paced runs")
    parser.add_argument("--speed", type=float, default=4.0, help="seconds of that profile in one")
    parser.add_argument("--iterations", type=int, default=8, help="that count, after the warm-up")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/fidelity"))
    parser.add_argument("--keep", type=Path, help="a new folder for the runs and their simulations, to look into")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    with kept_or_not(args.keep) as folder:
        profile = None
        if "cpu" in args.only:
            profile = fresh_profile(folder) if args.fresh_profile else Profile.load(CPU_PROFILE)
        found = {kind: pairs_of(kind, args, profile, folder) for kind in args.only}
    summary = {
        "benchmark": "fidelity", **provenance(), "seeds": list(range(args.repeats)), "figures": figures(found, args)
    }  # fmt: skip
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(summary, indent=1) + "\n")
    if profile is not None:
        args.out.with_name(f"{args.out.name}-profile.json").write_bytes(profile.to_json())
    for kind, pairs in found.items():
        show(kind, pairs)
    if args.json:
        print(msgspec.json.encode(summary).decode())


if __name__ == "__main__":
    main()

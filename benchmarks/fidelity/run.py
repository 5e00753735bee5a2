"""Is the simulator right? Iteration times of real runs against simulations of the same recipe.

    python -m benchmarks.fidelity [--only cpu paced trace] [--seeds 0 1 2] [--fresh-profile] [--merge] [--json]

- cpu: `words-nft` really trains on one reserved and one spot process, one thread each, on this machine; the simulation
  takes its durations from the profile `cpu-words`, or with --fresh-profile from one that is measured before each run.
  Two cores are all that such a run has, and its judges, agents and controller need them too: so a profile is measured
  with another slot at work (`spotlight profile --beside 1`).
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

Results are kept by kind and seed; --merge adds to those in --out, so that kinds and seeds can be run one by one.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import yaml

from benchmarks.fidelity.figures import LIMITS, Pair, Runs, Timing, draw, figures, joined, show
from benchmarks.lib.local_runs import WARM_UP, timing, trained
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
from spotlight.runtime.paced.quicker import quicker
from spotlight.runtime.sim.numerics import HashNumerics
from spotlight.runtime.sim.simulate import Simulation, simulate, simulated

CPU_PROFILE, PACED_PROFILE = "cpu-words", "h200-qwen-image-512"
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


def compared(case: Case, folder: Path) -> tuple[Timing, Timing]:
    """The real run and the simulated one."""
    real = trained(configured(case, folder, "real"), folder)
    if case.trace is None:
        return timing(real, case.speed), timing(virtually(case, folder, "simulated"), case.speed)
    # Undisturbed up to the end of its warm-up, whatever comes then: that moment sets the clock.
    start_s = warmed_up(virtually(case, folder, "undisturbed"))
    happened = observed(real, start_s - warmed_up(real), case.speed)
    simulated = virtually(replace(case, trace=happened), folder, "simulated")
    return timing(real, case.speed), timing(simulated, case.speed)


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


def fresh_profile(folder: Path) -> Profile:
    """As `spotlight profile` measures it, with the threads of a worker and the other core as busy as in a run."""
    path = folder / f"{CPU_PROFILE}.json"
    command = [sys.executable, "-m", "spotlight.surface.cli.main", "profile", "--model", "words", "--beside", "1"]
    command += ["--out", str(path)]
    subprocess.run(command, check=True, stdout=sys.stderr, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return Profile.load(path)


def case_of(kind: str, seed: int, args: argparse.Namespace, folder: Path) -> Case:
    if kind == "cpu":
        profile = fresh_profile(folder) if args.fresh_profile else Profile.load(CPU_PROFILE)
        return cpu_case(profile, args.iterations, seed)
    case = paced_case(args.profile, args.iterations, seed, args.speed)
    return with_trace(case, seed) if kind == "trace" else case


def pairs_of(kind: str, args: argparse.Namespace, folder: Path) -> list[Pair]:
    pairs = []
    for seed in args.seeds:
        place = folder / f"{kind}-{seed}"
        place.mkdir()
        case = case_of(kind, seed, args, place)
        real, simulated = compared(case, place)
        profile = f"{case.profile.name} {case.profile.digest}"
        pair = Pair(seed=seed, commit=provenance()["commit"], profile=profile, real=real, simulated=simulated)
        pairs.append(pair)
        show(kind, pairs[-1:])
    return pairs


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
    parser.add_argument("--fresh-profile", action="store_true", help=f"measure {CPU_PROFILE} before each run")
    parser.add_argument("--profile", default=PACED_PROFILE, help="of the paced runs")
    parser.add_argument("--speed", type=float, default=4.0, help="seconds of that profile in one")
    parser.add_argument("--iterations", type=int, default=8, help="that count, after the warm-up")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one run of each kind for each")
    parser.add_argument("--out", type=Path, default=Path("runs/fidelity"))
    parser.add_argument("--merge", action="store_true", help="add to what --out has of other kinds and seeds")
    parser.add_argument("--keep", type=Path, help="a new folder for the runs and their simulations, to look into")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    with kept_or_not(args.keep) as folder:
        found: Runs = {kind: pairs_of(kind, args, folder) for kind in args.only}
    path = args.out.with_suffix(".json")
    runs = joined(path, found) if args.merge else found
    every = sorted({pair.seed for pairs in runs.values() for pair in pairs})
    summary = {
        "benchmark": "fidelity", **provenance(), "seeds": every, "figures": figures(runs, args.profile), "runs": runs
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=1) + b"\n")
    draw(runs, path.with_suffix(".png"))
    for kind, pairs in runs.items():
        show(kind, pairs)
    if args.json:
        print(msgspec.json.encode(summary).decode())

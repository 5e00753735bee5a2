"""Training beside rollouts on this machine: seconds per iteration of real local processes, pipelined against serial.

    python -m benchmarks.pipeline_local [--only balanced generation_bound weights] [--repeats 0 1 2] [--merge] [--json]

`words-nft` trains on one reserved process and is rolled out by one spot process, one thread each, on two cores, without
previews. The same task, the same samples, three ways:
- serial: all is rolled out, then all is trained on; the trainer only trains (batches over samples, the same size);
- gap: the trainer takes complete groups while others are rolled out (`pipeline.gap`, batches over pairs);
- pipelined: it also helps to roll out while it has nothing to train on (`pipeline.tag`).

balanced: rolling out takes about as long as training; serial against pipelined. generation_bound: it takes several
times as long, so that the trainer mostly waits; all three ways. Every repeat runs its ways one after the other,
beginning with another one each time, and a ratio is of one repeat. An iteration's time is from the end of the one
before to its own in the journal, and the first two do not count.

The bounds are arithmetic from the serial run of the same repeat: G seconds of rollouts and T of training in M groups,
and R that nothing overlaps (publication, messages). Serial: G + T + R. GAP: G/M + (M-1) max(G, T)/M + T/M + R. With TAG
both do everything, but training begins after the first group and its last part is the trainer's alone:
max((G + T + T/M)/2, T + G/2M) + R. They take it that two busy cores are each as fast as one, which is not so where
controller, agents and judge need them too.

weights: in deterministic mode, where all ways take the same batches (over pairs, with groups that fill them), the
digests of the weights after each step are the same. With batches over samples gradients are summed in another order, so
there the last bits differ.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.lib.local_runs import WARM_UP, timing, trained
from benchmarks.lib.provenance import provenance
from benchmarks.pipeline_local.figures import Found, Repeat, joined, present
from spotlight.config import load_config
from spotlight.core.events import Record, StepCommitted

RECIPE = "words-nft"
PROMPTS = 8
WAYS: Mapping[str, Mapping[str, Any]] = {
    "serial": {"pipeline": {"gap": False, "tag": False}, "train": {"batches_over": "samples"}},
    "gap": {"pipeline": {"gap": True, "tag": False}, "train": {"batches_over": "pairs"}},
    "pipelined": {"pipeline": {"gap": True, "tag": True}, "train": {"batches_over": "pairs"}},
}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "balanced": {
        "rollout": {"prompts": PROMPTS, "group_size": 8, "steps": 10},
        "algorithm": {"timesteps_per_sample": 2},
        "train": {"updates_per_iteration": 1, "micro_batch": 16},
    },
    "generation_bound": {
        "rollout": {"prompts": PROMPTS, "group_size": 8, "steps": 16},
        "algorithm": {"timesteps_per_sample": 1},
        "train": {"updates_per_iteration": 1, "micro_batch": 8},
    },
}
COMPARED: Mapping[str, tuple[str, ...]] = {"balanced": ("serial", "pipelined"), "generation_bound": tuple(WAYS)}
COMMON: Mapping[str, Any] = {
    "explore": {"enabled": "off"},
    "eval": {"every": 1000, "prompts": 8},
    "cluster": {"reserved": 1, "spot": 1, "threads": 1, "rows": 8},
    "reward": {"processes": 1},
}


def run(setting: str, way: str, seed: int, iterations: int, others: Mapping[str, Any]) -> list[Record]:
    with tempfile.TemporaryDirectory(prefix="pipeline-") as scratch:
        folder = Path(scratch)
        output = {
            "folder": str(folder / "runs"), "name": "real", "checkpoint_every": 1000, "journal": {"sync": "never"}
        }  # fmt: skip
        layers: list[Mapping[str, Any]] = [
            COMMON, SETTINGS[setting], WAYS[way], others, {"seed": seed, "iterations": iterations, "output": output}
        ]  # fmt: skip
        paths = []
        for number, layer in enumerate(layers):
            paths.append(folder / f"{number}.yaml")
            paths[-1].write_text(json.dumps(layer))
        return trained(load_config("+".join([RECIPE, *map(str, paths)])), folder)


def repeat(setting: str, number: int, iterations: int) -> Repeat:
    """The setting's ways, one after the other."""
    ways = COMPARED[setting]
    turn = number % len(ways)
    order = (*ways[turn:], *ways[:turn])
    timings = {}
    for way in order:
        timings[way] = timing(run(setting, way, number, WARM_UP + iterations, {}))
        print(f"{setting} {number} {way}: {timings[way].iteration:.2f} s per iteration", flush=True)
    return Repeat(seed=number, order=order, groups=PROMPTS, timings=timings, **provenance())


def digests(seed: int) -> dict[str, list[str]]:
    """Of the weights after each step, by way."""
    found = {}
    for way in WAYS:
        others = {"deterministic": True, "train": {"batches_over": "pairs"}}
        records = run("balanced", way, seed, WARM_UP + 1, others)
        found[way] = [record.event.digest for record in records if isinstance(record.event, StepCommitted)]
        print(f"weights {way}: {' '.join(found[way])}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = [*SETTINGS, "weights"]
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--repeats", type=int, nargs="+", default=[0, 1, 2], help="their numbers, which are run seeds")
    parser.add_argument("--iterations", type=int, default=3, help="that count, after the warm-up")
    parser.add_argument("--out", type=Path, default=Path("runs/pipeline-local"))
    parser.add_argument("--merge", action="store_true", help="add to what --out has of other settings and repeats")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    found = Found(
        runs={
            setting: [repeat(setting, number, args.iterations) for number in args.repeats]
            for setting in SETTINGS
            if setting in args.only
        },
        digests=digests(args.repeats[0]) if "weights" in args.only else {},
    )
    path = args.out.with_suffix(".json")
    settings = {"recipe": RECIPE, "common": COMMON, "by_setting": SETTINGS, "ways": WAYS}
    present(joined(path, found) if args.merge else found, settings, path, args.json)

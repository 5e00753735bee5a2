"""Runs of `words-nft` on local processes, one way after the other."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.lib.local_runs import WARM_UP, timing, trained
from benchmarks.lib.provenance import provenance
from benchmarks.pipeline_local.figures import Repeat
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
DESCRIBED = {"recipe": RECIPE, "common": COMMON, "by_setting": SETTINGS, "ways": WAYS}
"""Settings, by their names in the result."""


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
    """Run the setting's ways, one after the other."""
    ways = COMPARED[setting]
    turn = number % len(ways)
    order = (*ways[turn:], *ways[:turn])
    timings = {}
    for way in order:
        timings[way] = timing(run(setting, way, number, WARM_UP + iterations, {}))
        print(f"{setting} {number} {way}: {timings[way].iteration:.2f} s per iteration", flush=True)
    return Repeat(seed=number, order=order, groups=PROMPTS, timings=timings, **provenance())


def digests(seed: int) -> dict[str, list[str]]:
    """Digests of the weights after each step, by way."""
    found = {}
    for way in WAYS:
        others = {"deterministic": True, "train": {"batches_over": "pairs"}}
        records = run("balanced", way, seed, WARM_UP + 1, others)
        found[way] = [record.event.digest for record in records if isinstance(record.event, StepCommitted)]
        print(f"weights {way}: {' '.join(found[way])}", flush=True)
    return found

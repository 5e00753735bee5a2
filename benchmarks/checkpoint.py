"""What a checkpoint costs a trainer: how long it is held, and how much slower it trains while the rest is written.

    python benchmarks/checkpoint.py [--rounds 2] [--json]              # needs one CUDA GPU of 141 GB
    python benchmarks/checkpoint.py --model words --device cpu         # tries the script anywhere

The whole Qwen-Image transformer with random weights, LoRA of rank 64, its copies and the optimizer's moments, as the
trainer holds them. A round is: steps of training without anything beside them, a snapshot, then such steps until a
thread has it on disk; the ratio is of the medians of one round. The thread is the product's: `checkpoint.snapshot` and
`checkpoint.write`, forced to a local disk.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from provenance import provenance

from spotlight.compute.profiling.machine import use_tf32, use_threads
from spotlight.compute.profiling.subject import QWEN_IMAGE, Subject, random_qwen_image, tiny_subject
from spotlight.compute.profiling.workload import backward
from spotlight.compute.train import checkpoint
from spotlight.core.types import Size

ALONE = 12
"""Steps without anything beside them."""


@dataclass(frozen=True)
class Round:
    alone_s: list[float]
    beside_s: list[float]
    held_s: float
    written_s: float

    @property
    def slowdown(self) -> float:
        return statistics.median(self.beside_s) / statistics.median(self.alone_s)


def timed(device: torch.device, action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def run(subject: Subject, train: Callable[[], object], folder: Path) -> Round:
    device = subject.adapter.device
    alone_s = [timed(device, train) for _ in range(ALONE)]
    taken: list[checkpoint.Snapshot] = []
    held_s = timed(device, lambda: taken.append(checkpoint.snapshot(subject.trainer)))
    began = time.perf_counter()
    ended: list[float] = []

    def write() -> None:
        checkpoint.write(taken[0], folder / "step")
        ended.append(time.perf_counter())

    writing = threading.Thread(target=write)
    writing.start()
    beside_s = []
    while writing.is_alive():
        beside_s.append(timed(device, train))
    writing.join()
    # The last one ended after the writing did.
    return Round(alone_s, beside_s[:-1] or beside_s, held_s, ended[0] - began)


def subject_of(model: str, device: str) -> Subject:
    if model == QWEN_IMAGE:
        use_tf32(True)
        return random_qwen_image(torch.device(device), Size(512, 512))
    return tiny_subject(model, device)


def figure(values: list[float], unit: str) -> dict[str, float | str]:
    return {"value": statistics.median(values), "low": min(values), "high": max(values), "unit": unit}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=QWEN_IMAGE)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=8, help="pictures of a step")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    use_threads(8 if args.device == "cuda" else 1)
    warnings.filterwarnings("ignore", "torch.distributed is disabled")
    subject = subject_of(args.model, args.device)
    train = backward(subject, args.batch)
    train()
    subject.trainer.optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        rounds = [run(subject, train, Path(folder)) for _ in range(args.rounds)]
    figures = {
        "held_s": figure([each.held_s for each in rounds], "s that the trainer is held"),
        "written_s": figure([each.written_s for each in rounds], "s from then until it is on disk"),
        "slowdown": figure([each.slowdown for each in rounds], "times as long is a step while it is written"),
        "steps_beside": figure([float(len(each.beside_s)) for each in rounds], "steps while it is written"),
        "step_s": figure([statistics.median(each.alone_s) for each in rounds], "s of a step without it"),
    }
    told = {"benchmark": "checkpoint", **provenance(), "seeds": [0], "model": args.model, "figures": figures}
    for name, found in figures.items():
        print(f"{name:14s} {found['value']:.3f} ({found['low']:.3f}, {found['high']:.3f}) {found['unit']}")
    if args.out:
        args.out.write_text(json.dumps(told, indent=1) + "\n")
    if args.json:
        print(json.dumps(told))


if __name__ == "__main__":
    main()

"""What a checkpoint costs a trainer: how long it is held, and how much slower it trains while the rest is written.

    python -m benchmarks.checkpoint [--rounds 2] [--json] [--out FILE]     # needs one CUDA GPU of 141 GB
    python -m benchmarks.checkpoint --model words --device cpu            # tries the script anywhere

The whole Qwen-Image transformer with random weights, LoRA of rank 64, its copies and the optimizer's moments, as the
trainer holds them. A round is: steps of training without anything beside them, a snapshot, then such steps until a
thread has it on disk, with the product's own code (`compute/profiling/writing.py`). `lost_s` is by what these steps
took longer, all together; a ratio is of one round.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import torch

from benchmarks.lib.provenance import provenance
from spotlight.compute.profiling.machine import use_tf32, use_threads
from spotlight.compute.profiling.subject import QWEN_IMAGE, Subject, random_qwen_image, tiny_subject
from spotlight.compute.profiling.workload import backward
from spotlight.compute.profiling.writing import write_beside
from spotlight.core.types import Size


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
    subject = subject_of(args.model, args.device)
    train = backward(subject, args.batch)
    train()
    subject.trainer.optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        rounds = [write_beside(subject, train, Path(folder)) for _ in range(args.rounds)]
    figures = {
        "held_s": figure([each.held_s for each in rounds], "s that the trainer is held"),
        "lost_s": figure([each.lost_s for each in rounds], "s that steps take longer while it is written, in all"),
        "written_s": figure([each.written_s for each in rounds], "s from the copy until it is on disk"),
        "slowdown": figure([each.slowdown for each in rounds], "times as long is a step while it is written, mean"),
        "step_s": figure([each.step_s for each in rounds], "s of a step without it"),
    }
    told = {"benchmark": "checkpoint", **provenance(), "seeds": [0], "model": args.model, "figures": figures}
    for name, found in figures.items():
        print(f"{name:10s} {found['value']:.3f} ({found['low']:.3f}, {found['high']:.3f}) {found['unit']}")
    if args.out:
        args.out.write_text(json.dumps(told, indent=1) + "\n")
    if args.json:
        print(json.dumps(told))

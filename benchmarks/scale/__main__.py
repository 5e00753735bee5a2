"""The simulator at scale: the real control plane over thousands of simulated slots, on one core.

    python -m benchmarks.scale [--preset full|quick] [--json] [--out docs/results/scale]

The work is video: 40 steps of 30 s per sample, one at a time per slot, so a slot makes three samples an hour. Nodes
have eight slots; all but the first are spot nodes of a calm market (nine node-hours per loss), most losses with a
notice. An iteration has ten samples per slot in groups of 16. Every message, journal record and training order is the
product's own; rewards are drawn from a fitted model. Heartbeats are as rare as samples of 20 minutes allow, a flight is
committed when its machine is warned, and there are no crews (`RARE`).

A run ends with the first iteration that ends after its hours of virtual time. Seconds are processor seconds of this
process, set-up included; an event is a message between the controller and the machines. The second kind of run has
pictures of 1280x1280 with the shipped profile, short training too, and the simulator's usual settings.

All of it is Python calls, so the interpreter matters: distributions build theirs with PGO, which is faster than a plain
`./configure && make`. The result names its version and its compiler.

Growth is reported twice: with few slots, the controller's tick every two virtual seconds costs more than all messages,
which favours the ratio to the smallest run.
"""

import platform
from dataclasses import replace
from pathlib import Path

from benchmarks.lib.command import parser, start


def main() -> None:
    flags = parser("scale", __doc__, out=Path("runs/scale"))
    flags.add_argument("--preset", choices=("full", "quick"), default="full")
    flags.add_argument("--repeats", type=int, help="instead of the preset's")
    args = flags.parse_args()
    from benchmarks.lib.report import publish, summary_of
    from benchmarks.scale.run import PRESETS, figures

    preset = PRESETS[args.preset]
    preset = replace(preset, repeats=args.repeats or preset.repeats)
    python = f"{platform.python_implementation()} {platform.python_version()}, {platform.python_compiler()}"
    summary = summary_of("scale", figures(preset), range(preset.repeats), python=python)
    publish(summary, args.out, args.json)


if __name__ == "__main__":
    start("scale", main)

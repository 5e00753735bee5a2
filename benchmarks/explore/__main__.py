"""Does exploration on stale weights pay? The plain loop against the same loop with previewed seeds, in one process.

    python -m benchmarks.explore --preset laptop                                     # `words` with NFT on a CPU
    python -m benchmarks.explore --preset gpu --family words-large --seeds 0 1 2     # one GPU, both arms
    python -m benchmarks.explore --preset gpu --family scenes --seeds 0 --arm explore
    python -m benchmarks.explore --preset gpu --loss flow_grpo --variant 4-of-32 --arm plain oversample whole --jobs 3
    python -m benchmarks.explore --merge runs/explore/*-seed?.json --out docs/results/explore

Both arms share every setting and the prompts. The exploring arm previews the next iteration's prompts with few steps on
the weights before this iteration's updates, keeps the seeds with the largest reward variance, and rolls these out
exactly on fresh weights. Selection is on initial noise: previews are plain ODE samples, and Flow-GRPO draws new window
noise, so there every sample starts from its own noise (rollout.initial_noise=per_sample) in both arms.

Each seed of each arm writes its own file under --out and is skipped when that file exists, so an interrupted benchmark
resumes when it is repeated; `--jobs` runs several at once, also on one GPU. Runs of several machines, or all runs of a
published result, are joined with --merge. The arms may differ in `iterations`: the
exploring arm may end once it has passed the plain one. If it ended before, `--until` compares at the plain arm's score
after fewer iterations, and the figure says so.
"""

import argparse
import os
import sys
from typing import TYPE_CHECKING

from benchmarks.explore.grpo_study import VARIANTS
from benchmarks.lib.command import start
from benchmarks.lib.parallel import run_all
from benchmarks.lib.recipes import config_of, recipe_parser, result_path, seeds_of
from spotlight.config import RunConfig
from spotlight.control.explore.config import Baseline
from spotlight.core.errors import ConfigError

if TYPE_CHECKING:
    from benchmarks.explore.figures import ExploreSettings

ARMS = ("plain", "explore", "oversample", "whole")
SEEDS_PER_KEPT = 4
"""Previews per kept seed without --previews: 64 for groups of 16."""


def arguments() -> argparse.Namespace:
    parser = recipe_parser("explore", __doc__)
    parser.add_argument("--arm", nargs="+", choices=("both", *ARMS), default=["both"], help="both: plain and explore")
    parser.add_argument("--variant", choices=tuple(VARIANTS), help="settings of the Flow-GRPO study (grpo_study.py)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once; default 1")
    parser.add_argument(
        "--previews", type=int, help="seeds previewed, or rollouts chosen from, per prompt; default 4 times the group"
    )
    parser.add_argument("--preview-steps", type=int, default=6, help="denoising steps of a preview")
    parser.add_argument("--baseline", choices=("kept", "audited"), default="kept", help="as explore.baseline")
    parser.add_argument("--audit-share", type=float, default=0.1, help="unselected seeds drawn for --baseline audited")
    parser.add_argument("--audit-every", type=int, default=5, help="iterations between audits of the previews")
    parser.add_argument("--audit-prompts", type=int, default=8, help="prompts that an audit rolls out in full")
    parser.add_argument(
        "--until",
        nargs=2,
        action="append",
        default=[],
        metavar=("EXPERIMENT", "ITERATION"),
        help="with --merge: read plain runs of this experiment (such as scenes_nft) up to this iteration only, where "
        "the exploring ones did not get further",
    )
    parser.add_argument("--mixed", action="store_true", help="with --merge: seeds may differ in commit and iterations")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    from benchmarks.explore import figures
    from benchmarks.explore.figures import Arm

    if args.merge:
        until = {experiment: int(iteration) for experiment, iteration in args.until}
        runs = [run for path in args.merge for run in figures.read_all(path)]
        figures.present(runs, args.out, args.json, until, args.mixed)
        return
    arms = [Arm.PLAIN, Arm.EXPLORE] if "both" in args.arm else [Arm(name) for name in args.arm]
    configs = [explored_config(args, seed, Arm.EXPLORE in arms) for seed in seeds_of(args)]
    settings, variant = settings_of(args, configs[0]), args.variant or ""
    from benchmarks.explore.run import ArmRun, run_arm

    wanted = [
        ArmRun(result_path(args.out, config, f"{variant}-{arm}".removeprefix("-")), config, arm, settings, variant)
        for config in configs
        for arm in arms
    ]
    for run in wanted:
        if run.path.exists():
            figures.check_same_run(run.path, run.config, settings)
            print(f"{run.path} exists; not run again", file=sys.stderr)
    run_all(run_arm, [run for run in wanted if not run.path.exists()], args.jobs, "runs")
    figures.present([figures.read(run.path) for run in wanted], args.out / "explore", args.json)


def explored_config(args: argparse.Namespace, seed: int, previews: bool) -> RunConfig:
    """The recipe with the flags' settings; `previews`: an arm selects among initial noises."""
    if strayed := [override for override in args.overrides if override.startswith("explore.")]:
        raise ConfigError(
            f"the override '{strayed[0]}' is about the scheduled loop's exploration, which does not run here; use "
            "--previews and --preview-steps."
        )
    changes = []
    if args.preset == "gpu":
        changes += ["eval.every=2", f"reward.processes={max(1, len(os.sched_getaffinity(0)) // args.jobs)}"]
    if args.loss == "flow_grpo":
        changes += ["rollout.initial_noise=per_sample"]
    if args.variant:
        if args.loss != "flow_grpo":
            raise ConfigError(f"--variant {args.variant} is about the window of Flow-GRPO; add --loss flow_grpo.")
        changes += VARIANTS[args.variant].changes
    config = config_of(args, seed, changes)
    if previews and config.rollout.initial_noise.value == "shared":
        raise ConfigError(
            "rollout.initial_noise is shared, so the seeds of a group differ in window noise alone and previews cannot "
            "select among them; leave it at per_sample here, or use --arm plain oversample."
        )
    return config


def settings_of(args: argparse.Namespace, config: RunConfig) -> "ExploreSettings":
    from benchmarks.explore.figures import ExploreSettings

    drawn = VARIANTS[args.variant].drawn if args.variant else None
    previews = args.previews or drawn or SEEDS_PER_KEPT * config.rollout.group_size
    if previews <= config.rollout.group_size:
        raise ConfigError(
            f"--previews is {previews}, but {config.rollout.group_size} seeds of each prompt are kept, so nothing "
            "would be selected; preview more than rollout.group_size."
        )
    for option, value in (("preview-steps", args.preview_steps), ("audit-every", args.audit_every)):
        if value < 1:
            raise ConfigError(f"--{option} is {value}, which is below 1; use 1 or more.")
    return ExploreSettings(
        previews=previews,
        steps=args.preview_steps,
        audit_every=args.audit_every,
        audit_prompts=args.audit_prompts,
        baseline=Baseline(args.baseline),
        audit_share=args.audit_share,
    )


if __name__ == "__main__":
    start("explore", main)

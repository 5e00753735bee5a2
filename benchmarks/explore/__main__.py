"""Does exploration on stale weights pay? The plain loop against the same loop with previewed seeds, in one process.

    python -m benchmarks.explore --preset laptop                                     # `words` with NFT on a CPU
    python -m benchmarks.explore --preset gpu --family words-large --seeds 0 1 2     # one GPU, both arms
    python -m benchmarks.explore --preset gpu --family scenes --seeds 0 --arm explore
    python -m benchmarks.explore --merge runs/explore/*-seed?.json --out docs/results/explore

Both arms share every setting and the prompts. The exploring one previews the next iteration's prompts with few steps on
the weights before this iteration's updates, keeps the seeds with the largest reward variance, and rolls these out
exactly on fresh weights. Selection is on initial noise: previews are plain ODE samples, and Flow-GRPO draws its window
noise anew, so there every sample starts from its own noise (rollout.initial_noise=per_sample) in both arms.

Each seed of each arm writes its own file under --out and is skipped when that file exists, so a run resumes by being
repeated and runs from several machines are joined with --merge. The arms may differ in `iterations`: the exploring one
need not go on after it has passed the plain one; where it was cut short before, `--until` compares at the score that
the plain one had after fewer iterations, and the figure says so.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from spotlight.config import RunConfig, load_config
from spotlight.control.explore.config import Baseline
from spotlight.core.errors import ConfigError, SpotlightError

if TYPE_CHECKING:
    from benchmarks.explore.figures import Arm, ExploreSettings

SEEDS_PER_KEPT = 4
"""Previews per kept seed where nothing else is asked for: 64 for groups of 16."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=("laptop", "gpu"), default="laptop")
    parser.add_argument("--family", help="words, words-large or scenes; default words, or words-large on a GPU")
    parser.add_argument("--loss", choices=("nft", "flow_grpo"), default="nft")
    parser.add_argument("--arm", choices=("plain", "explore", "both"), default="both")
    parser.add_argument("--seeds", type=int, nargs="+", default=None)
    parser.add_argument("--previews", type=int, help="seeds previewed per prompt; default 4 times the group size")
    parser.add_argument("--preview-steps", type=int, default=6, help="denoising steps of a preview")
    parser.add_argument("--baseline", choices=("kept", "audited"), default="kept", help="as explore.baseline")
    parser.add_argument("--audit-share", type=float, default=0.1, help="unselected seeds drawn for --baseline audited")
    parser.add_argument("--audit-every", type=int, default=5, help="iterations between audits of the previews")
    parser.add_argument("--audit-prompts", type=int, default=8, help="prompts that an audit rolls out in full")
    parser.add_argument("--out", type=Path, default=Path("runs/explore"))
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="join result files instead of running")
    parser.add_argument(
        "--until",
        nargs=2,
        action="append",
        default=[],
        metavar=("EXPERIMENT", "ITERATION"),
        help="with --merge: read plain runs of this experiment (such as scenes_nft) up to this iteration only, where "
        "the exploring ones did not get further",
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    # Heavy imports wait until here: reward processes import this file again and need none of them.
    from benchmarks.explore import figures as explore_results
    from benchmarks.explore.figures import Arm

    if args.merge:
        until = {experiment: int(iteration) for experiment, iteration in args.until}
        explore_results.present([explore_results.read(path) for path in args.merge], args.out, args.json, until)
        return
    configs = [config_of(args, seed) for seed in args.seeds or ([0] if args.preset == "laptop" else [0, 1, 2])]
    settings = settings_of(args, configs[0])
    arms = [Arm.PLAIN, Arm.EXPLORE] if args.arm == "both" else [Arm(args.arm)]
    paths = []
    for config in configs:
        for arm in arms:
            path = (
                args.out / f"{Path(config.model.name).stem}-{config.algorithm.kind}-{arm.value}-seed{config.seed}.json"
            )
            paths.append(path)
            if path.exists():
                explore_results.check_same_run(path, config, settings)
                print(f"{path} exists; not run again", file=sys.stderr)
            else:
                run(config, arm, settings, path)
    explore_results.present([explore_results.read(path) for path in paths], args.out / "explore", args.json)


def config_of(args: argparse.Namespace, seed: int) -> RunConfig:
    """The recipe of family and loss; what this benchmark changes in it can be overridden."""
    if strayed := [override for override in args.overrides if override.startswith("explore.")]:
        raise ConfigError(
            f"the override '{strayed[0]}' is about the scheduled loop's exploration, which does not run here; use "
            "--previews and --preview-steps."
        )
    family = args.family or ("words" if args.preset == "laptop" else "words-large")
    changes = [f"seed={seed}", f"model.device={'cpu' if args.preset == 'laptop' else 'cuda'}"]
    if args.preset == "gpu":
        changes += ["eval.every=2", f"reward.processes={len(os.sched_getaffinity(0))}"]
    if args.loss == "flow_grpo":
        changes += ["rollout.initial_noise=per_sample"]
    config = load_config(f"{family}-{args.loss.replace('_', '-')}", [*changes, *args.overrides])
    if config.rollout.initial_noise.value == "shared":
        raise ConfigError(
            "rollout.initial_noise is shared, so the seeds of a group differ in window noise alone and previews cannot "
            "select among them; leave it at per_sample here."
        )
    return config


def settings_of(args: argparse.Namespace, config: RunConfig) -> "ExploreSettings":
    from benchmarks.explore.figures import ExploreSettings

    previews = args.previews or SEEDS_PER_KEPT * config.rollout.group_size
    if previews <= config.rollout.group_size:
        raise ConfigError(
            f"--previews is {previews}, but {config.rollout.group_size} seeds of each prompt are kept, so nothing "
            "would be selected; preview more than rollout.group_size."
        )
    for option, value in (("preview-steps", args.preview_steps), ("audit-every", args.audit_every)):
        if value < 1:
            raise ConfigError(f"--{option} is {value}, but there is no less than one at a time; use 1 or more.")
    return ExploreSettings(
        previews=previews,
        steps=args.preview_steps,
        audit_every=args.audit_every,
        audit_prompts=args.audit_prompts,
        baseline=Baseline(args.baseline),
        audit_share=args.audit_share,
    )


def run(config: RunConfig, arm: "Arm", settings: "ExploreSettings", path: Path) -> None:
    """One seed of one arm; nothing is written before its device is known to be there."""
    from benchmarks.explore.run import run_arm
    from spotlight.compute.models.devices import usable_device

    usable_device(config.model.device)
    path.parent.mkdir(parents=True, exist_ok=True)
    run_arm(config, arm, settings, path)


if __name__ == "__main__":
    try:
        main()
    except SpotlightError as error:
        print(f"explore: {error}", file=sys.stderr)
        sys.exit(error.exit_code)

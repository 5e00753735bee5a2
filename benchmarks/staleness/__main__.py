"""Can weights that are some iterations old select seeds? Their ranking of seeds against exact rewards, by lag.

    python -m benchmarks.staleness --preset laptop                                    # `words` with NFT on a CPU
    python -m benchmarks.staleness --preset gpu --family scenes --loss flow_grpo --seeds 0 1 2
    python -m benchmarks.staleness --merge runs/staleness/*-seed?.json --out docs/results/staleness

The plain loop trains, without exploration. At an early, a middle and a late checkpoint the next prompts' candidate
seeds are drawn exactly, and again with older weights: with all steps, and with the few steps of a preview. Two
references bound the results: the same weights with new noise inside the SDE window, and a random choice. NFT rollouts
are ODE samples, so the same weights with all steps rank perfectly by definition; the ceiling of few-step previews is
that of the same weights with few steps.

Flow-GRPO runs with `rollout.initial_noise=per_sample`, because seeds that share the initial noise cannot be selected.
Each seed writes its own file under --out and is skipped when that file exists, so an interrupted benchmark resumes when
it is repeated. Runs of several machines are joined with --merge. An interrupted seed leaves a .part file, which can be
merged too: only checkpoints that all seeds of an experiment have are counted.
"""

import argparse
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.lib.command import start
from benchmarks.lib.recipes import config_of, recipe_parser, result_path, run_once, seeds_of
from spotlight.config import RunConfig
from spotlight.core.errors import ConfigError

if TYPE_CHECKING:
    from benchmarks.staleness.figures import StalenessSettings

CANDIDATES_PER_KEPT = 3
"""Seeds ranked per kept one without --candidates: 48 for groups of 16."""


def arguments() -> argparse.Namespace:
    parser = recipe_parser("staleness", __doc__)
    parser.add_argument("--checkpoints", type=int, nargs="+", default=[8, 16, 32], metavar="ITERATION")
    parser.add_argument("--lags", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--prompts", type=int, default=16, help="prompts whose seeds are ranked at a checkpoint")
    parser.add_argument("--candidates", type=int, help="seeds ranked per prompt; default 3 times the group size")
    parser.add_argument("--preview-steps", type=int, default=6, help="denoising steps of a few-step preview")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    from benchmarks.staleness import figures

    if args.merge:
        figures.present([figures.read(path) for path in args.merge], args.out, args.json)
        return
    configs = [ranked_config(args, seed) for seed in seeds_of(args)]
    settings = settings_of(args, configs[0])
    paths = [result_path(args.out, config) for config in configs]
    from benchmarks.staleness.run import run_seed

    for config, path in zip(configs, paths, strict=True):
        check = partial(figures.check_same_run, path, config, settings)
        run_once(path, check, partial(run_seed, config, settings, path))
    figures.present([figures.read(path) for path in paths], args.out / "staleness", args.json)


def ranked_config(args: argparse.Namespace, seed: int) -> RunConfig:
    if strayed := [override for override in args.overrides if override.startswith("iterations=")]:
        raise ConfigError(
            f"the override '{strayed[0]}' has no effect here, since a run ends at its last checkpoint; use "
            "--checkpoints."
        )
    changes = ["rollout.initial_noise=per_sample"] if args.loss == "flow_grpo" else []
    return config_of(args, seed, [*changes, f"iterations={max(args.checkpoints)}"])


def settings_of(args: argparse.Namespace, config: RunConfig) -> "StalenessSettings":
    from benchmarks.staleness.figures import StalenessSettings

    return StalenessSettings(
        checkpoints=tuple(args.checkpoints),
        lags=tuple(args.lags),
        prompts=args.prompts,
        candidates=args.candidates or CANDIDATES_PER_KEPT * config.rollout.group_size,
        kept=config.rollout.group_size,
        preview_steps=args.preview_steps,
    )


if __name__ == "__main__":
    start("staleness", main)

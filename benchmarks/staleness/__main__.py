"""Can weights that are some iterations old choose seeds? Their ranking of seeds against exact rewards, by lag.

    python -m benchmarks.staleness --preset laptop                                    # `words` with NFT on a CPU
    python -m benchmarks.staleness --preset gpu --family scenes --loss flow_grpo --seeds 0 1 2
    python -m benchmarks.staleness --merge runs/staleness/*-seed?.json --out docs/results/staleness

The plain loop trains, without exploration. At an early, a middle and a late checkpoint the next prompts' candidate
seeds are drawn exactly, and again with the weights of some iterations before: with all steps, and with the few steps
of a preview. Two ceilings frame what comes: the same weights with new noise inside the SDE window, and a random
choice. For NFT rollouts are ODE samples, so the same weights with all steps rank perfectly by definition; the few-step
previews' own ceiling is that of the same weights with few steps.

Flow-GRPO runs with `rollout.initial_noise=per_sample`, since seeds that share it leave nothing to choose between.
Each seed writes its own file under --out and is skipped when that file exists, so a run resumes by being repeated and
runs from several machines are joined with --merge; a seed cut short leaves a .part file, which can be merged too: only
checkpoints that all seeds of an experiment have are counted.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spotlight.config import RunConfig, load_config
from spotlight.core.errors import ConfigError, SpotlightError

if TYPE_CHECKING:
    from benchmarks.staleness.figures import StalenessSettings

CANDIDATES_PER_KEPT = 3
"""Seeds ranked per kept one where nothing else is asked for: 48 for groups of 16."""


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=("laptop", "gpu"), default="laptop")
    parser.add_argument("--family", help="words, words-large or scenes; default words, or words-large on a GPU")
    parser.add_argument("--loss", choices=("nft", "flow_grpo"), default="nft")
    parser.add_argument("--seeds", type=int, nargs="+", default=None)
    parser.add_argument("--checkpoints", type=int, nargs="+", default=[8, 16, 32], metavar="ITERATION")
    parser.add_argument("--lags", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--prompts", type=int, default=16, help="prompts whose seeds are ranked at a checkpoint")
    parser.add_argument("--candidates", type=int, help="seeds ranked per prompt; default 3 times the group size")
    parser.add_argument("--preview-steps", type=int, default=6, help="denoising steps of a few-step preview")
    parser.add_argument("--out", type=Path, default=Path("runs/staleness"))
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="join result files instead of running")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    args = arguments(words)
    # Heavy imports wait until here: reward processes import this file again and need none of them.
    from benchmarks.staleness import figures as staleness_results

    if args.merge:
        staleness_results.present([staleness_results.read(path) for path in args.merge], args.out, args.json)
        return
    configs = [config_of(args, seed) for seed in args.seeds or ([0] if args.preset == "laptop" else [0, 1, 2])]
    settings = settings_of(args, configs[0])
    paths = []
    for config in configs:
        path = args.out / f"{Path(config.model.name).stem}-{config.algorithm.kind}-seed{config.seed}.json"
        paths.append(path)
        if path.exists():
            staleness_results.check_same_run(path, config, settings)
            print(f"{path} exists; not run again", file=sys.stderr)
        else:
            run(config, settings, path)
    staleness_results.present([staleness_results.read(path) for path in paths], args.out / "staleness", args.json)


def config_of(args: argparse.Namespace, seed: int) -> RunConfig:
    """The recipe of family and loss; what this benchmark changes in it can be overridden."""
    if strayed := [override for override in args.overrides if override.startswith("iterations=")]:
        raise ConfigError(
            f"the override '{strayed[0]}' has no say here, since a run ends at its last checkpoint; use --checkpoints."
        )
    family = args.family or ("words" if args.preset == "laptop" else "words-large")
    changes = [f"seed={seed}", f"model.device={'cpu' if args.preset == 'laptop' else 'cuda'}"]
    if args.loss == "flow_grpo":
        changes += ["rollout.initial_noise=per_sample"]
    changes += [f"iterations={max(args.checkpoints)}"]
    return load_config(f"{family}-{args.loss.replace('_', '-')}", [*changes, *args.overrides])


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


def run(config: RunConfig, settings: "StalenessSettings", path: Path) -> None:
    """One seed; nothing is written before its device is known to be there."""
    from benchmarks.staleness.run import run_seed
    from spotlight.compute.models.devices import usable_device

    usable_device(config.model.device)
    path.parent.mkdir(parents=True, exist_ok=True)
    run_seed(config, settings, path)


if __name__ == "__main__":
    try:
        main()
    except SpotlightError as error:
        print(f"staleness: {error}", file=sys.stderr)
        sys.exit(error.exit_code)

"""The plainest post-training run: one process, no scheduler, no exploration; either family, either loss.

    python -m benchmarks.learn --preset laptop                 # `words` with NFT on two CPU cores, minutes
    python -m benchmarks.learn --preset gpu --family scenes    # one GPU
    python -m benchmarks.learn --merge A.json B.json --out docs/results/learn-words

Each seed writes its own file under --out and is skipped when that file exists, so a run resumes by being repeated and
runs from several machines are joined with --merge. The curve is the held-out score: fixed prompts and seeds.
"""

import argparse
import sys
from pathlib import Path

from spotlight.config import RunConfig, load_config
from spotlight.core.errors import SpotlightError


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=("laptop", "gpu"), default="laptop")
    parser.add_argument("--family", help="words, words-large or scenes; default words, or words-large on a GPU")
    parser.add_argument("--loss", choices=("nft", "flow_grpo"), default="nft")
    parser.add_argument("--seeds", type=int, nargs="+", default=None)
    parser.add_argument("--out", type=Path, default=Path("runs/learn"))
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="join seed files instead of running")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    # Heavy imports wait until here: reward processes import this file again and need none of them.
    from benchmarks.learn import figures as learn_results

    if args.merge:
        learn_results.present([learn_results.read(path) for path in args.merge], args.out, args.json)
        return
    family = args.family or ("words" if args.preset == "laptop" else "words-large")
    recipe = f"{family}-{args.loss.replace('_', '-')}"
    seeds = args.seeds if args.seeds is not None else ([0] if args.preset == "laptop" else [0, 1, 2])
    device = "cpu" if args.preset == "laptop" else "cuda"
    configs = [load_config(recipe, [f"seed={seed}", f"model.device={device}", *args.overrides]) for seed in seeds]
    paths = [args.out / f"{Path(c.model.name).stem}-{c.algorithm.kind}-seed{c.seed}.json" for c in configs]
    for config, path in zip(configs, paths, strict=True):
        if path.exists():
            learn_results.check_same_run(path, config)
            print(f"{path} exists; not run again", file=sys.stderr)
        else:
            run(config, path)
    learn_results.present([learn_results.read(path) for path in paths], args.out / "learn", args.json)


def run(config: RunConfig, path: Path) -> None:
    """One seed; nothing is written before its device is known to be there."""
    from benchmarks.learn.run import run_seed
    from spotlight.compute.models.devices import usable_device

    usable_device(config.model.device)
    path.parent.mkdir(parents=True, exist_ok=True)
    run_seed(config, path)


if __name__ == "__main__":
    try:
        main()
    except SpotlightError as error:
        print(f"learn: {error}", file=sys.stderr)
        sys.exit(error.exit_code)

"""The plainest post-training run: one process, no scheduler, no exploration; either family, either loss.

    python -m benchmarks.learn --preset laptop                 # `words` with NFT on two CPU cores, minutes
    python -m benchmarks.learn --preset gpu --family scenes    # one GPU
    python -m benchmarks.learn --merge A.json B.json --out docs/results/learn-words

Each seed writes its own file under --out and is skipped when that file exists, so an interrupted benchmark resumes when
it is repeated. Runs of several machines are joined with --merge. The curve is the held-out score: fixed prompts and
seeds.
"""

from functools import partial

from benchmarks.lib.command import start
from benchmarks.lib.recipes import config_of, recipe_parser, result_path, run_once, seeds_of


def main() -> None:
    args = recipe_parser("learn", __doc__).parse_args()
    from benchmarks.learn import figures

    if args.merge:
        figures.present([figures.read(path) for path in args.merge], args.out, args.json)
        return
    configs = [config_of(args, seed) for seed in seeds_of(args)]
    paths = [result_path(args.out, config) for config in configs]
    from benchmarks.learn.run import run_seed

    for config, path in zip(configs, paths, strict=True):
        run_once(path, partial(figures.check_same_run, path, config), partial(run_seed, config, path))
    figures.present([figures.read(path) for path in paths], args.out / "learn", args.json)


if __name__ == "__main__":
    start("learn", main)

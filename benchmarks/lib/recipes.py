"""Flags and result files of benchmarks that train a recipe in one process, seed by seed."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.lib.command import parser
from spotlight.config import RunConfig, load_config


def recipe_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    made = parser(name, description, out=Path(f"runs/{name}"))
    made.add_argument("--preset", choices=("laptop", "gpu"), default="laptop")
    made.add_argument("--family", help="words, words-large or scenes; default words, or words-large on a GPU")
    made.add_argument("--loss", choices=("nft", "flow_grpo"), default="nft")
    made.add_argument("--seeds", type=int, nargs="+", help="default 0, or 0 1 2 on a GPU")
    made.add_argument("--set", dest="overrides", nargs="*", default=[], metavar="SECTION.KEY=VALUE")
    made.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="join result files instead of running")
    return made


def seeds_of(args: argparse.Namespace) -> list[int]:
    if args.seeds is not None:
        return list(args.seeds)
    return [0] if args.preset == "laptop" else [0, 1, 2]


def config_of(args: argparse.Namespace, seed: int, changes: Sequence[str] = ()) -> RunConfig:
    """The recipe of family and loss with these changes, which --set overrides."""
    is_laptop = args.preset == "laptop"
    family = args.family or ("words" if is_laptop else "words-large")
    own = [f"seed={seed}", f"model.device={'cpu' if is_laptop else 'cuda'}"]
    return load_config(f"{family}-{args.loss.replace('_', '-')}", [*own, *changes, *args.overrides])


def result_path(folder: Path, config: RunConfig, arm: str = "") -> Path:
    parts = [Path(config.model.name).stem, config.algorithm.kind, arm, f"seed{config.seed}.json"]
    return folder / "-".join(part for part in parts if part)


def run_once(path: Path, check: Callable[[], None], run: Callable[[], None]) -> None:
    """Check an existing result, else run, so that an interrupted benchmark resumes when it is repeated."""
    if path.exists():
        check()
        print(f"{path} exists; not run again", file=sys.stderr)
    else:
        run()

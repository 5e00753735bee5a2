"""The cells of one variant: a setup of the headline with other settings."""

from argparse import Namespace

from benchmarks.batches.variants import VARIANTS
from benchmarks.headline.run import run_seed
from spotlight.core.errors import InputError

PROFILE, TRACE = "h200-qwen-image-512", "calm@0.5"


def run_variant(args: Namespace, name: str) -> None:
    variants = VARIANTS[args.family]
    if name not in variants:
        raise InputError(f"{args.family} has no variant '{name}'; choose from {', '.join(variants)}.")
    setup, settings = variants[name]
    wanted = Namespace(
        family=args.family,
        setups=[setup],
        profiles=[PROFILE],
        traces=[TRACE],
        numerics="real",
        device=args.device,
        remember=None,
        same_batches=True,
        overrides=[*settings, *args.overrides],
        out=args.out / name,
    )
    wanted.out.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        run_seed(wanted, seed)

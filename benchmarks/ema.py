"""Learning curves of one training run as seen through two averages of its weights: with warm-up and without.

    python benchmarks/ema.py                                             # `words` with NFT, three seeds, on a CPU
    python benchmarks/ema.py --merge runs/ema/*-seed?-*.json --out docs/results/ema

Evaluation uses an exponential average of the trained weights, which feeds nothing back into training. So one run per
seed carries both averages (`train.ema_warmup` true and false) and evaluates both at the same iterations, on the same
prompts and noise. Each seed writes one file per average under --out, each of them the curve of an ordinary run with
that setting; a seed whose files exist is skipped, so a run resumes by being repeated.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spotlight.config import RunConfig, load_config
from spotlight.core.errors import InputError, SpotlightError

if TYPE_CHECKING:
    from learn_results import Figure, SeedResult

RECIPE = "words-nft"
NAMES = {True: "warmup", False: "constant"}
SHOWN = (2, 4, 6, 10, 20)
"""Iterations whose scores are reported, beside the last."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/ema"))
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="join seed files instead of running")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    # Heavy imports wait until here: reward processes import this file again and need none of them.
    import learn_results

    if args.merge:
        present([learn_results.read(path) for path in args.merge], args.out, args.json)
        return
    paths: list[Path] = []
    for seed in args.seeds:
        changes = ["eval.every=2", *args.overrides, f"seed={seed}"]
        configs = {warm: load_config(RECIPE, [*changes, f"train.ema_warmup={warm}"]) for warm in NAMES}
        ours = {warm: args.out / f"{RECIPE}-seed{seed}-{name}.json" for warm, name in NAMES.items()}
        paths += ours.values()
        if all(path.exists() for path in ours.values()):
            for warm, path in ours.items():
                learn_results.check_same_run(path, configs[warm])
            print(f"seed {seed} is done; not run again", file=sys.stderr)
        else:
            args.out.mkdir(parents=True, exist_ok=True)
            run_seed(configs, ours)
    present([learn_results.read(path) for path in paths], args.out / "ema", args.json)


def run_seed(configs: dict[bool, RunConfig], paths: dict[bool, Path]) -> None:
    """One training run; both averages are evaluated before it and every `eval.every` iterations."""
    import learn_results
    import torch
    from learner import Learner, Recorder, console

    from spotlight.compute.rewards.in_process import scorer
    from spotlight.compute.train.trainer import Trainer, UpdateReport
    from spotlight.compute.train.weight_sets import WeightSet, WeightSets

    config = configs[True]

    class BothAverages(Trainer):
        """`sets` has the average with warm-up, `constant` the one without."""

        def __init__(self, learner: Learner) -> None:
            super().__init__(learner.adapter, config.train, config.algorithm, config.seed)
            self.constant = WeightSets(learner.adapter.transformer, {WeightSet.EMA})

        def finish(self, iteration: int) -> UpdateReport:
            report = super().finish(iteration)
            self.constant.follow(WeightSet.EMA, configs[False].train.ema_decay_at(int(self.updates)))
            return report

    torch.set_num_threads(learn_results.threads(config.model.device))
    with console.status("loading") as status, scorer(config.reward, config.model.device) as pool:
        learner = Learner(config, pool)
        trainer = learner.trainer = BothAverages(learner)
        recorders = {warm: Recorder(configs[warm], learner.adapter.family, path) for warm, path in paths.items()}

        def evaluate(iteration: int) -> None:
            for warm, recorder in recorders.items():
                kept = trainer.sets
                trainer.sets = kept if warm else trainer.constant
                recorder.record(iteration, learner.evaluate(judged=False))
                trainer.sets = kept

        evaluate(0)
        for iteration in range(config.iterations):
            status.update(f"seed {config.seed}: iteration {iteration + 1} of {config.iterations}")
            learner.iterate(iteration)
            done = iteration + 1
            if done % config.eval.every == 0 or done == config.iterations:
                evaluate(done)
    for path in paths.values():
        path.with_suffix(".part").replace(path)


def pairs_of(results: Sequence["SeedResult"]) -> "list[tuple[SeedResult, SeedResult]]":
    """With and without warm-up, by seed; everything else must be the same."""
    found: dict[int, dict[bool, SeedResult]] = {}
    for result in results:
        found.setdefault(result.seed, {})[result.config["train"]["ema_warmup"]] = result
    if len(results) != 2 * len(found) or any(len(pair) < 2 for pair in found.values()):
        raise InputError(
            f"{len(results)} files of {len(found)} seeds were given, but each seed has one file with warm-up and one "
            "without; pass both of every seed, each once."
        )
    pairs = [(pair[True], pair[False]) for _, pair in sorted(found.items())]
    first = {**pairs[0][0].config, "seed": None, "train": None}
    for one, other in pairs:
        alike = [{**each.config, "seed": None, "train": None} == first for each in (one, other)]
        if not all(alike) or len(one.points) != len(other.points):
            raise InputError(
                f"the files of seed {one.seed} are of other settings than the first; merge one experiment."
            )
    return pairs


def figures_of(pairs: "Sequence[tuple[SeedResult, SeedResult]]") -> "dict[str, Figure]":
    """Mean over seeds with the lowest and highest; gains are of the same training run."""
    import numpy as np
    from learn_results import Figure

    def over(values: Sequence[float], unit: str) -> Figure:
        return Figure(value=float(np.mean(values)), low=min(values), high=max(values), unit=unit)

    iterations = [point.iteration for point in pairs[0][0].points]
    figures: dict[str, Figure] = {}
    for place, iteration in enumerate(iterations):
        if iteration not in (*SHOWN, iterations[-1]):
            continue
        warm, constant = ([run.points[place] for run in runs] for runs in zip(*pairs, strict=True))
        figures[f"warmup_reward_{iteration}"] = over([point.reward for point in warm], "held-out reward")
        figures[f"constant_reward_{iteration}"] = over([point.reward for point in constant], "held-out reward")
        gains = [one.reward - other.reward for one, other in zip(warm, constant, strict=True)]
        figures[f"gain_{iteration}"] = over(gains, "held-out reward")
    means = [
        float(np.mean([a.reward - b.reward for a, b in zip(one.points, other.points, strict=True)]))
        for one, other in pairs
    ]
    figures["mean_gain"] = over(means, "held-out reward, over all evaluations")
    return figures


def present(results: Sequence["SeedResult"], out: Path, as_json: bool) -> None:
    """Print the table, write OUT.json and OUT.png."""
    import msgspec
    from rich.console import Console
    from rich.table import Table

    pairs = pairs_of(results)
    figures, first = figures_of(pairs), pairs[0][0]
    summary = {
        "benchmark": "ema",
        "commit": first.commit,
        "date": first.date,
        "hardware": first.hardware,
        "seeds": [pair[0].seed for pair in pairs],
        "figures": msgspec.to_builtins(figures),
        "runs": msgspec.to_builtins([run for pair in pairs for run in pair]),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(summary, indent=1) + "\n")
    draw(pairs, out.with_suffix(".png"))
    table = Table("figure", "mean", "lowest seed", "highest seed", "unit", title=f"{first.hardware}, {first.commit}")
    for name, figure in figures.items():
        table.add_row(name, *(f"{x:.3f}" for x in (figure.value, figure.low, figure.high)), figure.unit)
    Console().print(table)
    Console(stderr=True).print(f"curve {out.with_suffix('.png')}, figures {out.with_suffix('.json')}", soft_wrap=True)
    if as_json:
        print(json.dumps({key: value for key, value in summary.items() if key != "runs"}))


def draw(pairs: "Sequence[tuple[SeedResult, SeedResult]]", path: Path) -> None:
    """Held-out reward and strict score against iterations: the mean over seeds in bold, a line per seed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharex=True)
    decay = pairs[0][0].config["train"]["ema_decay"]
    labels = {True: f"warm-up to {decay:g}", False: f"constant {decay:g}"}
    for colour, (warm, label) in zip(("#0072b2", "#d55e00"), labels.items(), strict=True):
        runs = [pair[0 if warm else 1] for pair in pairs]
        iterations = [point.iteration for point in runs[0].points]
        for axis, field in zip(axes, ("reward", "strict"), strict=True):
            curves = np.array([[getattr(point, field) for point in run.points] for run in runs], dtype=float)
            for curve in curves:
                axis.plot(iterations, curve, color=colour, linewidth=0.7, alpha=0.5)
            axis.plot(iterations, curves.mean(0), color=colour, linewidth=2, label=label)
    for axis, title in zip(axes, ("held-out reward (graded)", "held-out exact match"), strict=True):
        axis.set_title(title)
        axis.set_xlabel("iteration")
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize=8, loc="lower right")
    updates = pairs[0][0].config["train"]["updates_per_iteration"]
    seeds = f"{len(pairs)} seed{'s' if len(pairs) > 1 else ''}"
    figure.suptitle(
        f"{RECIPE}, one training run per seed seen through two averages; {seeds}, {updates} optimizer steps per "
        f"iteration; {pairs[0][0].hardware}",
        fontsize=9,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    try:
        main()
    except SpotlightError as error:
        print(f"ema: {error}", file=sys.stderr)
        sys.exit(error.exit_code)

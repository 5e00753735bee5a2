"""Files, figures and the picture of exploration against none; shared by `explore.py` runs and merges.

The ratio of iterations, per seed: the target is the mean of the last two held-out evaluations of the plain run; both
runs are asked when they first reach it, interpolated linearly between evaluations; the plain run's answer is divided
by the exploring run's. A run that explores and never reaches the target counts with the iterations it had, which
bounds its ratio from above, and the figure's unit says so.
"""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from pydantic import Field
from rich.console import Console
from rich.table import Table

from benchmarks.learn.figures import CurvePoint, Figure, SeedResult
from spotlight.config import RunConfig
from spotlight.control.explore.config import Baseline
from spotlight.core.errors import InputError
from spotlight.core.section import Section

SPEED_ONLY = {"seed", "reward.processes"}
"""Settings in which runs may differ and still be of one experiment."""


AUDITED = {
    "captured_variance": "of the best possible choice",
    "payoff": "times the variance of random seeds",
    "spearman": "within prompts",
    "pearson": "within prompts",
    "kept_shift": "stds of a prompt's seeds, mean of kept seeds above that of all",
    "kept_shift_rms": "stds of a prompt's seeds, root mean square over prompts",
}
"""Figures of the audits that are reported, with their units."""


class Arm(StrEnum):
    PLAIN = "plain"
    EXPLORE = "explore"


class ExploreSettings(Section):
    """What is previewed, and how often previews are audited."""

    previews: int = Field(ge=1)
    """Seeds previewed per prompt."""
    steps: int = Field(default=6, ge=1)
    """Denoising steps of a preview."""
    audit_every: int = Field(default=5, ge=1)
    """Iterations between audits."""
    audit_prompts: int = Field(default=8, ge=0)
    """Prompts whose unselected seeds are all rolled out in an audit; charged, never trained on."""
    baseline: Baseline = Baseline.KEPT
    """What advantages are measured from."""
    audit_share: float = Field(default=0.1, gt=0, le=1)
    """Of the unselected seeds, that are rolled out for an audited baseline."""


class AuditPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What one audit found, and the exact samples that it cost."""

    iteration: int
    figures: dict[str, float]
    samples: int


class ArmResult(SeedResult, frozen=True, kw_only=True):
    """One run of one seed of one arm."""

    arm: Arm
    explore: dict[str, int | float | str] | None = None
    audits: tuple[AuditPoint, ...] = ()
    previews: int = 0
    """Drawn in all."""

    @property
    def experiment(self) -> str:
        return f"{self.family}, {self.loss}"


def read(path: Path) -> ArmResult:
    try:
        return msgspec.json.decode(path.read_bytes(), type=ArmResult)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path} is not the result of an arm ({error}); pass files that explore.py wrote.") from error


def check_same_run(path: Path, config: RunConfig, settings: ExploreSettings) -> None:
    """A finished run stands for this one only if it was made with the same settings."""
    found = read(path)
    wanted = {"config": config.model_dump(mode="json")}
    have: dict[str, Any] = {"config": found.config}
    if found.arm is Arm.EXPLORE:
        wanted["exploration"] = settings.model_dump(mode="json")
        have["exploration"] = found.explore or {}
    changed = differences(have, wanted)
    if changed:
        raise InputError(
            f"{path} was made with other settings ({', '.join(changed)}), so it is not this run's result; choose "
            "another --out, or delete it to run anew."
        )


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Dotted names of the settings that differ, but for those that change no outcome."""
    a, b = _flat(one), _flat(other)
    names = sorted(name for name in {*a, *b} if a.get(name) != b.get(name))
    return [name for name in names if name not in SPEED_ONLY]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        name = key if not prefix or prefix == "config" else f"{prefix}.{key}"
        flat |= _flat(value, name) if isinstance(value, dict) else {name: value}
    return flat


def check_mergeable(results: Sequence[ArmResult]) -> None:
    """Within an experiment nothing but seed, arm and length differs, nothing comes twice, figure names do not clash."""
    for experiment in experiments(results):
        runs = [run for run in results if run.experiment == experiment]
        if len({(run.arm, run.seed) for run in runs}) < len(runs):
            raise InputError(f"a run of {experiment} is given twice; pass each file once.")
        for run in runs[1:]:
            twin = next(other for other in runs if other.arm is run.arm)
            changed = differences({"config": twin.config}, {"config": run.config})
            changed += ["explore"] if run.explore != twin.explore else []
            # One arm may stop earlier than the other; nothing else of a run depends on its length.
            across = differences({"config": runs[0].config}, {"config": run.config})
            changed += [name for name in across if name != "iterations" and name not in changed]
            if changed or run.commit != runs[0].commit:
                raise InputError(
                    f"seeds {runs[0].seed} and {run.seed} of {experiment} differ in "
                    f"{', '.join(changed) or 'their commit'}; merge runs of one setting and one commit."
                )
    names = {}
    for run in results:
        other = names.setdefault(prefix_of(run), run.family)
        if other != run.family:
            raise InputError(f"the results are of {other} and {run.family}, whose figures share names; merge one.")


def experiments(results: Sequence[ArmResult]) -> list[str]:
    return sorted({run.experiment for run in results})


def prefix_of(run: ArmResult) -> str:
    """Start of its figures' names: `words` for either size of words."""
    return f"{run.family.split('-')[0]}_{run.loss}"


def present(results: Sequence[ArmResult], out: Path, as_json: bool, until: Mapping[str, int] | None = None) -> None:
    """Print the table, write OUT.json and OUT.png; `until` shortens what is read of some experiments' plain runs."""
    check_mergeable(results)
    figures: dict[str, Figure] = {}
    for experiment in experiments(results):
        runs = [run for run in results if run.experiment == experiment]
        figures |= figures_of(runs, (until or {}).get(prefix_of(runs[0])))
    first = results[0]
    summary = {
        "benchmark": "explore",
        "commit": ", ".join(sorted({run.commit for run in results})),
        "date": first.date,
        "hardware": first.hardware,
        "seeds": sorted({run.seed for run in results}),
        "figures": msgspec.to_builtins(figures),
        "runs": msgspec.to_builtins(list(results)),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(summary, indent=1) + "\n")
    draw(results, out.with_suffix(".png"), until or {})
    table = Table(title=f"{first.hardware}, {summary['commit']}")
    table.add_column("figure", no_wrap=True)
    for column in ("mean", "lowest seed", "highest seed", "unit"):
        table.add_column(column)
    for name, figure in figures.items():
        shown = ("-" if x is None else f"{x:.3f}" for x in (figure.value, figure.low, figure.high))
        table.add_row(name, *shown, figure.unit)
    Console().print(table)
    Console(stderr=True).print(f"curve {out.with_suffix('.png')}, figures {out.with_suffix('.json')}", soft_wrap=True)
    if as_json:
        print(json.dumps({key: value for key, value in summary.items() if key != "runs"}))


def figures_of(runs: Sequence[ArmResult], until: int | None = None) -> dict[str, Figure]:
    """All figures of one experiment; ratios come from seeds that ran both arms."""
    prefix = prefix_of(runs[0])
    by_arm = {arm: {run.seed: run for run in runs if run.arm is arm} for arm in Arm}
    both = sorted(by_arm[Arm.PLAIN].keys() & by_arm[Arm.EXPLORE].keys())
    pairs = [(shortened(by_arm[Arm.PLAIN][seed], until), by_arm[Arm.EXPLORE][seed]) for seed in both]
    figures = ratio_figures(prefix, pairs, until) if both else {}
    for arm, of_seed in by_arm.items():
        if of_seed:
            ends = [run.points[-1] for run in of_seed.values()]
            figures[f"{prefix}_{arm.value}_final_reward"] = over_seeds([end.reward for end in ends], "reward")
            figures[f"{prefix}_{arm.value}_seconds"] = over_seeds([end.seconds for end in ends], "s")
            if all(end.strict is not None for end in ends):
                strict = [float(end.strict or 0) for end in ends]
                figures[f"{prefix}_{arm.value}_final_strict"] = over_seeds(strict, "share")
    for name, unit in AUDITED.items():
        values = [mean for run in by_arm[Arm.EXPLORE].values() if (mean := audit_mean(run, name)) is not None]
        if values:
            figures[f"{prefix}_{name}"] = over_seeds(values, unit)
    return figures


def shortened(run: ArmResult, until: int | None) -> ArmResult:
    """As if it had ended there: nothing of a run depends on its length."""
    if until is None:
        return run
    return msgspec.structs.replace(run, points=[point for point in run.points if point.iteration <= until])


def ratio_figures(
    prefix: str, pairs: Sequence[tuple[ArmResult, ArmResult]], until: int | None = None
) -> dict[str, Figure]:
    """Iterations to the plain run's final score, and their ratio, over seeds."""
    needed_plain, needed_explore, ratios = [], [], []
    missed = 0
    for plain, explore in pairs:
        score = final_score(plain)
        own, reached = first_reaching(plain.points, score), first_reaching(explore.points, score)
        if reached is None:
            missed += 1
            reached = float(explore.points[-1].iteration)
        # A plain run that ends no better than it began has no target worth a ratio.
        if own is not None and own > 0 and reached > 0:
            needed_plain.append(own)
            needed_explore.append(reached)
            ratios.append(own / reached)
    bound = f"; upper bound, {missed} of {len(pairs)} never reached the score" if missed else ""
    bound += f"; plain runs read up to iteration {until}" if until is not None else ""
    return {
        f"{prefix}_iterations_ratio": over_seeds(ratios, f"times fewer iterations{bound}"),
        f"{prefix}_plain_iterations": over_seeds(needed_plain, "iterations to the plain run's final score"),
        f"{prefix}_explore_iterations": over_seeds(needed_explore, f"iterations to the plain run's final score{bound}"),
    }


def final_score(run: ArmResult) -> float:
    """Mean of the last two held-out evaluations, which is steadier than the last one."""
    return float(np.mean([point.reward for point in run.points[-2:]]))


def first_reaching(points: Sequence[CurvePoint], score: float) -> float | None:
    """Iterations until the reward first reaches the score, interpolated; None where it never does."""
    if points[0].reward >= score:
        return 0.0
    for before, after in pairwise(points):
        if after.reward >= score:
            share = (score - before.reward) / (after.reward - before.reward)
            return before.iteration + share * (after.iteration - before.iteration)
    return None


def audit_mean(run: ArmResult, name: str) -> float | None:
    values = [audit.figures[name] for audit in run.audits if name in audit.figures]
    return float(np.mean(values)) if values else None


def over_seeds(values: Sequence[float], unit: str) -> Figure:
    if not values:
        return Figure(value=None, low=None, high=None, unit=unit)
    return Figure(value=float(np.mean(values)), low=min(values), high=max(values), unit=unit)


COLOURS = {Arm.PLAIN: "#0072b2", Arm.EXPLORE: "#d55e00"}
LABELS = {Arm.PLAIN: "without exploration", Arm.EXPLORE: "with exploration"}


def draw(results: Sequence[ArmResult], path: Path, until: Mapping[str, int]) -> None:
    """A column per experiment: held-out reward of both arms, below it what the audits found."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = experiments(results)
    figure, axes = plt.subplots(2, len(names), figsize=(5.5 * len(names), 6.5), squeeze=False, height_ratios=(2, 1))
    for column, name in enumerate(names):
        runs = [run for run in results if run.experiment == name]
        _draw_rewards(axes[0][column], name, runs, until.get(prefix_of(runs[0])))
        _draw_audits(axes[1][column], [run for run in runs if run.audits])
    figure.suptitle(f"line: mean, band: lowest to highest seed; {results[0].hardware}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_rewards(axis: Any, title: str, runs: Sequence[ArmResult], until: int | None) -> None:
    for arm in Arm:
        own = [run for run in runs if run.arm is arm]
        if own:
            label = f"{LABELS[arm]} ({len(own)} {'seed' if len(own) == 1 else 'seeds'})"
            _band(axis, [[(p.iteration, p.reward) for p in run.points] for run in own], COLOURS[arm], label)
    plain = [final_score(shortened(run, until)) for run in runs if run.arm is Arm.PLAIN]
    if plain:
        axis.axhline(float(np.mean(plain)), color=COLOURS[Arm.PLAIN], linestyle=":", linewidth=1)
    axis.set_title(title)
    axis.set_ylabel("held-out reward")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8, loc="lower right")


def _draw_audits(axis: Any, runs: Sequence[ArmResult]) -> None:
    for name, colour in (("captured_variance", "#009e73"), ("spearman", "#cc79a7")):
        curves = [[(a.iteration, a.figures[name]) for a in run.audits if name in a.figures] for run in runs]
        curves = [curve for curve in curves if curve]
        if curves:
            _band(axis, curves, colour, name.replace("_", " "))
            axis.legend(frameon=False, fontsize=8, loc="lower right")
    axis.set_ylim(0, 1)
    axis.set_xlabel("iteration")
    axis.set_ylabel("audit")
    axis.grid(alpha=0.3)


def _band(axis: Any, curves: Sequence[Sequence[tuple[int, float]]], colour: str, label: str) -> None:
    shortest = min(len(curve) for curve in curves)
    iterations = [iteration for iteration, _ in curves[0][:shortest]]
    values = np.array([[value for _, value in curve[:shortest]] for curve in curves])
    axis.plot(iterations, values.mean(0), color=colour, linewidth=2, label=label)
    axis.fill_between(iterations, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)

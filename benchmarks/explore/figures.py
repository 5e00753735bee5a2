"""Runs of both arms, and the figures of exploration against none.

The ratio of iterations, per seed: the target is the mean of the last two held-out evaluations of the plain run. The
iterations until the plain run first reaches it, linearly between evaluations, are divided by those of the exploring
run. A run that explores and never reaches the target counts with the iterations it had, which bounds its ratio from
above, and the figure's unit says so.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
from pydantic import Field

from benchmarks.learn.figures import CurvePoint, SeedResult
from benchmarks.lib import merge
from benchmarks.lib.figures import Figure
from benchmarks.lib.report import publish, summary_of
from spotlight.config import RunConfig
from spotlight.control.explore.config import Baseline
from spotlight.core.section import Section

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
    """Previews choose the seeds of a group."""
    OVERSAMPLE = "oversample"
    """A group is chosen among more finished rollouts."""
    WHOLE = "whole"
    """All rollouts of `oversample` are trained on: its rollout budget without selection."""


COMPARED = ((Arm.PLAIN, Arm.EXPLORE), (Arm.PLAIN, Arm.OVERSAMPLE), (Arm.WHOLE, Arm.OVERSAMPLE))
"""Pairs of arms whose iterations are compared."""


class ExploreSettings(Section):
    """Settings of previews and their audits."""

    previews: int = Field(ge=1)
    """Seeds previewed per prompt."""
    steps: int = Field(default=6, ge=1)
    """Denoising steps of a preview."""
    audit_every: int = Field(default=5, ge=1)
    """Iterations between audits."""
    audit_prompts: int = Field(default=8, ge=0)
    """Prompts whose unselected seeds are all rolled out in an audit; charged, never trained on."""
    baseline: Baseline = Baseline.KEPT
    """Baseline of the advantages."""
    audit_share: float = Field(default=0.1, gt=0, le=1)
    """Share of the unselected seeds that is rolled out for an audited baseline."""


class AuditPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one audit, and the exact samples that it cost."""

    iteration: int
    figures: dict[str, float]
    samples: int


class ArmResult(SeedResult, frozen=True, kw_only=True):
    """One run of one seed of one arm."""

    arm: Arm
    variant: str = ""
    """Name of other settings of all arms (`grpo_study.py`); empty: none."""
    explore: dict[str, int | float | str] | None = None
    audits: tuple[AuditPoint, ...] = ()
    previews: int = 0
    """Total number of previews."""

    @property
    def label(self) -> str:
        return ", ".join(part for part in (self.family, self.loss, self.variant) if part)


class PublishedRuns(msgspec.Struct, frozen=True):
    """A published result, of which only the runs are read."""

    runs: list[ArmResult]


def read(path: Path) -> ArmResult:
    return merge.read(path, ArmResult, "explore")


def read_all(path: Path) -> list[ArmResult]:
    """The run of a file, or all runs of a published result."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=PublishedRuns).runs
    except (OSError, msgspec.DecodeError):
        return [read(path)]


def check_same_run(path: Path, config: RunConfig, settings: ExploreSettings) -> None:
    found = read(path)
    have, wanted = found.config, config.model_dump(mode="json")
    if found.arm is not Arm.PLAIN:
        have = {**have, "exploration": found.explore or {}}
        wanted |= {"exploration": settings.model_dump(mode="json")}
    merge.check_same_settings(path, have, wanted)


def check_mergeable(results: Sequence[ArmResult], mixed: bool = False) -> None:
    """Within an experiment only seed, arm and length differ, no run comes twice, and figure names do not clash.

    With `mixed` seeds may also differ in their commit and their length; the runs of one seed are of one commit.
    """
    for experiment in experiments(results):
        runs = [run for run in results if run.label == experiment]
        merge.check_given_once([(run.arm, run.seed) for run in runs], experiment)
        for run in runs[1:]:
            twin = next(other for other in runs if other.arm is run.arm)
            changed = merge.differences(twin.config, run.config)
            changed += ["explore"] if run.explore != twin.explore else []
            # One arm may stop earlier than the other; nothing else in a run depends on its length.
            across = merge.differences(runs[0].config, run.config)
            changed += [name for name in across if name != "iterations" and name not in changed]
            changed = [name for name in changed if not (mixed and name == "iterations")]
            same_seed = next(other for other in runs if other.seed == run.seed)
            merge.check_one_experiment(same_seed if mixed else runs[0], run, changed, experiment)
    merge.check_prefixes((prefix_of(run), run.family) for run in results)


def experiments(results: Sequence[ArmResult]) -> list[str]:
    return sorted({run.label for run in results})


def prefix_of(run: ArmResult) -> str:
    """Prefix of the run's figures: `words` for either size of words."""
    name = f"{run.family.split('-')[0]}_{run.loss}"
    return f"{name}_{run.variant.replace('-', '_')}" if run.variant else name


def present(
    results: Sequence[ArmResult],
    out: Path,
    as_json: bool,
    until: Mapping[str, int] | None = None,
    mixed: bool = False,
) -> None:
    """Print the table, write OUT.json and OUT.png; `until` limits the plain runs of some experiments."""
    from benchmarks.explore.plot import draw

    check_mergeable(results, mixed)
    figures: dict[str, Figure] = {}
    for experiment in experiments(results):
        runs = [run for run in results if run.label == experiment]
        figures |= figures_of(runs, (until or {}).get(prefix_of(runs[0])))
    draw(results, out.with_suffix(".png"), until or {})
    summary = summary_of("explore", figures, sorted({run.seed for run in results}), merge.stamp_of(results))
    publish(summary, out, as_json, runs=list(results))


def figures_of(runs: Sequence[ArmResult], until: int | None = None) -> dict[str, Figure]:
    """All figures of one experiment; ratios come from seeds that ran both arms."""
    from benchmarks.explore.fixed_measures import fixed_figures

    prefix = prefix_of(runs[0])
    by_arm = {arm: {run.seed: run for run in runs if run.arm is arm} for arm in Arm}
    figures: dict[str, Figure] = {}
    for base, arm in COMPARED:
        pairs = [(by_arm[base][seed], by_arm[arm][seed]) for seed in sorted(by_arm[base].keys() & by_arm[arm].keys())]
        name = prefix if arm is Arm.EXPLORE else f"{prefix}_{arm.value}_vs_{base.value}"
        if pairs:
            figures |= ratio_figures(name, [(shortened(one, until), other) for one, other in pairs], until)
            figures |= fixed_figures(name, base, arm, pairs)
    for arm, of_seed in by_arm.items():
        if of_seed:
            ends = [run.points[-1] for run in of_seed.values()]
            figures[f"{prefix}_{arm.value}_final_reward"] = Figure.mean([end.reward for end in ends], "reward")
            figures[f"{prefix}_{arm.value}_seconds"] = Figure.mean([end.seconds for end in ends], "s")
            if all(end.strict is not None for end in ends):
                strict = [float(end.strict or 0) for end in ends]
                figures[f"{prefix}_{arm.value}_final_strict"] = Figure.mean(strict, "share")
    for name, unit in AUDITED.items():
        values = [mean for run in by_arm[Arm.EXPLORE].values() if (mean := audit_mean(run, name)) is not None]
        if values:
            figures[f"{prefix}_{name}"] = Figure.mean(values, unit)
    return figures


def shortened(run: ArmResult, until: int | None) -> ArmResult:
    """The run up to an iteration: nothing in a run depends on its length."""
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
        # A plain run that ends no better than it began has no target for a ratio.
        if own is not None and own > 0 and reached > 0:
            needed_plain.append(own)
            needed_explore.append(reached)
            ratios.append(own / reached)
    bound = f"; upper bound, {missed} of {len(pairs)} never reached the score" if missed else ""
    bound += f"; plain runs read up to iteration {until}" if until is not None else ""
    to_score = "iterations to the plain run's final score"
    return {
        f"{prefix}_iterations_ratio": Figure.mean(ratios, f"times fewer iterations{bound}"),
        f"{prefix}_plain_iterations": Figure.mean(needed_plain, to_score),
        f"{prefix}_explore_iterations": Figure.mean(needed_explore, f"{to_score}{bound}"),
    }


def final_score(run: ArmResult) -> float:
    """Mean of the last two held-out evaluations: less noisy than the last one."""
    return float(np.mean([point.reward for point in run.points[-2:]]))


def first_reaching(points: Sequence[CurvePoint], score: float) -> float | None:
    """Iterations until the reward first reaches the score, interpolated; None if it never does."""
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

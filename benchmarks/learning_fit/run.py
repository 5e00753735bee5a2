"""Measurements of the base models, and fits of result files to the simulator's model of learning."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from benchmarks.lib.figures import Figure
from spotlight.assets import asset
from spotlight.sim.learning import LearningModel

Floats = NDArray[np.float64]
RESULTS = Path("docs/results")
EXACT_STEPS = 10
PREVIEW_STEPS = (2, 3, 4, 5, 6, 8)
PROMPTS, SEEDS = 24, 32
BATCH = 32
STALE_FIDELITY = 0.94
"""Correlation of previews with all steps on weights one iteration old: the upper limit of all previews."""
RATES = np.geomspace(1e-4, 0.5, 4000)


class PreviewRanks(msgspec.Struct, frozen=True, kw_only=True):
    """Correlations within prompts of one base model."""

    prompts: int
    seeds: int
    second_order: dict[int, float]
    fp8_steps: int
    fp8: float
    """Correlation of previews with `fp8_steps` second-order steps in fp8."""

    @property
    def fp8_share(self) -> float:
        """Correlation in fp8 over that of exact previews; fp8 does not improve a ranking."""
        return min(1.0, self.fp8 / self.second_order[self.fp8_steps])


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Rewards of one base model: their spreads, and their correlation with previews."""

    family: str
    prompts: int
    seeds: int
    mean: float
    prompt_std: float
    seed_std: float
    fidelity: dict[int, float]
    ranks: PreviewRanks | None = None


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Held-out points of one run, over progress."""

    source: str
    is_exploring: bool
    progress: tuple[float, ...]
    rewards: tuple[float, ...]


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """One recipe, and the results with runs of it."""

    name: str
    family: str
    sources: tuple[str, ...]


SUBJECTS = (
    Subject(name="words-nft", family="words", sources=("learn-laptop",)),
    Subject(name="words-large-nft", family="words-large", sources=("explore", "learn-words")),
    Subject(name="scenes-nft", family="scenes", sources=("explore", "learn-scenes")),
)


# -- measure -----------------------------------------------------------------------------------------------------------


def measure(family: str) -> Measured:
    """Draw groups of the base model, exactly and with fewer steps from the same noise."""
    import torch

    from spotlight.compute.data.order import PromptOrder
    from spotlight.compute.evaluation import generate
    from spotlight.compute.models import families
    from spotlight.compute.rewards.in_process import InProcessScorer
    from spotlight.core.types import Sampling

    torch.set_num_threads(1)
    adapter = families.load(family)
    world = families.world_of(adapter)
    judge = InProcessScorer()
    order = PromptOrder(world.prompts("train"), 0)
    prompts = [prompt for prompt in order.take(0, PROMPTS) for _ in range(SEEDS)]
    seeds = list(range(SEEDS)) * PROMPTS
    rewards: dict[int, Floats] = {}
    for steps in (EXACT_STEPS, *PREVIEW_STEPS):
        print(f"{family}: {len(prompts)} pictures of {steps} steps", file=sys.stderr, flush=True)
        images = generate(adapter, prompts, Sampling(steps=steps, size=adapter.native_size), 0, seeds, BATCH)
        rewards[steps] = judge.score(world.reward, images, prompts).total.reshape(PROMPTS, SEEDS)
    exact = rewards[EXACT_STEPS]
    within = float(exact.var(axis=1, ddof=1).mean())
    between = float(exact.mean(axis=1).var(ddof=1)) - within / SEEDS
    return Measured(
        family=family,
        prompts=PROMPTS,
        seeds=SEEDS,
        mean=float(exact.mean()),
        prompt_std=max(0.0, between) ** 0.5,
        seed_std=within**0.5,
        fidelity={steps: pooled_correlation(rewards[steps], exact) for steps in PREVIEW_STEPS},
    )


def pooled_correlation(x: Floats, y: Floats) -> float:
    """Correlation within rows, pooled over all rows."""
    x, y = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
    return float((x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()))


# -- fit ---------------------------------------------------------------------------------------------------------------


def curves(subject: Subject) -> list[Curve]:
    """Runs of the subject's family with the NFT loss."""
    found = []
    for source in subject.sources:
        for run in json.loads((RESULTS / f"{source}.json").read_text())["runs"]:
            if (run["family"], run["loss"]) != (subject.family, "nft"):
                continue
            payoffs = [audit["figures"]["payoff"] for audit in run.get("audits", [])]
            pace = float(np.mean(payoffs)) if payoffs else 1.0
            iterations = [point["iteration"] for point in run["points"]]
            # The first iteration has no previews.
            progress = tuple(float(min(n, 1) + pace * max(n - 1, 0)) for n in iterations)
            rewards = tuple(point["reward"] for point in run["points"])
            found.append(Curve(source=source, is_exploring=bool(payoffs), progress=progress, rewards=rewards))
    return found


def audited(subject: Subject) -> dict[int, float]:
    """Mean correlation of previews with exact rewards that audits of real runs found, by steps."""
    found: dict[int, list[float]] = {}
    for source in subject.sources:
        for run in json.loads((RESULTS / f"{source}.json").read_text())["runs"]:
            if (run["family"], run["loss"]) == (subject.family, "nft") and run.get("audits"):
                values = [audit["figures"]["pearson"] for audit in run["audits"]]
                found.setdefault(run["explore"]["steps"], []).extend(values)
    return {steps: float(np.mean(values)) for steps, values in sorted(found.items())}


def fit_curve(points: Sequence[Curve]) -> tuple[float, float, float]:
    """Base, limit and rate: for a given rate the best limit has a closed form, so only rates are searched."""
    progress = np.concatenate([np.asarray(curve.progress) for curve in points])
    rewards = np.concatenate([np.asarray(curve.rewards) for curve in points])
    base = float(np.mean([curve.rewards[0] for curve in points]))
    best = (np.inf, base, 0.0)
    for rate in RATES:
        closed = 1 - np.exp(-rate * progress)
        limit = min(1.0, base + float((closed * (rewards - base)).sum() / (closed * closed).sum()))
        error = float(((base + (limit - base) * closed - rewards) ** 2).sum())
        best = min(best, (error, limit, float(rate)))
    return base, best[1], best[2]


def fit(subject: Subject, measured: Measured) -> LearningModel:
    runs, seen = curves(subject), audited(subject)
    base, limit, rate = fit_curve(runs)
    ratios = [rho / measured.fidelity[steps] for steps, rho in seen.items()]
    scale = float(np.mean(ratios)) if ratios else STALE_FIDELITY
    # Previews of all steps on the same weights would be exact.
    same = measured.fidelity | {EXACT_STEPS: 1.0}
    rising = np.maximum.accumulate([min(STALE_FIDELITY, scale * same[steps]) for steps in sorted(same)])
    target = (
        f"the audits of {' and '.join(map(str, seen))} steps" if seen else "stale weights, since no run was audited"
    )
    assumed = f"scaled by {scale:.3f} to {target}, and {STALE_FIDELITY} at most, as stale weights alone rank"
    ranked = (
        f" second_order, fp8: {measured.ranks.prompts} prompts of {measured.ranks.seeds} seeds, scaled alike."
        if measured.ranks
        else ""
    )
    files = ", ".join(f"docs/results/{source}.json" for source in subject.sources)
    return LearningModel(
        name=subject.name,
        source=(
            f"base, limit, rate: {files}; an iteration that explored is assumed to be worth its audited payoff. "
            f"prompt_std, seed_std, fidelity: base model of {subject.family}, {measured.prompts} prompts of "
            f"{measured.seeds} seeds on the CPU (docs/results/learning_fit.json); fidelity {assumed}.{ranked}"
        ),
        base=round(base, 4),
        limit=round(limit, 4),
        rate=round(rate, 5),
        prompt_std=round(measured.prompt_std, 4),
        seed_std=round(measured.seed_std, 4),
        fidelity={steps: round(float(rho), 3) for steps, rho in zip(sorted(same), rising, strict=True)},
        second_order={
            steps: round(min(STALE_FIDELITY, scale * rho), 3)
            for steps, rho in (measured.ranks.second_order.items() if measured.ranks else ())
        },
        fp8=round(measured.ranks.fp8_share, 3) if measured.ranks else 1.0,
    )


def residuals(model: LearningModel, runs: Sequence[Curve]) -> dict[str, float]:
    """Root mean square distance of held-out rewards from the fit, by kind of run."""
    found: dict[str, float] = {}
    for name, group in (("plain", False), ("exploring", True)):
        errors = [
            model.mean(progress) - reward
            for run in runs
            if run.is_exploring is group
            for progress, reward in zip(run.progress, run.rewards, strict=True)
        ]
        if errors:
            found[name] = float(np.sqrt(np.mean(np.square(errors))))
    return found


# -- command -----------------------------------------------------------------------------------------------------------


def measured_before(path: Path) -> dict[str, Measured]:
    if not path.exists():
        return {}
    return msgspec.convert(json.loads(path.read_text())["measured"], dict[str, Measured], strict=False)


def fit_all(measured: Mapping[str, Measured]) -> tuple[dict[str, Figure], Table]:
    """Write the assets; return the residuals of each fit and a table of the parameters."""
    figures: dict[str, Figure] = {}
    table = Table("fit", "base", "limit", "rate", "prompt", "seed", "fidelity", "residuals")
    for subject in SUBJECTS:
        model = fit(subject, measured[subject.family])
        asset("learning").joinpath(f"{subject.name}.json").write_bytes(
            msgspec.json.format(msgspec.json.encode(model), indent=1) + b"\n"
        )
        errors = residuals(model, curves(subject))
        for kind, error in errors.items():
            name = f"{subject.name.replace('-', '_')}_{kind}_residual"
            figures[name] = Figure.single(error, "reward, root mean square")
        shown = "  ".join(f"{steps}: {rho:.2f}" for steps, rho in model.fidelity.items())
        left = "  ".join(f"{kind} {error:.4f}" for kind, error in errors.items())
        numbers = (model.base, model.limit, model.rate, model.prompt_std, model.seed_std)
        table.add_row(subject.name, *(f"{number:.4f}" for number in numbers), shown, left)
    return figures, table

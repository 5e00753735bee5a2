"""Fits of the headline's real curves, one for setups that explore and one for the others, in their own settings.

Spreads and fidelity are those of the recipe's fit. `limit`, `rate` and `lag` are least squares over the held-out points
of each seed in FITTED, and of all. `noise` is from the second differences of all plain curves, in which a smooth curve
vanishes.
Progress of an exploring run is that of a simulation with modelled numbers in the same settings.

A modelled race is checked by its outcome: how many times fewer iterations ours takes to the final score of
`reserved-only`, by means of two evaluations on both sides. `benchmarks.headline --check` compares whole races on
recorded markets.
"""

import math
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.headline import cells
from benchmarks.headline.real_curves import RealCurve, RealCurves, read_curves
from benchmarks.headline.run import cell_name, contest_of, run_cell
from benchmarks.headline.setups import BASELINE, FITTED, PROFILES, STEADY, TASKS, fit_of
from benchmarks.lib.crossings import first_reaching_mean
from benchmarks.lib.figures import Figure
from spotlight.sim.learning import LearningModel, ModelNumerics

Floats = NDArray[np.float64]
OURS = "spotlight-fixed"
RATES = np.geomspace(1e-3, 0.5, 1200)
LAGS = np.concatenate([[0.0], np.geomspace(0.5, 60.0, 40)])
DRAWS = 200
"""Modelled races of each seed behind a ratio."""


class Scores(msgspec.Struct, frozen=True):
    """Held-out points of one setup: iterations, progress after them, and scores by seed."""

    iterations: Floats
    progress: Floats
    by_seed: dict[int, Floats]


def fit_headline(path: Path, settings: Sequence[tuple[str, ...]] = ()) -> dict[str, Figure]:
    """Write the fits of all tasks; return their errors. `settings` are (family, override) in which curves differ."""
    real, figures = read_curves(path), dict[str, Figure]()
    for family in sorted(TASKS):
        changed = [override for name, override in settings if name == family]
        scores = {setup: scores_of(real, family, setup, changed) for setup in (BASELINE, OURS)}
        noise = noise_of([scores[BASELINE].by_seed[seed] for seed in FITTED])
        models = {
            (setup, seed): fitted(family, setup, scores[setup], (seed,) if seed else FITTED, noise, real.origin)
            for setup in scores
            for seed in (None, *FITTED)
        }
        for (setup, seed), model in models.items():
            fit_of(family, setup, seed).write_bytes(msgspec.json.format(msgspec.json.encode(model), indent=1) + b"\n")
        others = {
            (setup, seed): fitted(
                family, setup, scores[setup], [each for each in FITTED if each != seed], noise, real.origin
            )
            for setup in scores
            for seed in FITTED
        }
        figures |= errors_of(family, models, scores) | held_out_errors(family, others, scores)
    return figures


def scores_of(real: RealCurves, family: str, setup: str, changed: list[str]) -> Scores:
    curves: dict[int, RealCurve] = {seed: real.of[family, setup, seed] for seed in FITTED}
    iterations = np.array([at for at, _ in curves[FITTED[0]].scores], dtype=float)
    by_seed = {seed: np.array([score for _, score in curve.scores]) for seed, curve in curves.items()}
    progress = iterations if setup == BASELINE else simulated_progress(family, changed, iterations)
    return Scores(iterations, progress, by_seed)


def simulated_progress(family: str, changed: list[str], iterations: Floats) -> Floats:
    """Progress of ours after these iterations, from the scores of a simulation whose curve is a plain exponential."""
    plain = LearningModel.load(f"{family}-nft")
    with tempfile.TemporaryDirectory() as folder:
        args = Namespace(
            family=family, same_batches=False, device="cpu", overrides=changed, numerics="model", out=Path(folder)
        )
        contest = replace(contest_of(args, PROFILES[0], STEADY, OURS, 0), learning=plain.name)
        numerics = ModelNumerics(plain, 0, contest.config(OURS, 0).rollout.steps)
        run_cell(args, contest, PROFILES[0], STEADY, OURS, 0, numerics)
        found = cells.read(args.out / f"{cell_name(family, PROFILES[0], STEADY, OURS, 0)}.json")
    gaps = np.array([plain.limit - point.score for point in found.points if point.iteration in iterations])
    return np.asarray(-np.log(gaps / gaps[0]) / plain.rate)


def noise_of(curves: Sequence[Floats]) -> float:
    """Standard deviation of independent noise; the base has none."""
    bends = np.concatenate([np.diff(scores[1:], 2) for scores in curves])
    return float(np.sqrt(np.mean(np.square(bends)) / 6))


def fitted(family: str, setup: str, scores: Scores, seeds: Sequence[int], noise: float, origin: str) -> LearningModel:
    own = LearningModel.load(f"{family}-nft")
    rewards = np.concatenate([scores.by_seed[seed] for seed in seeds])
    base, limit, rate, lag = fit_lagging(np.tile(scores.progress, len(seeds)), rewards)
    return msgspec.structs.replace(
        own,
        name=f"{family} {'plain' if setup == BASELINE else 'exploring'}, headline, {', '.join(map(str, seeds))}",
        source=(
            f"base, limit, rate, lag: {setup} with these seeds; noise: that of all seeds; in the settings of "
            f"benchmarks.headline, computed at {origin}. prompt_std, seed_std, fidelity: those of "
            f"{own.name}."
        ),
        **{"base": round(base, 4), "limit": round(limit, 4), "rate": round(rate, 5)},
        **{"lag": round(lag, 2), "noise": round(noise, 4)},
    )


def fit_lagging(progress: Floats, rewards: Floats) -> tuple[float, float, float, float]:
    """Base, limit, rate and lag: for a given rate and lag the best limit has a closed form."""
    base = float(rewards[progress == 0].mean())
    best = (math.inf, base, 0.0, 0.0)
    for lag in LAGS:
        reached = progress + lag * np.expm1(-progress / lag) if lag else progress
        closed = 1 - np.exp(-RATES[:, None] * reached)
        limits = np.minimum(1.0, base + (closed * (rewards - base)).sum(1) / np.square(closed).sum(1))
        errors = np.square(base + (limits - base)[:, None] * closed - rewards).sum(1)
        least = int(errors.argmin())
        best = min(best, (float(errors[least]), float(limits[least]), float(RATES[least]), float(lag)))
    return base, *best[1:]


# -- errors ------------------------------------------------------------------------------------------------------------


def errors_of(
    family: str, models: dict[tuple[str, int | None], LearningModel], scores: dict[str, Scores]
) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    name = f"headline_{family.replace('-', '_')}"
    for setup in scores:
        kind = "plain" if setup == BASELINE else "exploring"
        for part in ("one", "all"):
            off = [
                modelled(models[setup, seed if part == "one" else None], scores[setup]) - scores[setup].by_seed[seed]
                for seed in FITTED
            ]
            figures[f"{name}_{kind}_residual_{part}"] = Figure.single(
                float(np.sqrt(np.mean(np.square(off)))),
                f"reward, root mean square, fit of {part} of {len(FITTED)} seeds",
            )
    races = [fewer(scores, {setup: each.by_seed[seed] for setup, each in scores.items()}) for seed in FITTED]
    drawn = [
        fewer(scores, noisy({setup: models[setup, seed] for setup in scores}, scores, draw))
        for draw in range(DRAWS)
        for seed in FITTED
    ]
    ratio, real = geometric(drawn), geometric(races)
    unit = "times fewer iterations than reserved-only"
    figures[f"{name}_fewer_iterations_model"] = Figure.single(ratio, f"{unit}, mean of {len(drawn)} modelled races")
    figures[f"{name}_fewer_iterations"] = Figure(
        value=real, low=min(races), high=max(races), unit=f"{unit}, {len(races)} real races"
    )
    figures[f"{name}_model_error"] = Figure.single(ratio / real - 1, "of the real ratio")
    return figures


def held_out_errors(
    family: str, others: dict[tuple[str, int], LearningModel], scores: dict[str, Scores]
) -> dict[str, Figure]:
    """Errors of races of a seed that are drawn from a fit of the other seeds."""
    found = []
    for seed in FITTED:
        real = fewer(scores, {setup: each.by_seed[seed] for setup, each in scores.items()})
        models = {setup: others[setup, seed] for setup in scores}
        found.append(geometric([fewer(scores, noisy(models, scores, draw)) for draw in range(DRAWS)]) / real)
    name = f"headline_{family.replace('-', '_')}_model_error_held_out"
    return {
        name: Figure(
            value=geometric(found) - 1,
            low=min(found) - 1,
            high=max(found) - 1,
            unit=f"of the real ratio, each of {len(FITTED)} seeds from a fit of the others; least and most",
        )
    }


def modelled(model: LearningModel, scores: Scores) -> Floats:
    return np.array([model.mean(progress) for progress in scores.progress])


def noisy(models: dict[str, LearningModel], scores: dict[str, Scores], draw: int) -> dict[str, Floats]:
    generator = np.random.default_rng(draw)
    found = {}
    for setup, model in models.items():
        curve = modelled(model, scores[setup])
        found[setup] = curve + model.noise * generator.normal(size=len(curve)) * (scores[setup].iterations > 0)
    return found


def fewer(scores: dict[str, Scores], race: dict[str, Floats]) -> float:
    """Times fewer iterations of ours; a run that never reaches the score counts with all its iterations."""
    target = float(race[BASELINE][-2:].mean())
    took = {}
    for setup, curve in race.items():
        spent = [np.array([at]) for at in scores[setup].iterations]
        at = first_reaching_mean(list(curve), spent, target)
        took[setup] = float((spent[-1] if at is None else at)[0])
    return took[BASELINE] / took[OURS]


def geometric(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))

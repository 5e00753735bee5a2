"""Fits of the headline's real curves, one for setups that explore and one for the others, in their own settings.

Spreads and fidelity are those of the recipe's fit. `limit`, `rate` and `lag` are least squares over the held-out points
of each seed in FITTED, and of all. `noise` is the deviation of the points of setups that explore, or do not, from the
fits of their own seeds.
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
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.headline import cells
from benchmarks.headline.real_curves import RealCurves, read_curves
from benchmarks.headline.run import cell_name, contest_of, run_cell
from benchmarks.headline.setups import BASELINE, FITTED, PROFILES, STEADY, TASKS, fit_of
from benchmarks.lib.crossings import first_reaching_mean
from benchmarks.lib.figures import Figure
from spotlight.sim.learning import LearningModel, ModelNumerics

Floats = NDArray[np.float64]
OURS = "spotlight-fixed"
RATES = np.geomspace(1e-3, 0.5, 1200)
LAGS = np.concatenate([[0.0], np.geomspace(0.5, 60.0, 40)])
FITTED_FIGURES = 3
"""Figures of a fit that points were fitted with: limit, rate and lag."""
DRAWS = 200
"""Modelled races of each seed behind a ratio."""


class Curve(NamedTuple):
    """Held-out points of one seed: iterations, progress after them, and scores."""

    iterations: Floats
    progress: Floats
    scores: Floats


Scores: TypeAlias = dict[str, dict[int, Curve]]
"""Curves by setup and seed."""


def fit_headline(paths: Sequence[Path], settings: Sequence[tuple[str, ...]] = ()) -> dict[str, Figure]:
    """Write the fits of all tasks; return their errors. `settings` are (family, override) in which curves differ."""
    real, figures = read_curves(paths), dict[str, Figure]()
    for family in sorted(TASKS):
        changed = [override for name, override in settings if name == family]
        scores = {setup: curves_of(real, family, setup, changed) for setup in (BASELINE, OURS)}
        noise = {setup: noise_of(family, setup, scores) for setup in scores}
        models = {
            (setup, seed): fitted(Fit(family, setup, (seed,) if seed else FITTED, noise[setup], real.origin), scores)
            for setup in scores
            for seed in (None, *FITTED)
        }
        for (setup, seed), model in models.items():
            fit_of(family, setup, seed).write_bytes(msgspec.json.format(msgspec.json.encode(model), indent=1) + b"\n")
        others = {
            (setup, seed): fitted(
                Fit(family, setup, [each for each in FITTED if each != seed], noise[setup], real.origin), scores
            )
            for setup in scores
            for seed in FITTED
        }
        figures |= errors_of(family, models, scores) | held_out_errors(family, others, scores)
    return figures


def curves_of(real: RealCurves, family: str, setup: str, changed: list[str]) -> dict[int, Curve]:
    points = {seed: np.array(real.of[family, setup, seed].scores).T for seed in FITTED}
    longest = max((iterations for iterations, _ in points.values()), key=len)
    progress = longest if setup == BASELINE else simulated_progress(family, changed, longest)
    return {
        seed: Curve(iterations, progress[: len(iterations)], scores) for seed, (iterations, scores) in points.items()
    }


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


def noise_of(family: str, setup: str, scores: Scores) -> float:
    """Standard deviation of the points from the fits of their own seeds; the base lies on them."""
    squares = free = 0.0
    for seed, curve in scores[setup].items():
        model = fitted(Fit(family, setup, (seed,), 0.0, ""), scores)
        squares += float(np.square(modelled(model, curve) - curve.scores).sum())
        free += len(curve.scores) - 1 - FITTED_FIGURES
    return math.sqrt(squares / free)


class Fit(NamedTuple):
    """The curves that a model is fitted to."""

    family: str
    setup: str
    seeds: Sequence[int]
    noise: float
    origin: str


def fitted(fit: Fit, scores: Scores) -> LearningModel:
    own = LearningModel.load(f"{fit.family}-nft")
    curves = [scores[fit.setup][seed] for seed in fit.seeds]
    base, limit, rate, lag = fit_lagging(
        np.concatenate([curve.progress for curve in curves]), np.concatenate([curve.scores for curve in curves])
    )
    kind = "plain" if fit.setup == BASELINE else "exploring"
    return msgspec.structs.replace(
        own,
        name=f"{fit.family} {kind}, headline, {', '.join(map(str, fit.seeds))}",
        source=(
            f"base, limit, rate, lag: {fit.setup} with these seeds; noise: that of all its seeds; in the settings of "
            f"benchmarks.headline, computed at {fit.origin}. prompt_std, seed_std, fidelity: those of "
            f"{own.name}."
        ),
        **{"base": round(base, 4), "limit": round(limit, 4), "rate": round(rate, 5)},
        **{"lag": round(lag, 2), "noise": round(fit.noise, 4)},
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


def errors_of(family: str, models: dict[tuple[str, int | None], LearningModel], scores: Scores) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    name = f"headline_{family.replace('-', '_')}"
    for setup, curves in scores.items():
        kind = "plain" if setup == BASELINE else "exploring"
        for part in ("one", "all"):
            off = [
                modelled(models[setup, seed if part == "one" else None], curve) - curve.scores
                for seed, curve in curves.items()
            ]
            figures[f"{name}_{kind}_residual_{part}"] = Figure.single(
                float(np.sqrt(np.mean(np.square(np.concatenate(off))))),
                f"reward, root mean square, fit of {part} of {len(FITTED)} seeds",
            )
    races = [fewer(real_race(scores, seed)) for seed in FITTED]
    drawn = [
        fewer(noisy({setup: models[setup, seed] for setup in scores}, real_race(scores, seed), draw))
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


def held_out_errors(family: str, others: dict[tuple[str, int], LearningModel], scores: Scores) -> dict[str, Figure]:
    """Errors of races of a seed that are drawn from a fit of the other seeds."""
    found = []
    for seed in FITTED:
        race = real_race(scores, seed)
        models = {setup: others[setup, seed] for setup in scores}
        found.append(geometric([fewer(noisy(models, race, draw)) for draw in range(DRAWS)]) / fewer(race))
    name = f"headline_{family.replace('-', '_')}_model_error_held_out"
    return {
        name: Figure(
            value=geometric(found) - 1,
            low=min(found) - 1,
            high=max(found) - 1,
            unit=f"of the real ratio, each of {len(FITTED)} seeds from a fit of the others; least and most",
        )
    }


def real_race(scores: Scores, seed: int) -> dict[str, Curve]:
    return {setup: curves[seed] for setup, curves in scores.items()}


def modelled(model: LearningModel, curve: Curve) -> Floats:
    return np.array([model.mean(progress) for progress in curve.progress])


def noisy(models: dict[str, LearningModel], race: dict[str, Curve], draw: int) -> dict[str, Curve]:
    generator = np.random.default_rng(draw)
    found = {}
    for setup, model in models.items():
        curve = race[setup]
        noise = model.noise * generator.normal(size=len(curve.scores)) * (curve.iterations > 0)
        found[setup] = curve._replace(scores=modelled(model, curve) + noise)
    return found


def fewer(race: dict[str, Curve]) -> float:
    """Times fewer iterations of ours; a run that never reaches the score counts with all its iterations."""
    target = float(race[BASELINE].scores[-2:].mean())
    took = {}
    for setup, curve in race.items():
        spent = [np.array([at]) for at in curve.iterations]
        at = first_reaching_mean(list(curve.scores), spent, target)
        took[setup] = float((spent[-1] if at is None else at)[0])
    return took[BASELINE] / took[OURS]


def geometric(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))

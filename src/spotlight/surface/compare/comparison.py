"""Cost of each setup to a share of the baseline's gain, and the factors of its savings.

The gain is that of the baseline's run with the same seed: from the base model to its final held-out score. A figure
over seeds exists only if every seed's run reached the target, because the mean of the others would be biased.

Saved time and money are three factors, each the baseline's value over the setup's, so above 1 is better:

    hours = iterations x seconds per iteration          dollars = hours x price of the fleet per hour

Invariant: the factors multiply to the savings (tests/unit/test_compare.py), also over seeds, because the means over
seeds are geometric.
"""

import math
from collections.abc import Callable, Sequence

import msgspec

from spotlight.control.market.bill import HOUR_S
from spotlight.control.market.occupancy import Tenure
from spotlight.core.errors import InputError, suggestion
from spotlight.surface.compare.curve import Curve, Reached, to_target

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Shares of the baseline's gain."""


class Spread(msgspec.Struct, frozen=True):
    """Mean, least and most over seeds."""

    mean: float
    low: float
    high: float


class Factors(msgspec.Struct, frozen=True, kw_only=True):
    """The baseline's value over the setup's."""

    iterations: Spread
    seconds_per_iteration: Spread
    fleet_price: Spread
    hours: Spread
    dollars: Spread


class Milestone(msgspec.Struct, frozen=True, kw_only=True):
    """One setup at one share of the baseline's gain."""

    setup: str
    share: float
    target: Spread
    seeds: int
    reached: int
    """Number of seeds whose run reached the target; the figures are None unless all did."""
    iterations: Spread | None = None
    hours: Spread | None = None
    dollars: Spread | None = None
    factors: Factors | None = None


class FinalScores(msgspec.Struct, frozen=True, kw_only=True):
    """Final figures of one setup's runs."""

    setup: str
    seeds: int
    best: Spread
    iterations: Spread
    hours: Spread
    dollars: Spread
    idle_share: dict[Tenure, Spread] = {}
    """Idle share of the time that slots of a class were held."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Milestones and final figures, in the given order of setups."""

    baseline: str
    score: str
    seeds: tuple[int, ...]
    milestones: tuple[Milestone, ...]
    endings: tuple[FinalScores, ...]

    def of(self, setup: str, share: float) -> Milestone:
        found = [one for one in self.milestones if (one.setup, one.share) == (setup, share)]
        if not found:
            shares = ", ".join(f"{known:g}" for known in sorted({one.share for one in self.milestones}))
            raise InputError(
                f"there is no comparison of '{setup}' at {share:g} of the gain; name one of the setups "
                f"{', '.join(one.setup for one in self.endings)} at {shares}."
            )
        return found[0]


def compare(curves: list[Curve], baseline: str, shares: Sequence[float] = SHARES) -> Comparison:
    """Compare setups by the curves of their runs; every seed of a setup needs the baseline's run of that seed."""
    by_setup = _by_setup(curves, baseline)
    targets = {seed: _targets(curve, shares) for seed, curve in by_setup[baseline].items()}
    return Comparison(
        baseline=baseline,
        score=curves[0].score,
        seeds=tuple(sorted(targets)),
        milestones=tuple(
            _milestone(setup, share, runs, by_setup[baseline], {seed: targets[seed][share] for seed in runs})
            for setup, runs in by_setup.items()
            for share in shares
        ),
        endings=tuple(_ending(setup, list(runs.values())) for setup, runs in by_setup.items()),
    )


def _by_setup(curves: Sequence[Curve], baseline: str) -> dict[str, dict[int, Curve]]:
    by_setup: dict[str, dict[int, Curve]] = {}
    for curve in curves:
        runs = by_setup.setdefault(curve.setup, {})
        if curve.seed in runs:
            raise InputError(
                f"there are two runs of '{curve.setup}' with seed {curve.seed}, and only one can count; leave one out."
            )
        runs[curve.seed] = curve
    if baseline not in by_setup:
        raise InputError(f"there is no run of the baseline '{baseline}': {suggestion(baseline, by_setup)}")
    for curve in curves:
        if curve.score != curves[0].score:
            raise InputError(
                f"the runs of '{curve.setup}' and '{curves[0].setup}' have the scores '{curve.score}' and "
                f"'{curves[0].score}', which cannot be compared; name one that all have."
            )
        if curve.seed not in by_setup[baseline]:
            raise InputError(
                f"'{curve.setup}' was run with seed {curve.seed}, but the baseline '{baseline}' was not, so there is "
                "no gain to compare with; run the baseline with that seed too."
            )
    return by_setup


def _targets(baseline: Curve, shares: Sequence[float]) -> dict[float, float]:
    gain = baseline.final - baseline.first
    if not gain > 0:
        raise InputError(
            f"the baseline '{baseline.setup}' with seed {baseline.seed} ends at {baseline.final:.4g}, no better than "
            f"its base model's {baseline.first:.4g}, so there is no gain to take shares of; run it for longer, or "
            "compare with another."
        )
    # The final score itself for share 1: the sum may differ in the last bit.
    return {share: baseline.final if share == 1 else baseline.first + share * gain for share in shares}


def _milestone(
    setup: str, share: float, runs: dict[int, Curve], baseline: dict[int, Curve], targets: dict[int, float]
) -> Milestone:
    found = {seed: to_target(curve, targets[seed]) for seed, curve in sorted(runs.items())}
    reached = {seed: there for seed, there in found.items() if there is not None}
    known = Milestone(
        setup=setup, share=share, target=_spread(list(targets.values())), seeds=len(runs), reached=len(reached)
    )
    if len(reached) < len(runs):
        return known
    theirs = {seed: there for seed in reached if (there := to_target(baseline[seed], targets[seed])) is not None}
    return msgspec.structs.replace(
        known,
        iterations=_spread([there.iterations for there in reached.values()]),
        hours=_spread([there.hours for there in reached.values()]),
        dollars=_spread([there.dollars for there in reached.values()]),
        factors=_factors([(theirs[seed], there) for seed, there in reached.items()]),
    )


def _factors(pairs: list[tuple[Reached, Reached]]) -> Factors | None:
    """None if a target was reached at no cost: a ratio to 0 is undefined."""
    if any(min(one.iterations, one.hours, one.dollars) <= 0 for pair in pairs for one in pair):
        return None

    def saved(value: Callable[[Reached], float]) -> Spread:
        return _geometric([value(theirs) / value(own) for theirs, own in pairs])

    return Factors(
        iterations=saved(lambda one: one.iterations),
        seconds_per_iteration=saved(lambda one: one.hours * HOUR_S / one.iterations),
        fleet_price=saved(lambda one: one.dollars / one.hours),
        hours=saved(lambda one: one.hours),
        dollars=saved(lambda one: one.dollars),
    )


def _ending(setup: str, runs: list[Curve]) -> FinalScores:
    lasts = [curve.points[-1] for curve in runs]
    return FinalScores(
        setup=setup,
        seeds=len(runs),
        best=_spread([curve.best for curve in runs]),
        iterations=_spread([last.iteration for last in lasts]),
        hours=_spread([last.hours for last in lasts]),
        dollars=_spread([last.dollars for last in lasts]),
        idle_share={tenure: _spread(shares) for tenure in Tenure if (shares := _idle(runs, tenure))},
    )


def _idle(runs: Sequence[Curve], tenure: Tenure) -> list[float]:
    return [curve.idle_share[tenure] for curve in runs if tenure in curve.idle_share]


def _spread(values: Sequence[float]) -> Spread:
    return Spread(math.fsum(values) / len(values), min(values), max(values))


def _geometric(values: Sequence[float]) -> Spread:
    mean = math.exp(math.fsum(math.log(value) for value in values) / len(values))
    return Spread(mean, min(values), max(values))

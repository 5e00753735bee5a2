"""Fidelity of previews: figures from seeds that have both a preview and an exact reward.

Exact rewards exist for the kept seeds, which are extremes, and for the audit: every unselected seed is audited with the
same probability `share`, independently (`seeds.py`). A kept seed therefore stands for itself and an audited one for
1/share seeds. A sum over pairs or triples of seeds, each weighted by the product of its members' weights, has exactly
the sum over all previewed seeds as its expectation (Horvitz and Thompson).

- `payoff` is the variance of exact rewards of kept seeds over that of all previewed seeds. Both variances are unbiased
  (n - 1), so a random choice scores 1.
- `pearson` and `spearman` are correlations within prompts of all previewed seeds; the covariance of values is a sum
  over pairs, that of midranks one over triples.
- `captured_variance` is the variance of kept seeds over that of the best possible choice of the same size. The best
  choice needs every exact reward: with share 1 it is exact. Below that each audited seed is repeated 1/share times; few
  audited seeds per prompt then miss its tails, and the figure errs to the high side (0.90 for 0.82 at share 0.1).
- `kept_shift` is the bias of selection: the mean of kept seeds above the mean of all previewed seeds of its prompt
  (`seeds.py`), in stds of the latter, averaged over prompts. Prompts with opposite shifts cancel in it;
  `kept_shift_rms` is the root mean square over prompts, less what chance in the audit adds to it.

Numerators and denominators are summed over prompts before dividing: prompts without contrast do not count, and the bias
of a ratio vanishes as prompts accumulate. Prompts that kept fewer than two previewed seeds made no choice and are left
out.

Checked by Monte Carlo on a bivariate normal model (tests/unit/test_explore.py).
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from spotlight.control.advantage import LARGEST_REWARD, Floats
from spotlight.control.explore.seeds import largest_variance

Covariance: TypeAlias = Callable[[Floats, Floats, Floats], float]


class AuditedSeed(msgspec.Struct, frozen=True):
    """One seed: its preview's reward and its exact one."""

    proxy: float
    exact: float


class AuditedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The seeds of one prompt that have both rewards."""

    kept: tuple[AuditedSeed, ...]
    audited: tuple[AuditedSeed, ...]
    share: float
    """Probability with which each unselected seed was audited."""
    previewed: int
    """Seeds with a usable preview, kept, audited or neither."""


def fidelity(groups: Sequence[AuditedGroup]) -> dict[str, float]:
    """Figures for `core.events.Fidelity`; figures without contrast or audit are left out."""
    parts = [_Group(group) for group in groups]
    figures = {
        "pairs": float(sum(part.proxy.size for part in parts)),
        "audited": float(sum(part.proxy.size - part.kept for part in parts)),
    }
    # Without an audit the kept extremes alone would look far better correlated than all seeds.
    if not any(part.proxy.size > part.kept for part in parts):
        return figures
    ratios = {
        "pearson": _correlation([part.moments(_covariance, 2) for part in parts]),
        "spearman": _correlation([part.moments(_rank_covariance, 3) for part in parts]),
        "payoff": _ratio([(part.kept_variance(1), part.variance()) for part in parts if part.kept >= 2]),
        "captured_variance": _ratio(
            [(part.kept_variance(0), part.best_variance()) for part in parts if part.kept >= 2]
        ),
    }
    return figures | {name: value for name, value in ratios.items() if value is not None} | _shifts(parts)


class _Group:
    """Columns of one prompt's usable pairs, kept seeds first."""

    def __init__(self, group: AuditedGroup) -> None:
        kept = [pair for pair in group.kept if _finite(pair)]
        pairs = kept + [pair for pair in group.audited if _finite(pair)]
        self.kept = len(kept)
        self.previewed = max(group.previewed, len(pairs))
        self.proxy: Floats = np.array([pair.proxy for pair in pairs])
        self.exact: Floats = np.array([pair.exact for pair in pairs])
        self.weight: Floats = np.array([1.0] * self.kept + [1.0 / group.share] * (len(pairs) - self.kept))

    def kept_variance(self, lost_degrees: int) -> float:
        return float((self.exact[: self.kept] - self.exact[0]).var(ddof=lost_degrees))

    def variance(self) -> float:
        """Variance of the exact rewards of all previewed seeds."""
        return _covariance(self.exact, self.exact, self.weight) / (self.previewed * max(self.previewed - 1, 1))

    def shift(self) -> float | None:
        """Mean of kept seeds above that of all previewed seeds; None without a choice or an audit."""
        audited = self.exact[self.kept :]
        if self.kept < 2 or not audited.size:
            return None
        return self._unselected_share * float(self.exact[: self.kept].mean() - audited.mean())

    def shift_variance(self) -> float | None:
        """Variance of the shift by the chance of the audit; None with fewer than two audited seeds."""
        audited, unselected = self.exact[self.kept :], self.previewed - self.kept
        if audited.size < 2:
            return None
        left_out = max(0.0, 1 - audited.size / unselected)
        return self._unselected_share**2 * left_out * float((audited - audited[0]).var(ddof=1)) / audited.size

    @property
    def _unselected_share(self) -> float:
        return 1 - self.kept / self.previewed

    def best_variance(self) -> float:
        """Variance of the best choice of `kept` seeds among the seeds that the pairs stand for."""
        repeated = np.repeat(self.exact, np.rint(self.weight).astype(np.int64))
        return largest_variance(repeated, self.kept)

    def moments(self, covariance: Covariance, order: int) -> tuple[float, float, float]:
        """Covariance of proxy and exact and both variances, as means over the N^order tuples of previewed seeds."""
        tuples = max(self.previewed, 1) ** order
        x, y, weight = self.proxy, self.exact, self.weight
        return (
            covariance(x, y, weight) / tuples,
            covariance(x, x, weight) / tuples,
            covariance(y, y, weight) / tuples,
        )


def _shifts(parts: Sequence[_Group]) -> dict[str, float]:
    """Shift figures in units of the root of the mean variance of their prompts."""
    known = [(shift, part) for part in parts if (shift := part.shift()) is not None]
    variances = [part.variance() for _, part in known]
    if not known or math.fsum(variances) <= 0:
        return {}
    std = math.sqrt(math.fsum(variances) / len(known))
    figures = {"kept_shift": math.fsum(shift for shift, _ in known) / len(known) / std}
    squares = [shift**2 - by_chance for shift, part in known if (by_chance := part.shift_variance()) is not None]
    if squares:
        figures["kept_shift_rms"] = math.sqrt(max(0.0, math.fsum(squares) / len(squares))) / std
    return figures


def _covariance(x: Floats, y: Floats, weight: Floats) -> float:
    """Estimates the sum over pairs i < j of (x_i - x_j)(y_i - y_j), which is N (N - 1) times the sample covariance."""
    if x.size < 2:
        return 0.0
    # Relative to the first: subtracting the mean would round, and give equal rewards a variance.
    x, y = x - x[0], y - y[0]
    return float(weight.sum() * (weight * x * y).sum() - (weight * x).sum() * (weight * y).sum())


def _rank_covariance(x: Floats, y: Floats, weight: Floats) -> float:
    """Estimates the sum over i of a_i b_i with a_i = sum over j of sign(x_i - x_j): 4 N times that of midranks.

    A term (i, j, k) carries the weights of its different members, so where j is k that weight must count once only.
    """
    above_x, above_y = np.sign(x[:, None] - x[None, :]), np.sign(y[:, None] - y[None, :])
    same = (above_x * above_y) @ (weight - weight**2)
    return float((weight * ((above_x @ weight) * (above_y @ weight) + same)).sum())


def _correlation(moments: Sequence[tuple[float, float, float]]) -> float | None:
    covariance, variance_x, variance_y = (math.fsum(column) for column in zip(*moments, strict=True))
    if variance_x <= 0 or variance_y <= 0:
        return None
    return min(1.0, max(-1.0, covariance / math.sqrt(variance_x * variance_y)))


def _ratio(parts: Sequence[tuple[float, float]]) -> float | None:
    above, below = math.fsum(a for a, _ in parts), math.fsum(b for _, b in parts)
    return above / below if below > 0 else None


def _finite(pair: AuditedSeed) -> bool:
    return abs(pair.proxy) <= LARGEST_REWARD and abs(pair.exact) <= LARGEST_REWARD

"""Ranking of one column of rewards by another: the value of a selection by previews in exact rewards.

Rows are prompts, columns are seeds; the source of the rewards does not matter. Checked on hand-made numbers in
tests/unit/test_staleness.py.

- `spearman` and `kendall` (tau-b) are taken within each prompt and averaged over the prompts whose exact rewards vary;
  previews without contrast in such a prompt count 0.
- `hit_rate`: half of the kept seeds are the previews' highest, half their lowest; the share of them that is right.
  Right is a high seed whose exact reward reaches the lowest of the truly highest, and likewise below: seeds that tie
  with these are as good. Over the same prompts.
- `captured_variance`: exact variance of the seeds that selection keeps, over that of the best choice by exact rewards;
  numerators and denominators are summed over prompts first, as in `spotlight.control.explore.fidelity`.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from spotlight.control.advantage import Floats
from spotlight.control.explore.seeds import Preview, largest_variance, select


class AuditedSeed(msgspec.Struct, frozen=True, kw_only=True):
    """Ranking figures of one kind of previews; None if no prompt had a contrast."""

    spearman: float | None
    kendall: float | None
    hit_rate: float | None
    captured_variance: float | None


def ranking(proxy: Sequence[Floats], exact: Sequence[Floats], kept: int) -> AuditedSeed:
    """Figures of `kept` seeds per prompt selected by `proxy`, measured by `exact`."""
    pairs = list(zip(proxy, exact, strict=True))
    varied = [(p, e) for p, e in pairs if np.ptp(e) > 0]
    return AuditedSeed(
        spearman=_mean([spearman(p, e) for p, e in varied]),
        kendall=_mean([kendall(p, e) for p, e in varied]),
        hit_rate=_mean([hit_rate(p, e, kept) for p, e in varied]),
        captured_variance=_ratio(
            [float(e[chosen(p, kept)].var()) for p, e in pairs], [largest_variance(e, kept) for e in exact]
        ),
    )


def random_choice(exact: Sequence[Floats], kept: int) -> AuditedSeed:
    """Expected figures of `kept` random seeds per prompt."""
    varied = [e for e in exact if np.ptp(e) > 0]
    return AuditedSeed(
        spearman=_mean([0.0 for _ in varied]),
        kendall=_mean([0.0 for _ in varied]),
        hit_rate=_mean([_blind_hit_rate(e, kept) for e in varied]),
        captured_variance=_ratio(
            [float(e.var(ddof=1)) * (kept - 1) / kept for e in exact], [largest_variance(e, kept) for e in exact]
        ),
    )


def spearman(x: Floats, y: Floats) -> float:
    """Correlation of midranks; 0 if either column is flat."""
    # The number of seeds below one minus the number above it is twice its midrank, up to a constant.
    return _cosine(_signs(x).sum(1), _signs(y).sum(1))


def kendall(x: Floats, y: Floats) -> float:
    """Tau-b, which counts ties; 0 if either column is flat."""
    return _cosine(_signs(x), _signs(y))


def hit_rate(proxy: Floats, exact: Floats, kept: int) -> float:
    """Share of the proxy's highest and lowest seeds, half of `kept` each, that are right by exact rewards."""
    half = kept // 2
    order = np.argsort(proxy, kind="stable")
    lowest, highest = _bounds(exact, half)
    right = np.concatenate([exact[order[:half]] <= lowest, exact[order[-half:]] >= highest])
    return float(right.mean())


def chosen(proxy: Floats, kept: int) -> list[int]:
    """Columns that the product's selection keeps."""
    return list(select([Preview(seed, float(reward)) for seed, reward in enumerate(proxy)], kept))


def _blind_hit_rate(exact: Floats, kept: int) -> float:
    lowest, highest = _bounds(exact, kept // 2)
    return float(((exact <= lowest).mean() + (exact >= highest).mean()) / 2)


def _bounds(exact: Floats, half: int) -> tuple[float, float]:
    """The highest of the lowest `half`, the lowest of the highest."""
    ranked = np.sort(exact)
    return float(ranked[half - 1]), float(ranked[-half])


def _signs(x: Floats) -> Floats:
    return np.asarray(np.sign(x[:, None] - x[None, :]), dtype=np.float64)


def _cosine(x: Floats, y: Floats) -> float:
    length = math.sqrt(float((x * x).sum()) * float((y * y).sum()))
    return float((x * y).sum()) / length if length > 0 else 0.0


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _ratio(above: Sequence[float], below: Sequence[float]) -> float | None:
    return math.fsum(above) / math.fsum(below) if math.fsum(below) > 0 else None

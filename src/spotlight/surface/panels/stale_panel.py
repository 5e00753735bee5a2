"""Samples one version old: their share, and their difference from fresh ones."""

import msgspec

from spotlight.control.pipeline import staleness
from spotlight.surface.projections import RunView


class FreshAndStale(msgspec.Struct, frozen=True, kw_only=True):
    """Means of one figure over the optimizer steps."""

    fresh: float | None
    stale: float | None


class StalePanel(msgspec.Struct, frozen=True, kw_only=True):
    stale: int
    share: float
    """Of the rollouts that could be stale."""
    clipped: FreshAndStale
    """Share of rows beyond the clip range."""
    drift: FreshAndStale
    """Drift from the policy that drew the rows."""
    decoupled: float | None
    """Share of rows clipped around the iteration's first weights."""


def stale_panel(view: RunView) -> StalePanel | None:
    """None if no sample was stale."""
    stale = view.stale
    if not stale.stale:
        return None
    return StalePanel(
        stale=stale.stale,
        share=stale.share,
        clipped=FreshAndStale(fresh=stale.mean(staleness.CLIPPED_FRESH), stale=stale.mean(staleness.CLIPPED_STALE)),
        drift=FreshAndStale(fresh=stale.mean(staleness.DRIFT_FRESH), stale=stale.mean(staleness.DRIFT_STALE)),
        decoupled=stale.mean(staleness.DECOUPLED_SHARE),
    )

"""Names of the figures of an optimizer step that tell rows of the version before (stale) from fresh ones."""

CLIPPED_FRESH, CLIPPED_STALE = "clip_fraction_fresh", "clip_fraction_stale"
"""Rows beyond the clip range around the policy that drew them."""
DRIFT_FRESH, DRIFT_STALE = "drift_fresh", "drift_stale"
"""Squared distance of velocities from those of the policy that drew the row."""
STALE_SHARE = "stale_share"
DECOUPLED_SHARE = "decoupled_share"
"""Rows that were clipped around the iteration's first weights instead."""
OF_STALENESS = frozenset({CLIPPED_FRESH, CLIPPED_STALE, DRIFT_FRESH, DRIFT_STALE, STALE_SHARE, DECOUPLED_SHARE})

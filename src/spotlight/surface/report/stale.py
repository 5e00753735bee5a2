"""Samples one version old: their share, and their difference from fresh ones."""

from spotlight.control.pipeline import staleness
from spotlight.surface.projections import RunView
from spotlight.surface.report.formats import UNKNOWN, count, percent
from spotlight.surface.report.markup import row, section, table

ROWS = (
    ("Rows beyond the clip range", staleness.CLIPPED_FRESH, staleness.CLIPPED_STALE, percent),
    ("Drift from the policy that drew them", staleness.DRIFT_FRESH, staleness.DRIFT_STALE, "{:.2e}".format),
)


def stale_section(view: RunView) -> str:
    """Empty if no sample was stale."""
    stale = view.stale
    if not stale.stale:
        return ""
    lead = (
        f"{count(stale.stale, 'rollout')}, {percent(stale.share)} of those after the first iteration, used the "
        "previous version's weights while training continued. The audit checks that none is older and that no group "
        "mixes two versions."
    )
    rows = []
    for label, fresh, old, shown in ROWS:
        means = [stale.mean(name) for name in (fresh, old)]
        if any(mean is not None for mean in means):
            rows.append(row(label, *(UNKNOWN if mean is None else shown(mean) for mean in means)))
    decoupled = stale.mean(staleness.DECOUPLED_SHARE)
    if decoupled is not None:
        rows.append(row("Rows clipped around the iteration's first weights", percent(0.0), percent(decoupled)))
    body = table(("mean over optimizer steps", "fresh", "one version old"), "".join(rows)) if rows else ""
    return section("Samples one version old", lead, f'<div class="numbers">{body}</div>' if body else "")

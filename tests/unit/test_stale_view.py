"""Samples one version old in the report and the panel."""

from pathlib import Path

import pytest
from ledger_stories import grid, issued, made, published, records, started, stepped

from spotlight.core.events import AnyEvent, Restored, StepCommitted
from spotlight.surface.projections import RunView
from spotlight.surface.report import write_report


def trained(step: int, **figures: float) -> StepCommitted:
    event = stepped(step, [], 0, iteration=step)
    return StepCommitted(
        step=step,
        iteration=step,
        update=0,
        requests=event.requests,
        frontier=event.frontier,
        digest=event.digest,
        figures={"loss": 0.1, **figures},
    )


STALE, FRESH = grid(1, 2, iteration=1, version=0), grid(3, 2, iteration=1, version=1)[2:]
ASYNCHRONOUS: list[AnyEvent] = [
    started(),
    issued(grid(3, 2), range(3)),
    trained(0),
    issued(STALE, range(3, 6)),
    published(1, 1),
    issued(FRESH, range(3, 6)),
    *made(STALE[0]),
    trained(1, clip_fraction_fresh=0.25, clip_fraction_stale=0.75, stale_share=0.5, decoupled_share=0.0),
    trained(2, clip_fraction_stale=0.25, stale_share=1.0, decoupled_share=1.0),
]


def page(events: list[AnyEvent], folder: Path) -> str:
    path = folder / "report.html"
    write_report(RunView.of(records(events)), folder, path)
    return path.read_text()


def test_share_is_of_the_rollouts_that_could_be_stale_and_figures_are_means_over_steps_that_have_them():
    stale = RunView.of(records(ASYNCHRONOUS)).stale
    assert (stale.stale, stale.rollouts) == (2, 6)
    assert stale.mean("clip_fraction_fresh") == 0.25
    assert stale.mean("clip_fraction_stale") == 0.5
    assert stale.mean("drift_stale") is None


def test_steps_that_were_undone_do_not_count():
    events = [*ASYNCHRONOUS, Restored(step=2, reason="the gang died")]
    assert RunView.of(records(events)).stale.mean("clip_fraction_stale") == 0.75


def test_page_of_an_asynchronous_run_shows_clip_fractions_by_staleness(tmp_path: Path):
    text = page(ASYNCHRONOUS, tmp_path)
    assert "Samples one version old" in text
    assert "2 rollouts, 33 %" in text
    row = text.partition("Rows beyond the clip range")[2].partition("</tr>")[0]
    assert row.index("25 %") < row.index("50 %")
    assert "Drift" not in text


@pytest.mark.parametrize("events", [ASYNCHRONOUS[:3], [*ASYNCHRONOUS[:3], published(1, 1)]])
def test_page_of_a_synchronous_run_does_not_mention_staleness(events: list[AnyEvent], tmp_path: Path):
    assert "one version old" not in page(events, tmp_path)

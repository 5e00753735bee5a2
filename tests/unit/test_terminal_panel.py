"""The panel of a run in a terminal, and the lines where there is none."""

import io

from rich.console import Console
from story_journal import story

from spotlight.control.market.prices import PriceTable
from spotlight.core.events import Evaluated, Record, RunStopped, WorkerLost
from spotlight.surface.panel import Lines, LivePanel, panel, watcher
from spotlight.surface.projections import RunView

PRICES = PriceTable.load()


def drawn(view: RunView) -> str:
    console = Console(file=io.StringIO(), width=110, force_terminal=False)
    console.print(panel(view, 5, PRICES))
    return console.file.getvalue()


def test_panel_shows_a_letter_per_slot_score_losses_previews_and_dollars():
    # The last record before the first machine is lost: all slots roll out.
    records = story()
    first = next(record.seq for record in records if isinstance(record.event, WorkerLost))
    text = drawn(RunView.of(records[:first]))
    assert "exact match 0.48 (0.42 to 0.54) from 0.40" in text
    assert "1/5" in text
    assert "64 of 64 at 6 steps for iteration 2; captured at most 84 % of the variance" in text
    assert "priced as if" in text
    after = drawn(RunView.of(records[: first + 1]))
    assert "1, 1 without notice" in after
    assert after.count(" x ") > text.count(" x ")


def test_panel_of_a_run_without_records_shows_a_placeholder():
    text = drawn(RunView())
    assert "no evaluation yet" in text
    assert "0/5" in text


def test_without_a_terminal_there_is_one_line_per_iteration():
    console = Console(file=io.StringIO(), width=60)
    with watcher(5, PRICES, console=console) as shown:
        assert isinstance(shown, Lines)
        for record in story():
            shown.apply(record)
    lines = console.file.getvalue().splitlines()
    assert sum("iteration 3/5" in line for line in lines) == 1
    assert [line.strip().partition("  ")[2] for line in lines[:6]] == [
        "starting: importing the modules that all workers share",
        "starting: workers load the model",
        "starting: 1 of 4 workers have loaded the model",
        "starting: 2 of 4 workers have loaded the model",
        "starting: 4 of 4 workers have loaded the model",
        "first evaluation: 0 of 4 pictures",
    ]
    assert len(lines) == 6 + 5 + 6 + 1
    assert "4 preemptions" in lines[-3]
    assert lines[-1].endswith("finished: all iterations are done")


def test_a_run_of_this_process_leaves_its_stop_to_the_error_that_follows():
    stop = RunStopped(reason="the run was asked to drain; `spotlight resume demo-1` continues it.")
    shown = []
    for is_own in (False, True):
        console = Console(file=io.StringIO(), width=60)
        with watcher(5, PRICES, console=console, is_own=is_own) as lines:
            for record in story()[:-1]:
                lines.apply(record)
            lines.apply(Record(len(story()), 99.0, stop))
        shown.append(console.file.getvalue().count(stop.reason))
    assert shown == [1, 0]


def test_panel_of_a_run_that_has_just_started_shows_what_it_waits_for():
    records = story()
    first = next(index for index, record in enumerate(records) if isinstance(record.event, Evaluated))
    for upto, line in ((1, "importing the modules"), (first, "first evaluation: 4 of 4 pictures")):
        console = Console(file=io.StringIO(), width=110, force_terminal=True, color_system=None)
        with watcher(5, PRICES, console=console) as shown:
            for record in records[:upto]:
                shown.apply(record)
        assert line in console.file.getvalue()
    assert "first evaluation" not in drawn(RunView.of(records))


def test_on_a_terminal_the_panel_is_live():
    console = Console(file=io.StringIO(), width=110, force_terminal=True, color_system=None)
    with watcher(5, PRICES, console=console) as shown:
        assert isinstance(shown, LivePanel)
        for record in story():
            shown.apply(record)
    assert "5/5" in console.file.getvalue()

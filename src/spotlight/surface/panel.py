"""Output of `spotlight train` while it runs: a live panel on a terminal, else one line per iteration.

Both receive the journal's records as they are written, and read only the view.
"""

import threading
from collections import Counter
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from spotlight.control.market.prices import PriceTable
from spotlight.core.events import SAMPLES, Evaluated, IterationDone, ProblemNoted, Record, RunStopped
from spotlight.core.node_spec import NodeStanding
from spotlight.core.work import SlotClass
from spotlight.surface.formats import count, dollars, duration, percent, score, score_name
from spotlight.surface.liveness import RunStanding
from spotlight.surface.panels.summary_panel import seconds_left
from spotlight.surface.plain_text import plain
from spotlight.surface.projections import RunView
from spotlight.surface.startup import Startup
from spotlight.surface.terminal import terminal
from spotlight.surface.timeline import SlotRow, TimelineState

REFRESH_HZ = 4
PROBLEM_LENGTH = 400
STRIP = 24
"""Number of slots shown one by one; for a larger pool the states are counted."""
LETTERS: dict[TimelineState, tuple[str, str]] = {
    TimelineState.TRAIN: ("T", "black on dodger_blue1"),
    TimelineState.ROLLOUT: ("R", "black on sea_green3"),
    TimelineState.ASSIST: ("A", "black on dark_sea_green2"),
    TimelineState.PREVIEW: ("P", "black on orange1"),
    TimelineState.EVALUATION: ("E", "black on plum2"),
    TimelineState.LOAD: ("L", "black on sky_blue1"),
    TimelineState.PUBLISH: ("W", "black on medium_purple1"),
    TimelineState.SWITCH: ("C", "black on grey70"),
    TimelineState.START: ("s", "white on grey42"),
    TimelineState.IDLE: ("·", "white on grey23"),
    TimelineState.NOTICE: ("!", "black on dark_orange3"),
    TimelineState.AWAY: ("x", "red"),
}
"""Letter and colours of a state; the letter alone identifies it."""


class Watcher(Protocol):
    """Shows a run; use as a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def apply(self, record: Record) -> None: ...


def watcher(
    iterations: int,
    prices: PriceTable,
    view: RunView | None = None,
    console: Console | None = None,
    is_own: bool = False,
) -> Watcher:
    """The live panel on a terminal, else plain lines; `view` is the view of a resumed run's past.

    `is_own`: the run is this process's own, which reports a stop or a failure as its error.
    """
    console = console or terminal()
    view = view or RunView()
    return (
        LivePanel(view, iterations, prices, console)
        if console.is_terminal
        else Lines(view, iterations, prices, console, is_own)
    )


class LivePanel:
    """Redraws from the view a few times per second."""

    def __init__(self, view: RunView, iterations: int, prices: PriceTable, console: Console) -> None:
        self.view = view
        self._startup = Startup(view.facts.is_issued)
        self._iterations, self._prices = iterations, prices
        # Another thread draws the panel, and must not see a half-folded record.
        self._lock = threading.Lock()
        self._live = Live(console=console, refresh_per_second=REFRESH_HZ, get_renderable=self._draw)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def apply(self, record: Record) -> None:
        with self._lock:
            self.view.apply(record)
            self._startup.apply(record.event)

    def _draw(self) -> RenderableType:
        with self._lock:
            return panel(self.view, self._iterations, self._prices, startup=self._startup.line())


class Lines:
    """One line per finished iteration, evaluation and stop, and per stage of the start."""

    def __init__(
        self, view: RunView, iterations: int, prices: PriceTable, console: Console, is_own: bool = False
    ) -> None:
        self.view = view
        self._startup = Startup(view.facts.is_issued)
        self._iterations, self._prices, self._console = iterations, prices, console
        self._is_own = is_own

    def __enter__(self) -> Self:
        self._print(self._startup.line())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def apply(self, record: Record) -> None:
        self.view.apply(record)
        if self._startup.apply(record.event):
            self._print(self._startup.line())
        if self._is_own and isinstance(record.event, RunStopped) and not record.event.finished:
            # The error of this process has the same sentence.
            return
        self._print(line_of_record(self.view, record, self._iterations, self._prices))

    def _print(self, line: str | None) -> None:
        if line is not None:
            self._console.print(f"{duration(self.view.at):>12}  {plain(line)}", soft_wrap=True)


def line_of_record(view: RunView, record: Record, iterations: int, prices: PriceTable) -> str | None:
    """The line for a record, if it has one."""
    match record.event:
        case IterationDone() as done:
            explored = view.explorations.get(done.iteration + 1)
            parts = [
                f"iteration {done.iteration + 1}/{iterations}",
                f"rollout {duration(done.rollout_s)}",
                f"train {duration(done.train_s)}",
                *_rate(view),
                f"{count(explored.done if explored else 0, 'preview')}",
                count(len(view.timeline.preemptions), "preemption"),
                f"priced as if {dollars(view.bill(prices).dollars)}",
            ]
            return "  ".join(parts)
        case Evaluated() as seen:
            scores = (
                ", ".join(
                    f"{score_name(name)} {score(value)} ({score(low)} to {score(high)})"
                    for name, (value, low, high) in seen.scores.items()
                )
                or "no picture has a score"
            )
            return f"held out after {count(seen.iteration, 'iteration')}: {scores}"
        case RunStopped() as stopped:
            how = "finished" if stopped.finished else "failed" if stopped.failed else "stopped"
            return f"{how}: {stopped.reason}"
        case ProblemNoted() as noted:
            return f"{noted.source}: {noted.problem}"
        case _:
            return None


def panel(
    view: RunView,
    iterations: int,
    prices: PriceTable,
    standing: RunStanding | None = None,
    startup: str | None = None,
) -> RenderableType:
    """The whole panel.

    `standing` is the state beyond the journal, `startup` what a run that has just started waits for.
    """
    done = len(view.iterations)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    if standing is not None:
        grid.add_row("state", state_line(standing))
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(total=iterations, completed=done, width=30), f"{done}/{iterations}", _left(view, iterations)
    )
    grid.add_row("iterations", bar)
    if startup is not None:
        grid.add_row("now", Text(plain(startup)))
    grid.add_row("held out", _scores(view))
    for slot_class in SlotClass:
        rows = [row for row in view.timeline.ordered() if row.slot_class is slot_class]
        if rows:
            grid.add_row(slot_class.value, _strip(view, rows))
    if standing is not None and (elsewhere := [each for each in standing.machines if each.place]):
        grid.add_row("machines", machine_lines(elsewhere))
    grid.add_row("preemptions", _losses(view))
    grid.add_row("previews", _previews(view))
    grid.add_row("cost", _cost(view, prices))
    if view.gaps.exist:
        grid.add_row("missing", Text(plain("; ".join(view.gaps.counts())), style="bold red"))
    if view.problems:
        newest = view.problems[-1]
        shown = plain(f"{len(view.problems)}, the newest of {newest.source}: {newest.problem}", PROBLEM_LENGTH)
        grid.add_row("problems", Text(shown))
    title = f"Spotlight · {plain(view.facts.recipe)} · {duration(view.at)}" if view.facts.recipe else "Spotlight"
    return Panel(Group(grid, _key()), title=Text(title), title_align="left", border_style="dim", padding=(1, 2))


def state_line(standing: RunStanding) -> Text:
    """The state, its reason, and what a live run waits for."""
    line = Text(standing.state.value, style="bold")
    if standing.reason:
        line.append(f": {plain(standing.reason.rstrip('.'))}", style="")
    if standing.waiting_for:
        line.append(f"; waiting for {plain(standing.waiting_for)}", style="dim")
    if standing.last_progress_s is not None:
        line.append(f"; last progress {duration(standing.last_progress_s)} ago", style="dim")
    return line


def machine_lines(machines: list[NodeStanding]) -> Text:
    """Nodes on other machines, one per line; of a larger pool the states are counted."""
    if len(machines) > STRIP:
        states = Counter(each.state.value for each in machines)
        return Text(", ".join(f"{number:,} {state}" for state, number in sorted(states.items())))
    lines = [
        f"{each.node}  {count(each.slots, each.slot_class + ' slot')}  at {each.place}"
        f"{f', zone {each.zone}' if each.zone else ''}: {each.state}"
        for each in machines
    ]
    return Text("\n".join(map(plain, lines)))


def _rate(view: RunView) -> list[str]:
    """Samples per second of the newest iteration, from the end of the one before; empty for a first one."""
    if len(view.iterations) < 2:
        return []
    before, last = view.iterations[-2:]
    seconds = last.at - before.at
    return [f"{last.figures.get(SAMPLES, 0.0) / seconds:.2g} samples/s"] if seconds > 0 else []


def _left(view: RunView, iterations: int) -> Text:
    left = seconds_left(view, iterations)
    return Text("" if left is None else f"about {duration(left)} left", style="dim")


def _scores(view: RunView) -> Text:
    name = view.headline()
    if name is None:
        return Text("no evaluation yet", style="dim")
    curve = view.curve(name)
    first, last = curve[0][1], curve[-1][1]
    line = Text.assemble(f"{plain(score_name(name))} ", (score(last.value), "bold"))
    line.append(f" ({score(last.low)} to {score(last.high)})", style="dim")
    return line.append(f" from {score(first.value)}", style="dim") if len(curve) > 1 else line


def _strip(view: RunView, rows: list[SlotRow]) -> Text:
    states = [view.timeline.state(row) for row in rows]
    strip = Text()
    if len(rows) <= STRIP:
        for state in states:
            letter, style = LETTERS[state]
            strip.append(f" {letter} ", style=style).append(" ")
        return strip
    for state in LETTERS:
        if state in states:
            letter, style = LETTERS[state]
            strip.append(f" {letter} ", style=style).append(f" {states.count(state)}  ")
    return strip


def _losses(view: RunView) -> Text:
    taken = view.timeline.preemptions
    unannounced = sum(not one.noticed for one in taken)
    line = Text(count(len(taken)))
    if taken:
        line.append(f", {unannounced:,} without notice; {percent(view.waste)} of steps done again", style="dim")
    return line


def _previews(view: RunView) -> Text:
    if not view.explorations:
        return Text("none yet", style="dim")
    newest = view.explorations[max(view.explorations)]
    line = Text(f"{newest.done:,} of {newest.planned:,}")
    line.append(f" at {newest.steps} steps for iteration {newest.iteration + 1}", style="dim")
    measured = [one for _, one in sorted(view.explorations.items()) if "captured_variance" in one.figures]
    if measured:
        line.append(
            f"; captured at most {percent(measured[-1].figures['captured_variance'])} of the variance", style="dim"
        )
    return line


def _cost(view: RunView, prices: PriceTable) -> Text:
    bill = view.bill(prices)
    line = Text(dollars(bill.dollars))
    if bill.all_reserved:
        line.append(f" priced as if; all on demand {dollars(bill.all_reserved)}", style="dim")
    return line


def _key() -> Text:
    key = Text("\n")
    for state, (letter, style) in LETTERS.items():
        key.append(letter, style=style).append(f" {state.value}  ", style="dim")
    return key

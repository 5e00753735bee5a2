"""A run for Python code: its state, curve and samples, and orders to it. `spotlight.train` and `spotlight.open` return
one; all figures are those of `spotlight status` and the report, from the same journal."""

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from spotlight.control.market.prices import PriceTable
from spotlight.core.errors import InputError, SpotlightError, error_of, suggestion
from spotlight.core.events import Record
from spotlight.core.journal_tail import JournalTail
from spotlight.core.work import Work
from spotlight.folder import RunFolder
from spotlight.orders import DrainRun
from spotlight.surface.background import start
from spotlight.surface.compare.curve import CurveFold
from spotlight.surface.following import RunFollower, view_to_follow
from spotlight.surface.kept_view import latest
from spotlight.surface.liveness import State, standing_of
from spotlight.surface.ordering import order
from spotlight.surface.run_samples import RunSample, samples_of
from spotlight.surface.status import Status, status

if TYPE_CHECKING:
    from spotlight.control.ledger.tally import AuditReport


class CurveRow(TypedDict):
    """One held-out evaluation: cost until its weights were made, and a score with its 95 % interval."""

    iteration: int
    hours: float
    dollars: float
    score: str
    value: float
    low: float
    high: float


class IterationRow(TypedDict):
    """One finished iteration; `reward` is the mean of the training groups, which selection biases."""

    iteration: int
    at_s: float
    """Seconds of run time at its end."""
    rollout_s: float
    train_s: float
    reward: float


class RunHandle:
    """A run in a folder, live or ended; any number of handles may exist."""

    def __init__(
        self,
        folder: RunFolder,
        prices: PriceTable | None = None,
        process: "subprocess.Popen[str] | None" = None,
    ) -> None:
        """Use `spotlight.train` or `spotlight.open`."""
        self._folder = folder
        self._prices = prices or PriceTable.load()
        self._process = process
        self._tail: JournalTail | None = None
        self._curve = CurveFold(self._prices)

    @property
    def name(self) -> str:
        return self._folder.name

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._folder.path

    def __repr__(self) -> str:
        return f"RunHandle({str(self.path)!r})"

    def status(self) -> Status:
        """The state of the run now, as `spotlight status --json` prints it."""
        view = latest(self._folder.journal)
        return status(view, self._prices, standing_of(view, self.path))

    def curve(self, score: str | None = None) -> list[CurveRow]:
        """Held-out evaluations so far, of one score; default is the headline one. `pandas.DataFrame` takes the list."""
        fold = self._folded()
        known = sorted({name for seen in fold.view.evaluations for name in seen.scores})
        name = score or fold.view.headline()
        if name is None:
            return []
        if known and name not in known:
            raise InputError(f"the run {self.name} has no held-out score '{name}': {suggestion(name, known)}")
        bounds = dict(fold.view.curve(name))
        return [
            CurveRow(
                iteration=point.iteration,
                hours=point.hours,
                dollars=point.dollars,
                score=name,
                value=point.score,
                low=bounds[point.iteration].low,
                high=bounds[point.iteration].high,
            )
            for point in fold.points(name)
        ]

    def iterations(self) -> list[IterationRow]:
        """Finished iterations; `pandas.DataFrame` takes the list."""
        return [
            IterationRow(
                iteration=done.iteration, at_s=done.at, rollout_s=done.rollout_s, train_s=done.train_s,
                reward=done.reward,
            )
            for done in latest(self._folder.journal).iterations
        ]  # fmt: skip

    def samples(self, work: Work | str | None = None) -> Iterator[RunSample]:
        """Accepted samples; `work` selects rollouts, evaluations or audits."""
        if work is not None and work not in list(Work):
            raise InputError(f"there are no samples of '{work}': {suggestion(work, list(Work))}")
        return samples_of(self._folder, None if work is None else Work(work))

    def audit(self) -> "AuditReport":
        """Whether a sample was lost, doubled or trained wrongly, and which are missing."""
        from spotlight.surface.cli.report import verdict

        return verdict(self._folder)

    def report(self) -> Path:
        """Write the report of the records so far as one HTML file."""
        from spotlight.surface.cli.report import write

        return write(self._folder, self._prices)

    def drain(self) -> str:
        """Request a stop at the end of the iteration; return the reply. `wait` returns when the run has stopped."""
        return order(self._folder, DrainRun()).sentence

    def resume(self, overrides: Sequence[str] = (), *, wait: bool = False) -> "RunHandle":
        """Continue a run that was stopped or killed, as a process of its own; overrides as `section.key=value`."""
        settings = [argument for override in overrides for argument in ("--set", override)]
        self._process = start(["resume", str(self.path), *settings]).process
        if wait:
            self.wait(progress=True)
        return self

    def wait(self, timeout_s: float | None = None, *, progress: bool = False) -> Status:
        """Block until the run has ended or the time is up, and return its status.

        Raises SpotlightError if the run failed or its controller died. An interrupt ends the wait, not the run.
        """
        view = view_to_follow(self._folder)
        follower = RunFollower(self._folder, view, self._process)
        if progress:
            from spotlight.surface.panel import watcher

            with watcher(self._folder.read_config()["iterations"], self._prices, view) as watching:
                follower.follow(watching.apply, timeout_s)
        else:
            follower.follow(_ignore, timeout_s)
        found = self.status()
        if found.state in (State.FAILED, State.DEAD):
            raise self._error(found.reason or "the run has ended")
        return found

    def _error(self, reason: str) -> SpotlightError:
        code = None if self._process is None else self._process.poll()
        return SpotlightError(reason) if code is None else error_of(code, reason)

    def _folded(self) -> CurveFold:
        """Everything so far; a later call folds in the new records alone."""
        if self._tail is None:
            self._tail = JournalTail(self._folder.journal)
        for record in self._tail.advance():
            self._curve.apply(record)
        return self._curve


def _ignore(record: Record) -> None:
    pass

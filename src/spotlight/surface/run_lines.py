"""`spotlight train --json`: one JSON object per line, each with its `kind`; all else goes to standard error.

started, then iteration | evaluation | problem in the order of the journal, then ended
"""

import sys
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

import msgspec

from spotlight.control.market.prices import PriceTable
from spotlight.core.events import Evaluated, IterationDone, ProblemNoted, Record
from spotlight.surface.json_output import print_json
from spotlight.surface.liveness import State
from spotlight.surface.projections import RunView, ScoreInterval


class RunLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Base of all lines."""


class StartedLine(RunLine, frozen=True, kw_only=True, tag="started"):
    run: str
    """The run's folder."""
    iterations: int
    attempt: int
    """1 for a new run, one more at every resume."""


class IterationDoneLine(RunLine, frozen=True, kw_only=True, tag="iteration"):
    iteration: int
    """From 0."""
    seconds: float
    """Run time at its end."""
    rollout_s: float
    train_s: float
    reward: float | None
    """Mean of the training groups; None if no sample has a reward."""
    preemptions: int
    dollars: float
    """Of the run so far, priced as if."""


class EvaluationLine(RunLine, frozen=True, kw_only=True, tag="evaluation"):
    iteration: int
    """Number of iterations trained so far."""
    seconds: float
    scores: dict[str, ScoreInterval]


class ProblemLine(RunLine, frozen=True, kw_only=True, tag="problem"):
    seconds: float
    source: str
    problem: str


class EndedLine(RunLine, frozen=True, kw_only=True, tag="ended"):
    run: str
    state: State
    reason: str | None
    report: str | None
    """None if it could not be written."""
    clean: bool | None
    """Whether every invariant holds; None if the run has not come to its end."""
    whole: bool | None


class JsonLines:
    """Prints the lines of a run; a `Watcher` as the panel is."""

    def __init__(self, run: Path, iterations: int, view: RunView, prices: PriceTable) -> None:
        self.view = view
        self._run, self._iterations, self._prices = run, iterations, prices
        # The stream at the start: nothing else may get in between.
        self._out = sys.stdout

    def __enter__(self) -> Self:
        line = StartedLine(run=str(self._run), iterations=self._iterations, attempt=self.view.facts.attempts)
        print_line(line, self._out)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def apply(self, record: Record) -> None:
        self.view.apply(record)
        line = self._line(record)
        if line is not None:
            print_line(line, self._out)

    def _line(self, record: Record) -> RunLine | None:
        match record.event:
            case IterationDone() as done:
                return IterationDoneLine(
                    iteration=done.iteration,
                    seconds=record.at,
                    rollout_s=done.rollout_s,
                    train_s=done.train_s,
                    reward=done.reward if done.reward == done.reward else None,
                    preemptions=len(self.view.timeline.preemptions),
                    dollars=self.view.bill(self._prices).dollars,
                )
            case Evaluated(iteration=iteration):
                scores = self.view.evaluations[-1].scores
                return EvaluationLine(iteration=iteration, seconds=record.at, scores=scores)
            case ProblemNoted() as noted:
                return ProblemLine(seconds=record.at, source=noted.source, problem=noted.problem)
            case _:
                return None


def print_line(line: RunLine, out: TextIO | None = None) -> None:
    print_json(line, out)

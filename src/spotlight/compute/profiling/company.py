"""Other slots of this machine, at work while an operation is timed and at rest otherwise.

    starting -> resting <-> working -> gone

The owner sends one byte per order, WORK or REST, and gets it back once it holds; when the owner's end is closed, the
neighbour leaves. Invariant: inside `at_work` every neighbour computes, outside none does, and none outlives its owner
(tests/unit/test_profile_company.py).
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from spotlight.core.errors import EnvironmentProblem

WORK, REST = b"w", b"r"
LEAVE_S = 30.0
"""A neighbour that has not left after so long, though nobody owns it any more, is killed."""


class Company:
    """So many neighbours with the same model."""

    def __init__(self, model: str, threads: int, members: int) -> None:
        self.members = members
        self._command = [sys.executable, "-m", "spotlight.compute.profiling.neighbour", model, str(threads)]
        self._neighbours: list[subprocess.Popen[bytes]] = []

    def __str__(self) -> str:
        return "another slot" if self.members == 1 else f"{self.members} other slots"

    def __enter__(self) -> "Company":
        for _ in range(self.members):
            neighbour = subprocess.Popen(self._command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._neighbours.append(neighbour)
        try:
            self._await(REST)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """All of them compute inside the block."""
        try:
            self._order(WORK)
            yield
        finally:
            self._order(REST)

    def _order(self, order: bytes) -> None:
        for neighbour in self._neighbours:
            assert neighbour.stdin is not None
            try:
                neighbour.stdin.write(order)
            except BrokenPipeError:
                continue  # it is gone, which the missing answer tells
        self._await(order)

    def _await(self, order: bytes) -> None:
        # All are heard before anything is said of one, so that no answer is left for the next order.
        answers = [neighbour.stdout.read(1) for neighbour in self._neighbours if neighbour.stdout is not None]
        if any(answer != order for answer in answers):
            raise EnvironmentProblem(
                f"of {self} that were to work beside the measurement, one is gone, so that its figures would be "
                "those of an idle machine; free memory, for each loads the model, or ask for fewer with --beside."
            )

    def _end(self) -> None:
        for neighbour in self._neighbours:
            assert neighbour.stdin is not None
            neighbour.stdin.close()
        for neighbour in self._neighbours:
            assert neighbour.stdout is not None
            try:
                neighbour.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                neighbour.kill()
                neighbour.wait()
            neighbour.stdout.close()

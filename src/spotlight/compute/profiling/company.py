"""Other slots of this machine: they compute while an operation is timed, and rest otherwise.

    starting -> resting <-> working -> gone

The owner sends one byte per order, WORK or REST; the neighbour returns it once the order is in effect, and exits when
the owner closes its end. Invariant (tests/unit/test_profile_company.py): every neighbour computes inside `at_work`,
none outside, and none outlives its owner.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from spotlight.core.errors import EnvironmentProblem

WORK, REST = b"w", b"r"
LEAVE_S = 30.0
"""Time limit for a neighbour to exit after its owner has closed the pipe; then it is killed."""


class Company:
    """`members` neighbour processes with the same model."""

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
        """Let all neighbours compute inside the block."""
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
                continue  # the neighbour is gone; its missing acknowledgement reports it
        self._await(order)

    def _await(self, order: bytes) -> None:
        # All acknowledgements are read before an error is raised, so that none is left for the next order.
        replies = [neighbour.stdout.read(1) for neighbour in self._neighbours if neighbour.stdout is not None]
        if any(reply != order for reply in replies):
            raise EnvironmentProblem(
                f"of {self} that should compute beside the measurement, one is gone, so the figures would be those of "
                "an idle machine; free memory, because each slot loads the model, or lower --beside."
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

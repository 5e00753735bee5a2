"""A node on another machine, as the door sees it: what it sends is delivered, dropped, or ends the node.

The run's own nodes decide what is normal. Until the first of their workers has set the run's kernels, messages of other
machines wait. A machine with other kernels, or that fails again and again, is sent away with the reason and costs the
run nothing else (tests/unit/test_join_scope.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from spotlight.control.directory import Directory
from spotlight.controller.scope import outside
from spotlight.core import messages as m
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId

TROUBLES_ALLOWED = 3
"""Failures of a node, none of a sample, until it is sent away."""


WAITING_LIMIT = 1024
"""Messages of a node that can wait, heartbeats not counted: workers send a few before they have work."""


class Fate(StrEnum):
    """What happens with a message."""

    DELIVERED = "delivered"
    DROPPED = "dropped"
    EXPELS = "expels"
    """It is dropped, and its node is sent away."""


class Judged(NamedTuple):
    fate: Fate
    problem: str = ""


@dataclass(eq=False)
class RemoteNode:
    """One incarnation of a node on another machine."""

    node: NodeId
    spec: NodeSpec
    troubles: int = 0
    _waiting: list[m.Envelope] = field(default_factory=list)

    def receive(self, envelope: m.Envelope, directory: Directory) -> Iterator[tuple[m.Envelope, Judged]]:
        """The messages whose turn it is, each with its fate; the next is judged when this one has been handled."""
        if directory.kernels is None:
            if len(self._waiting) >= WAITING_LIMIT:
                yield envelope, Judged(Fate.EXPELS, "the node sends too much before the run has work for it.")
            elif not isinstance(envelope.message, m.Alive):
                self._waiting.append(envelope)
            return
        ready, self._waiting = [*self._waiting, envelope], []
        for each in ready:
            yield each, self.judge(each, directory)

    def judge(self, envelope: m.Envelope, directory: Directory) -> Judged:
        if problem := outside(self.node, self.spec, envelope):
            return Judged(Fate.DROPPED, f"the node sent {problem}; such messages are dropped.")
        match envelope.message:
            case m.Hello() as hello:
                return self._judge_hello(envelope, hello, directory)
            case m.StoreFailed(problem=problem):
                return Judged(Fate.EXPELS, problem)
            case m.Failed(problem=problem, fatal=fatal, request=request) if fatal or not request or not envelope.worker:
                self.troubles += 1
                return Judged(Fate.EXPELS if self.troubles >= TROUBLES_ALLOWED else Fate.DROPPED, problem)
        return Judged(Fate.DELIVERED)

    def _judge_hello(self, envelope: m.Envelope, hello: m.Hello, directory: Directory) -> Judged:
        known = directory.workers_of(self.node)
        if len(known) >= self.spec.slots and envelope.worker not in known:
            return Judged(Fate.DROPPED, f"the node has more workers than its {self.spec.slots} slots.")
        if (problem := directory.mismatch(hello)) is not None:
            return Judged(Fate.EXPELS, problem)
        return Judged(Fate.DELIVERED)

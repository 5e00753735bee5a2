"""A node on another machine, as the door sees it: what it sends is delivered, dropped, or ends the node.

The run's own nodes decide what is normal: a machine that joins with other kernels, or that fails again and again, is
sent away with the reason and costs the run nothing else (tests/unit/test_join_security.py).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from spotlight.control.directory import Directory
from spotlight.controller.scope import outside
from spotlight.core import messages as m
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId

TROUBLES_ALLOWED = 3
"""Failures of a node, none of a sample, until it is sent away."""


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

    def judge(self, envelope: m.Envelope, directory: Directory) -> Judged:
        if problem := outside(self.node, self.spec, envelope):
            return Judged(Fate.DROPPED, f"the node sent {problem}; such messages are dropped.")
        match envelope.message:
            case m.Hello() as hello:
                return self._judge_hello(envelope, hello, directory)
            case m.StoreFailed(problem=problem):
                return Judged(Fate.EXPELS, problem)
            case m.Failed(problem=problem, fatal=fatal) if fatal or envelope.worker is None:
                self.troubles += 1
                return Judged(Fate.EXPELS if self.troubles >= TROUBLES_ALLOWED else Fate.DROPPED, problem)
        return Judged(Fate.DELIVERED)

    def _judge_hello(self, envelope: m.Envelope, hello: m.Hello, directory: Directory) -> Judged:
        known = directory.workers_of(self.node)
        if len(known) >= self.spec.slots and envelope.worker not in known:
            return Judged(Fate.DROPPED, f"the node has more workers than its {self.spec.slots} slots.")
        # `JoinPool` admits no machine before the run's own workers have set the kernels.
        if directory.kernels is not None and (problem := directory.mismatch(hello)) is not None:
            return Judged(Fate.EXPELS, problem)
        return Judged(Fate.DELIVERED)

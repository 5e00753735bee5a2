"""This rank's side of a gang: its share of a part, and the exchange that ends an update.

    shares of each part  ->  local gradients  ->  meet: tallies, speeds, sizes  ->  gradients summed  ->  one step each

Invariant: the sums are the same bits on every rank, so all ranks take the same step and hold the same weights
(tests/processes/test_gang_training.py). Nothing of the trainer's state changes before the last exchange succeeds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from spotlight.compute.parallel.gang_group import GangGroup
from spotlight.compute.parallel.group import CrewBroken, CrewGroup
from spotlight.compute.parallel.links import ExchangeFailure
from spotlight.compute.train.update_tally import UpdateTally
from spotlight.control.pipeline.tsp import rank_shares, smoothed_speeds
from spotlight.core.errors import RankLost, Stopped


@dataclass(frozen=True)
class RankReport:
    """What this rank did in an update."""

    step: int
    rows: int
    """Rows of the update's samples, kept or not, on all ranks: the divisor of the gradient."""
    tally: UpdateTally
    seconds: float
    """Time of its forwards and backwards."""
    micro_batch: int
    """Rows per forward that its search has chosen so far."""
    is_settled: bool


@dataclass(frozen=True)
class MeetingResult:
    """What the ranks agreed on."""

    tally: UpdateTally
    micro_batch: int
    """Least size that a rank chose."""
    is_settled: bool
    """Whether the search of every rank has ended."""


class GangSide:
    """One rank in a gang of data-parallel crews."""

    def __init__(self, gang: GangGroup, crew: CrewGroup | None, is_even: bool) -> None:
        """`is_even`: ranks take equal shares whatever their speed."""
        self.gang = gang
        self.crew = crew
        self._is_even = is_even
        self._degree = 1 if crew is None else crew.degree
        self._speeds: list[float] | None = None
        """Rows per second of each share, from earlier updates."""

    @property
    def share_number(self) -> int:
        """Number of the share that this rank's crew trains."""
        return self.gang.rank // self._degree

    def shares(self, pairs: int) -> tuple[range, ...]:
        """Divide a part between the crews."""
        return rank_shares(pairs, self._speeds or [1.0] * (self.gang.ranks // self._degree))

    def meet(self, report: RankReport, theta: Mapping[str, nn.Parameter]) -> MeetingResult:
        """Sum the tallies and gradients of all ranks; plain gradients are summed in place."""
        present = bytes(parameter.grad is not None for parameter in theta.values())
        reports = self.gang.gather(
            {
                "step": report.step,
                "update_rows": report.rows,
                "tally": report.tally.plain(),
                "seconds": report.seconds,
                "micro_batch": report.micro_batch,
                "is_settled": report.is_settled,
                "present": present,
            }
        )
        self._check(reports)
        self._sum_gradients(theta, [any(each) for each in zip(*(r["present"] for r in reports), strict=True)])
        # The ranks of a crew train the same rows: the first one counts them.
        leaders = reports[:: self._degree]
        tallies = [leader["tally"] for leader in leaders]
        if not self._is_even:
            measured = [r["tally"]["rows"] / r["seconds"] if r["seconds"] else None for r in leaders]
            self._speeds = smoothed_speeds(self._speeds, measured)
        return MeetingResult(
            UpdateTally.total(tallies),
            min(each["micro_batch"] for each in reports),
            all(each["is_settled"] for each in reports),
        )

    def lost(self, error: CrewBroken) -> RankLost:
        """Drop the gang after its crew failed in a forward or backward."""
        number = None if error.waited_for is None else int(error.waited_for.rpartition(" ")[2])
        return self.gang.lost("an exchange of its crew", ExchangeFailure(number, str(error)))

    def _check(self, reports: list[dict[str, Any]]) -> None:
        kinds = sorted({(each["step"], each["update_rows"]) for each in reports})
        if len(kinds) > 1:
            raise Stopped(
                f"the training ranks are at different updates (step and rows: {kinds}), so their gradients cannot be "
                "added; restore all ranks to one checkpoint."
            )

    @torch.no_grad()
    def _sum_gradients(self, theta: Mapping[str, nn.Parameter], present: list[bool]) -> None:
        """A gradient that only some ranks have counts as zero on the others; one that no rank has stays absent."""
        gradients = []
        for parameter, is_present in zip(theta.values(), present, strict=True):
            # Gradients of divided weights are summed by FSDP2.
            if is_present and not isinstance(parameter, DTensor):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        self.gang.all_reduce(gradients)

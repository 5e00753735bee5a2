"""Policies, their outcomes, and ratios trace by trace."""

import statistics
from collections.abc import Sequence
from enum import StrEnum

import msgspec
from rich.table import Table

from benchmarks.lib.figures import Figure


class Kind(StrEnum):
    """The reaction to a loss."""

    ELASTIC = "elastic"
    RELAUNCH = "relaunch"
    IDLE = "idle"
    SINGLE = "single"


class Policy(msgspec.Struct, frozen=True):
    """One row of the table."""

    kind: Kind
    size: int = 1
    """Slots of a fixed crew; 1 for the other policies."""

    @property
    def label(self) -> str:
        return self.kind.value if self.size == 1 else f"{self.kind.value}, crews of {self.size}"


POLICIES = (
    Policy(Kind.ELASTIC),
    *(Policy(Kind.RELAUNCH, size) for size in (2, 4, 8)),
    *(Policy(Kind.IDLE, size) for size in (2, 4, 8)),
    Policy(Kind.SINGLE),
)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one policy."""

    policy: Policy
    pictures: int
    seed: int
    accepted: int
    rounds: int
    hours: float
    dollars: float
    losses: int
    regroups: int

    @property
    def per_dollar(self) -> float:
        return self.accepted / self.dollars

    @property
    def per_hour(self) -> float:
        return self.accepted / self.hours


def of_policy(outcomes: Sequence[Outcome], policy: Policy, pictures: int) -> list[Outcome]:
    """The policy's outcomes by seed."""
    found = [each for each in outcomes if each.policy == policy and each.pictures == pictures]
    return sorted(found, key=lambda each: each.seed)


def best(outcomes: Sequence[Outcome], kind: Kind, pictures: int) -> Policy:
    """The best size of crews of this kind, over all seeds."""
    sizes = {each.policy for each in outcomes if each.policy.kind is kind and each.pictures == pictures}
    return max(sorted(sizes, key=lambda policy: policy.size), key=lambda policy: _mean(outcomes, policy, pictures))


def _mean(outcomes: Sequence[Outcome], policy: Policy, pictures: int) -> float:
    return statistics.mean(each.per_dollar for each in of_policy(outcomes, policy, pictures))


def ratio(outcomes: Sequence[Outcome], policy: Policy, pictures: int) -> Figure:
    """Ratio of elastic to the policy, trace by trace."""
    pairs = zip(of_policy(outcomes, Policy(Kind.ELASTIC), pictures), of_policy(outcomes, policy, pictures), strict=True)
    ratios = [elastic.per_dollar / other.per_dollar for elastic, other in pairs]
    return Figure.mean(ratios, f"times the pictures per dollar of {policy.label}; {pictures} pictures per round")


def figures_of(outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    """All ratios; those of the first number of pictures have no suffix."""
    figures: dict[str, Figure] = {}
    works = sorted({each.pictures for each in outcomes})
    for pictures in works:
        suffix = "" if pictures == works[0] else f"_{pictures}_pictures"
        for kind in (Kind.RELAUNCH, Kind.IDLE, Kind.SINGLE):
            name = f"goodput_ratio_vs_{kind.value}"
            figures[name + suffix] = ratio(outcomes, best(outcomes, kind, pictures), pictures)
            for size in sorted({each.policy.size for each in outcomes if each.policy.kind is kind} - {1}):
                figures[f"{name}_of_{size}{suffix}"] = ratio(outcomes, Policy(kind, size), pictures)
        for policy in sorted({each.policy for each in outcomes}, key=lambda policy: policy.label):
            values = [each.per_dollar for each in of_policy(outcomes, policy, pictures)]
            label = policy.label.replace(", crews of ", "_")
            figures[f"pictures_per_dollar_{label}{suffix}"] = Figure.mean(values, "accepted pictures per dollar")
    return figures


def table_of(outcomes: Sequence[Outcome], title: str) -> Table:
    table = Table("pictures per round", "policy", "per dollar", "per hour", "elastic is", "regroups", title=title)
    for pictures in sorted({each.pictures for each in outcomes}):
        for policy in POLICIES:
            runs = of_policy(outcomes, policy, pictures)
            times = ratio(outcomes, policy, pictures)
            table.add_row(
                str(pictures),
                policy.label,
                f"{statistics.mean(each.per_dollar for each in runs):.2f}",
                f"{statistics.mean(each.per_hour for each in runs):.0f}",
                f"{times.value:.2f}x ({times.low:.2f} .. {times.high:.2f})",
                f"{statistics.mean(each.regroups for each in runs):.0f}" if policy.kind is Kind.ELASTIC else "",
            )
        table.add_section()
    return table

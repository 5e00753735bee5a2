"""Figures and table of the benchmark."""

from collections.abc import Iterator, Sequence

import msgspec
from rich.table import Table

from benchmarks.lib.figures import Figure
from benchmarks.zones.policies import Rule
from benchmarks.zones.run import Commits, Outcome

RULES = [rule for rule in Rule if rule is not Rule.NONE]
TIMES = "times the iterations per hour"


def figures_of(outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    """Ratios to no rule, trace by trace: median, least and most over all work and seeds, and means by work."""
    found: dict[str, Figure] = {}
    for commits in Commits:
        suffix = "" if commits is Commits.USUAL else "_without_commits"
        chosen = [outcome for outcome in outcomes if outcome.case.commits is commits]
        for rule in RULES:
            found[f"speedup_{rule}{suffix}"] = Figure.median([ratio for _, ratio in _ratios(chosen, rule)], TIMES)
            for name in dict.fromkeys(outcome.case.work.name for outcome in chosen):
                ratios = [ratio for work, ratio in _ratios(chosen, rule) if work == name]
                found[f"speedup_{rule}{suffix}, {name}"] = Figure.mean(ratios, TIMES)
        plain = [outcome for outcome in chosen if outcome.case.rule is Rule.NONE]
        found[f"samples_lost{suffix}"] = Figure.median([outcome.lost for outcome in plain], "per sample")
        found[f"losses{suffix}"] = Figure.median([float(outcome.losses) for outcome in plain], "nodes lost per run")
    return found


def _ratios(outcomes: Sequence[Outcome], rule: Rule) -> Iterator[tuple[str, float]]:
    by_case = {outcome.case: outcome for outcome in outcomes}
    for case, outcome in by_case.items():
        if case.rule is rule:
            plain = by_case[msgspec.structs.replace(case, rule=Rule.NONE)]
            yield case.work.name, plain.iteration_s / outcome.iteration_s


def table_of(outcomes: Sequence[Outcome]) -> Table:
    table = Table(
        title="virtual time, losses without notice: iterations per hour relative to no rule, means over traces"
    )
    for column in ("work", "commits", *RULES, "samples lost"):
        table.add_column(column, justify="left" if column in ("work", "commits") else "right")
    for name in dict.fromkeys(outcome.case.work.name for outcome in outcomes):
        for commits in Commits:
            alike = [each for each in outcomes if each.case.work.name == name and each.case.commits is commits]
            cells = []
            for rule in RULES:
                ratios = [ratio for _, ratio in _ratios(alike, rule)]
                cells.append(f"{sum(ratios) / len(ratios):.3f} ({min(ratios):.2f}, {max(ratios):.2f})")
            plain = [each.lost for each in alike if each.case.rule is Rule.NONE]
            table.add_row(name, commits, *cells, f"{sum(plain) / len(plain):.2%}")
    return table

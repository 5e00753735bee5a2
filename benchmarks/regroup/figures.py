"""Seconds from a kill to the survivors' next step, in parts, against a restart of the crew."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.lib.figures import Figure


@dataclass(frozen=True)
class Kill:
    """Seconds from the SIGKILL."""

    leader: bool
    detect: float
    form: float | None
    resume: float | None
    total: float


def figures_of(kills: Sequence[Kill], warm: Sequence[float], cold: Sequence[float]) -> dict[str, Figure]:
    totals = [kill.total for kill in kills]
    parts = {
        "detect": [kill.detect for kill in kills],
        "form": [kill.form for kill in kills if kill.form is not None],
        "resume": [kill.resume for kill in kills if kill.resume is not None],
        "leader_regroup": [kill.total for kill in kills if kill.leader],
        "follower_regroup": [kill.total for kill in kills if not kill.leader],
    }
    figures = {"regroup_p50_s": Figure.median(totals, "s"), "regroup_p99_s": _p99(totals)}
    for name, values in parts.items():
        figures[f"{name}_s"] = Figure.median(values, "s, median")
        figures[f"{name}_p99_s"] = _p99(values)
    figures["relaunch_cold_s"] = Figure.median(cold, "s, median")
    figures["relaunch_zygote_s"] = Figure.median(warm, "s, median")
    typical = statistics.median(totals)
    for name, seconds in (("speedup_vs_relaunch", cold), ("speedup_vs_zygote", warm)):
        figures[name] = Figure.median([each / typical for each in seconds], "times, medians")
    return figures


def _p99(values: Sequence[float]) -> Figure:
    ordered = sorted(values)
    value = ordered[min(len(ordered) - 1, -(-99 * len(ordered) // 100) - 1)]
    return Figure(value=value, low=ordered[0], high=ordered[-1], unit="s")

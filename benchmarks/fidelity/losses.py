"""Losses of spot nodes while iterations count, whatever the profile: their times are multiples of an iteration.

    calm = Undisturbed.of(records, speed)          # of a simulation without losses
    trace = losses(seed, nodes, calm, iterations=8, slack_s=40)
    check_lost([real, simulated])                  # InputError if one of them lost no node

Invariant (tests/unit/test_fidelity_losses.py): no node is lost before the end of the warm-up, and until the end of the
run nodes are lost with notice, without notice, and several at one instant.
"""

from collections.abc import Sequence
from typing import Self

import msgspec

from benchmarks.lib.local_runs import Timing, timing, warmed_up
from spotlight.control.market.traces import Happening, Trace, in_order
from spotlight.control.market.weather import Weather, generate
from spotlight.core.errors import InputError
from spotlight.core.events import NodeLost, Record

CLIMATE = Weather(
    median_life_s=3.3,
    shortest_life_s=1.3,
    mean_absence_s=1.0,
    shortest_absence_s=0.4,
    median_zone_s=5.2,
    mean_outage_s=0.9,
    noticed_share=0.5,
    notices_s=(0.65, 0.2),
)
"""In iterations, not seconds. A node lives for a few iterations, and sometimes all nodes go at once."""
TIMES = (
    *("median_life_s", "shortest_life_s", "mean_absence_s", "shortest_absence_s"),
    *("median_zone_s", "mean_outage_s"),
)
"""Times of the climate, beside its notices."""
ATTEMPTS = 200
"""Traces that are generated in search of one with all kinds of losses."""
STRIDE = 1000
"""Distance between the seeds of these attempts."""


class Undisturbed(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a run without losses, in seconds of the profile."""

    warm_up_s: float
    """Time at which the warm-up ends."""
    iteration_s: float

    @classmethod
    def of(cls, records: Sequence[Record], speed: float) -> Self:
        return cls(warm_up_s=warmed_up(records) * speed, iteration_s=timing(records, speed).iteration)


def weather(iteration_s: float) -> Weather:
    """The climate in seconds."""
    lasting = {name: getattr(CLIMATE, name) * iteration_s for name in TIMES}
    notices_s = tuple(notice * iteration_s for notice in CLIMATE.notices_s)
    return msgspec.structs.replace(CLIMATE, **lasting, notices_s=notices_s)


def losses(seed: int, nodes: Sequence[str], calm: Undisturbed, iterations: int, slack_s: float) -> Trace:
    """A trace whose losses begin `slack_s` after the warm-up of `calm`: by then a run with a slower start is warm, too.

    A loss of each kind comes within `iterations` iterations after the warm-up.
    """
    lead_in_s = calm.warm_up_s + slack_s
    end_s = calm.warm_up_s + iterations * calm.iteration_s
    hours = 2 * iterations * calm.iteration_s / 3600
    for attempt in range(ATTEMPTS):
        generated = generate(seed + STRIDE * attempt, nodes, hours, weather(calm.iteration_s), "fidelity")
        trace = later(generated, lead_in_s)
        if has_all_kinds(trace, end_s):
            return trace
    raise InputError(
        f"within {iterations} iterations of {calm.iteration_s:.0f} s no trace lost nodes with notice, without notice "
        "and several at once; count more iterations (--iterations), or let less time of the profile pass in a second "
        "(--speed), so that the start of the processes takes less of it."
    )


def later(trace: Trace, seconds: float) -> Trace:
    """The trace with all events after the beginning delayed by `seconds`."""
    events = [
        msgspec.structs.replace(event, time_s=event.time_s + seconds) if event.time_s else event
        for event in trace.events
    ]
    return in_order(trace.name, events)


def has_all_kinds(trace: Trace, end_s: float) -> bool:
    """Whether nodes are lost with notice, without notice, and several at one instant, before `end_s`."""
    kills = [event for event in trace.events if event.event is Happening.KILL and event.time_s < end_s]
    are_noticed = {trace.noticed(kill) for kill in kills}
    return len(are_noticed) == 2 and len({kill.time_s for kill in kills}) < len(kills)


def lost_early(records: Sequence[Record]) -> int:
    """Number of nodes lost in the warm-up."""
    warm_s = warmed_up(records)
    return sum(isinstance(record.event, NodeLost) and record.at <= warm_s for record in records)


def check_lost(timings: Sequence[Timing]) -> None:
    """Raise if one of the runs lost no node after the warm-up."""
    if not all(each.losses for each in timings):
        lost = " and ".join(str(each.losses) for each in timings)
        raise InputError(
            f"the real and the simulated run lost {lost} nodes while their iterations counted, so the pair says "
            "nothing about losses; count more iterations (--iterations)."
        )

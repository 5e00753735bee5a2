"""Makes traces that look like a spot market: heavy-tailed lives, losses in bulk, zones that go off and on.

Invariant: a node's fate depends on the seed, its name and its zone only, so another node changes nothing for the others
(tests/unit/test_market.py). The statistics are those reported of probed H100 zones: most lives are short and a few very
long, a zone often goes as a whole, zones are independent.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from spotlight.control.market.traces import Happening, Trace, TraceEvent, in_order
from spotlight.core.errors import ConfigError
from spotlight.core.rng import Purpose, derive_key, generator

DIGITS = 1
"""Decimals of a second that a generated trace keeps."""


class Weather(msgspec.Struct, frozen=True, kw_only=True):
    """What a market is like."""

    median_life_s: float = 1200.0
    tail: float = 1.1
    """Shape of the Lomax distribution of lives: the smaller, the heavier; at or below 1 there is no mean."""
    shortest_life_s: float = 60.0
    mean_absence_s: float = 900.0
    shortest_absence_s: float = 120.0
    zones: int = 1
    median_zone_s: float = 14400.0
    """How long a zone stays on; then all its nodes go at once."""
    mean_outage_s: float = 1800.0
    noticed_share: float = 0.9
    notices_s: tuple[float, ...] = (120.0, 30.0)
    """Lengths of notice, each as likely."""

    def __post_init__(self) -> None:
        times = (
            *(self.median_life_s, self.shortest_life_s, self.mean_absence_s, self.shortest_absence_s),
            *(self.median_zone_s, self.mean_outage_s, self.tail),
        )
        if min(times) <= 0 or self.zones < 1 or not 0 <= self.noticed_share <= 1 or not self.notices_s:
            raise ConfigError(
                f"this weather is impossible ({self}); times, tail and zones must be above 0, noticed_share within 0 "
                "to 1, and notices_s must hold at least one length."
            )


def generate(seed: int, nodes: Sequence[str], hours: float, weather: Weather | None = None, name: str = "") -> Trace:
    """A trace of these nodes; whoever is away at the end comes back, so that a run may outlive it."""
    weather = weather or Weather()
    end = hours * 3600.0
    events: list[TraceEvent] = []
    outages = [_outages(seed, zone, end, weather) for zone in range(weather.zones)]
    for index, node in enumerate(nodes):
        events += _life(seed, node, outages[index % weather.zones], end, weather)
    return in_order(name or f"seed-{seed}", events)


def _outages(seed: int, zone: int, end: float, weather: Weather) -> list[tuple[float, float, float]]:
    """(from, to, seconds of notice or 0) of every time that the zone is off."""
    draw = generator(derive_key(Purpose.DATA, seed, "zone", zone))
    spells: list[tuple[float, float, float]] = []
    now = 0.0
    while True:
        start = now + weather.shortest_life_s + _lomax(draw, weather.median_zone_s, weather.tail)
        notice = _notice(draw, weather)
        if start >= end:
            return spells
        now = start + weather.shortest_absence_s + draw.exponential(weather.mean_outage_s)
        spells.append((start, now, notice))


def _life(
    seed: int, node: str, outages: Sequence[tuple[float, float, float]], end: float, weather: Weather
) -> list[TraceEvent]:
    draw = generator(derive_key(Purpose.DATA, seed, "node", node))
    events: list[TraceEvent] = []
    now = 0.0
    while True:
        events.append(TraceEvent(_rounded(now), node, Happening.UP))
        lost = now + max(weather.shortest_life_s, _lomax(draw, weather.median_life_s, weather.tail))
        notice, back = _notice(draw, weather), lost + weather.shortest_absence_s
        back += draw.exponential(weather.mean_absence_s)
        for start, stop, zone_notice in outages:
            if now < start <= lost:
                # Nodes of one zone go at the same instant and straggle back.
                lost, notice, back = start, zone_notice, stop + draw.exponential(weather.shortest_absence_s)
                break
        back = _when_on(back, outages, weather.shortest_life_s)
        if lost >= end:
            return events
        if notice:
            # A machine is not given away already doomed: it works unwarned for half its life at least.
            warned = max((now + lost) / 2, lost - notice)
            events.append(TraceEvent(_rounded(warned), node, Happening.NOTICE, _rounded(lost - warned)))
        events.append(TraceEvent(_rounded(lost), node, Happening.KILL))
        now = back


def _when_on(time: float, outages: Sequence[tuple[float, float, float]], shortest_life_s: float) -> float:
    """The first instant from `time` on at which the zone is on and stays so for the shortest life."""
    for start, stop, _ in outages:
        if start - shortest_life_s < time < stop:
            time = stop
    return time


def _lomax(draw: np.random.Generator, median: float, tail: float) -> float:
    scale = median / (2 ** (1 / tail) - 1)
    return float(scale * math.expm1(-math.log1p(-draw.random()) / tail))


def _notice(draw: np.random.Generator, weather: Weather) -> float:
    """Seconds of notice, 0 for none; always two draws, so that one loss never shifts the next."""
    warned, length = draw.random() < weather.noticed_share, draw.integers(len(weather.notices_s))
    return weather.notices_s[int(length)] if warned else 0.0


def _rounded(seconds: float) -> float:
    return round(seconds, DIGITS)

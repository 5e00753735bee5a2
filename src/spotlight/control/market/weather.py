"""Generates traces with the statistics of a spot market: heavy-tailed lifetimes, bulk losses, hours of scarcity.

Three causes end a node's lifetime:
- its own preemption: lifetimes are Lomax distributed;
- an outage of its zone: all nodes of the zone are lost at one instant;
- a scarcity of its zone: for hours only a share of the nodes is available, with short lifetimes.

    plenty --median_plenty_s--> scarcity (most nodes of the zone are lost at once) --median_scarcity_s--> plenty

The defaults are fitted to published spot capacity:
- GCP H100, 13 zones, 14.6 days (SkyNomad, arXiv 2601.06520, and its artifact's counts): runs of "at least half of the
  nodes" have a median of 20 minutes and a mean of 1.8 hours. A Lomax distribution has mean / median =
  1 / ((tail - 1) (2^(1 / tail) - 1)), which is 5.4 at a tail of 1.25. Losses come 3 to 10 at a time of 16, often all;
  zones are independent (correlation of losses 0.005 on average).
- AWS p3 and g4dn, nodes held one by one (Bamboo, NSDI'23): true mean lifetimes of 1.5 and 1.7 hours, 1.5 to 2.1 nodes
  per loss.
- Notices: AWS 120 s, GCP and Azure 30 s, best effort; the share of losses without notice is not published, 5 to 10 %
  is a guess.

Invariant: a node's events depend on the seed, its name and its zone only, so an added node does not change the others
(tests/unit/test_market.py).
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from spotlight.control.market.traces import Happening, Trace, TraceEvent, in_order
from spotlight.core.errors import ConfigError
from spotlight.core.rng import Purpose, derive_key, generator

GAMMA_MEDIAN = 1.6783469900166605
"""Median of a gamma distribution of shape 2 and scale 1."""
DIGITS = 1
"""Decimals of a second in a generated trace."""


class Weather(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a market."""

    median_life_s: float = 1200.0
    tail: float = 1.25
    """Shape of the Lomax distribution of lifetimes: smaller is heavier-tailed; at or below 1 there is no mean."""
    shortest_life_s: float = 60.0
    mean_absence_s: float = 900.0
    shortest_absence_s: float = 120.0
    zones: int = 1
    median_zone_s: float = 14400.0
    """Median time between outages of a zone, which end all its nodes at once."""
    mean_outage_s: float = 1800.0
    median_plenty_s: float | None = None
    """Median time before a scarcity of a zone; None: no scarcities."""
    median_scarcity_s: float = 10800.0
    scarce_share: float = 0.2
    """Share of a zone's nodes that is available during a scarcity."""
    scarce_life: float = 0.3
    """Factor on lifetimes that start in a scarcity."""
    noticed_share: float = 0.9
    notices_s: tuple[float, ...] = (120.0, 30.0)
    """Lengths of notice in seconds, equally likely."""

    def __post_init__(self) -> None:
        times = (
            *(self.median_life_s, self.shortest_life_s, self.mean_absence_s, self.shortest_absence_s),
            *(self.median_zone_s, self.mean_outage_s, self.tail, self.median_scarcity_s, self.scarce_life),
            *(() if self.median_plenty_s is None else (self.median_plenty_s,)),
        )
        shares = (self.noticed_share, self.scarce_share)
        if min(times) <= 0 or self.zones < 1 or not all(0 <= share <= 1 for share in shares) or not self.notices_s:
            raise ConfigError(
                f"these market parameters are impossible ({self}); times, tail, scarce_life and zones must be above 0, "
                "noticed_share and scarce_share within 0 to 1, and notices_s must hold at least one length."
            )


class Spell(msgspec.Struct, frozen=True, order=True):
    """An outage or a scarcity of a zone."""

    start: float
    stop: float
    notice: float
    """Seconds of notice before the start; 0: none."""


def generate(seed: int, nodes: Sequence[str], hours: float, weather: Weather | None = None, name: str = "") -> Trace:
    """Generate a trace of these nodes; every node that is away at the end returns, so that a run may outlast it."""
    weather = weather or Weather()
    end = hours * 3600.0
    events: list[TraceEvent] = []
    outages = [_outages(seed, zone, end, weather) for zone in range(weather.zones)]
    scarcities = [_scarcities(seed, zone, end, weather) for zone in range(weather.zones)]
    for index, node in enumerate(nodes):
        zone = index % weather.zones
        excluded = [
            spell
            for number, spell in enumerate(scarcities[zone])
            if generator(derive_key(Purpose.DATA, seed, "scarce", number, node)).random() >= weather.scarce_share
        ]
        events += _node_events(seed, node, sorted(outages[zone] + excluded), scarcities[zone], end, weather)
    return in_order(name or f"seed-{seed}", events)


def _outages(seed: int, zone: int, end: float, weather: Weather) -> list[Spell]:
    """All outages of the zone."""
    draw = generator(derive_key(Purpose.DATA, seed, "zone", zone))
    spells: list[Spell] = []
    now = 0.0
    while True:
        start = now + weather.shortest_life_s + _lomax(draw, weather.median_zone_s, weather.tail)
        notice = _notice(draw, weather)
        if start >= end:
            return spells
        now = start + weather.shortest_absence_s + draw.exponential(weather.mean_outage_s)
        spells.append(Spell(start, now, notice))


def _scarcities(seed: int, zone: int, end: float, weather: Weather) -> list[Spell]:
    """All scarcities of the zone; their times are less heavy-tailed than lifetimes: gamma of shape 2."""
    draw = generator(derive_key(Purpose.DATA, seed, "regime", zone))
    spells: list[Spell] = []
    now = 0.0
    while weather.median_plenty_s is not None:
        start = now + weather.shortest_life_s + draw.gamma(2.0) / GAMMA_MEDIAN * weather.median_plenty_s
        notice = _notice(draw, weather)
        now = start + draw.gamma(2.0) / GAMMA_MEDIAN * weather.median_scarcity_s
        if start >= end:
            break
        spells.append(Spell(start, now, notice))
    return spells


def _node_events(
    seed: int, node: str, away: Sequence[Spell], scarcities: Sequence[Spell], end: float, weather: Weather
) -> list[TraceEvent]:
    """All events of one node. `away`: spells without this node; `scarcities`: spells of short lifetimes."""
    draw = generator(derive_key(Purpose.DATA, seed, "node", node))
    events: list[TraceEvent] = []
    now = 0.0
    while True:
        events.append(TraceEvent(_rounded(now), node, Happening.UP))
        scarce = any(spell.start <= now < spell.stop for spell in scarcities)
        median = weather.median_life_s * (weather.scarce_life if scarce else 1.0)
        lost = now + max(weather.shortest_life_s, _lomax(draw, median, weather.tail))
        notice, back = _notice(draw, weather), lost + weather.shortest_absence_s
        back += draw.exponential(weather.mean_absence_s)
        for spell in away:
            if now < spell.start <= lost:
                # Nodes of one zone are lost at the same instant and return one by one.
                lost, notice = spell.start, spell.notice
                back = spell.stop + draw.exponential(weather.shortest_absence_s)
                break
        back = _next_available(back, away, weather.shortest_life_s)
        if lost >= end:
            return events
        if notice:
            # No node joins with a notice: the first half of its lifetime is always without one.
            warned = max((now + lost) / 2, lost - notice)
            events.append(TraceEvent(_rounded(warned), node, Happening.NOTICE, _rounded(lost - warned)))
        events.append(TraceEvent(_rounded(lost), node, Happening.KILL))
        now = back


def _next_available(time: float, away: Sequence[Spell], shortest_life_s: float) -> float:
    """Return the first instant from `time` on at which the node is available for at least `shortest_life_s`."""
    for spell in away:
        if spell.start - shortest_life_s < time < spell.stop:
            time = spell.stop
    return time


def _lomax(draw: np.random.Generator, median: float, tail: float) -> float:
    scale = median / (2 ** (1 / tail) - 1)
    return float(scale * math.expm1(-math.log1p(-draw.random()) / tail))


def _notice(draw: np.random.Generator, weather: Weather) -> float:
    """Draw the seconds of notice, 0 for none; always two draws, so that one loss never shifts the next."""
    warned, length = draw.random() < weather.noticed_share, draw.integers(len(weather.notices_s))
    return weather.notices_s[int(length)] if warned else 0.0


def _rounded(seconds: float) -> float:
    return round(seconds, DIGITS)

"""What stand-ins cost and save on a trace: seconds and dollars per iteration without and with them.

A trace lasts days and a forecast simulates minutes, so the trace is integrated over simulations in which some of the
run's spot nodes are always there and the others never, so that waits for previews because of missing slots are in. At
any instant the run iterates at the rate of the slots that work then; rates between two simulations are interpolated.
Losses themselves cost nothing here; in simulated runs they cost little (docs/results/time_and_money.md).

Invariant: on a trace without losses both rows are the forecast of the whole fleet (tests/unit/test_fallback_trade.py).
"""

import math
from collections.abc import Mapping

import msgspec
import numpy as np

from spotlight.config import RunConfig
from spotlight.control.market.bill import HOUR_S
from spotlight.control.market.capacity import Capacity
from spotlight.control.market.prices import PriceTable
from spotlight.control.market.traces import NodeStay, Trace
from spotlight.core.work import SlotClass
from spotlight.pools.config import AUTO_FALLBACK_S


class TraceForecast(msgspec.Struct, frozen=True, kw_only=True):
    """All iterations of a run on its trace."""

    fallback_s: float | None
    """Seconds until a missing spot node gets a stand-in; None: never."""
    seconds_per_iteration: float
    dollars_per_iteration: float
    hours: float
    dollars: float
    spot: float
    """Mean number of working spot nodes."""
    stand_ins: float
    """Mean number of working stand-ins."""


def trade_counts(config: RunConfig) -> list[int]:
    """Numbers of present spot nodes whose simulations the trade needs; none without a trace."""
    own = config.cluster.spot
    return sorted({0, own // 2, own}) if own and config.market.trace is not None else []


def trade(config: RunConfig, seconds: Mapping[int, float], prices: PriceTable) -> list[TraceForecast]:
    """The run without stand-ins, and with them after the recipe's `fallback_s`, or 300 s if it has no number.

    `seconds` are those of an iteration by present spot nodes.
    """
    trace = config.market.replayed(config.cluster.spot)
    if trace is None:
        return []
    rates = {count: 1 / seconds[count] for count in sorted(seconds)}
    own = config.market.fallback_s
    after_s = own if isinstance(own, float) else AUTO_FALLBACK_S
    return [_walk(config, trace, rates, prices, fallback_s) for fallback_s in (None, after_s)]


def _walk(
    config: RunConfig, trace: Trace, rates: Mapping[int, float], prices: PriceTable, fallback_s: float | None
) -> TraceForecast:
    """Integrate from change to change of the working nodes until all iterations are done."""
    cluster, market = config.cluster, config.market
    per_node = {spec.name: _per_s(spec.price, SlotClass.SPOT, prices) for spec in cluster.spot_nodes(market.spot_price)}
    on_demand = _per_s(market.reserved_price, SlotClass.RESERVED, prices)
    stays, boot_s = trace.stays(), market.boot_s
    changes = sorted(
        {at for stay in stays for at in (stay.start_s, stay.start_s + boot_s, _end(stay)) if at < math.inf}
    )
    capacity = Capacity(wanted=cluster.spot, fallback_s=fallback_s)
    rented: dict[str, float] = {}
    now = done = dollars = spot_s = stand_in_s = 0.0
    while done < config.iterations:
        held = [stay for stay in stays if stay.start_s <= now < _end(stay)]
        working = sum(stay.start_s + boot_s <= now for stay in held)
        order = capacity.decide(working, rented, now)
        rented |= dict.fromkeys(order.rent, now + boot_s)
        rented = {name: ready for name, ready in rented.items() if name not in order.give_back}
        standing_in = sum(ready <= now for ready in rented.values())
        rate = float(np.interp(working + standing_in, list(rates), list(rates.values())))
        left_s = (config.iterations - done) / rate
        due = [capacity.wake_at(now), *rented.values(), next((at for at in changes if at > now), None)]
        seconds = min([left_s, *(at - now for at in due if at is not None and at > now)])
        nodes = (cluster.reserved + len(rented)) * on_demand + math.fsum(per_node[stay.node] for stay in held)
        dollars += nodes * cluster.slots * seconds
        done = done + rate * seconds if seconds < left_s else float(config.iterations)
        now, spot_s, stand_in_s = now + seconds, spot_s + working * seconds, stand_in_s + standing_in * seconds
    return TraceForecast(
        fallback_s=fallback_s,
        seconds_per_iteration=now / config.iterations,
        dollars_per_iteration=dollars / config.iterations,
        hours=now / HOUR_S,
        dollars=dollars,
        spot=spot_s / now,
        stand_ins=stand_in_s / now,
    )


def _end(stay: NodeStay) -> float:
    return math.inf if stay.lost_s is None else stay.lost_s


def _per_s(price: str, slot_class: SlotClass, prices: PriceTable) -> float:
    """Dollars per slot and second."""
    return prices[price].per_gpu_hour(slot_class) / HOUR_S

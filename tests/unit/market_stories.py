"""Short constructors of records for the tests of the meter."""

from collections import Counter
from collections.abc import Iterable

from story_journal import PRICE

from spotlight.control.market.bubbles import Bubbles, bubbles_of
from spotlight.control.market.cost import CostMeter
from spotlight.core.events import AnyEvent, NodeJoined, Record, Worked, WorkerJoined
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import Activity, SlotClass


def metered(*timed: tuple[float, AnyEvent]) -> CostMeter:
    meter = CostMeter()
    for seq, (at, event) in enumerate(timed):
        meter.apply(Record(seq, at, event))
    return meter


def bubbles(records: Iterable[Record]) -> Bubbles:
    """The slot time of a journal by activity."""
    meter = CostMeter()
    for record in records:
        meter.apply(record)
    return bubbles_of(meter)


def node(name: str = "n.1", slots: int = 1, slot_class: SlotClass = SlotClass.SPOT, price: str = PRICE) -> NodeJoined:
    return NodeJoined(node=NodeId(name), slot_class=slot_class, slots=slots, price=price)


def worker(name: str = "n.1/0.1", trains: bool | None = None) -> WorkerJoined:
    owner = NodeId(name.partition("/")[0])
    return WorkerJoined(worker=WorkerId(name), node=owner, slot_class=SlotClass.SPOT, rows=1, trains=trains)


def worked(activity: Activity, start: float, end: float, name: str = "n.1/0.1") -> Worked:
    return Worked(worker=WorkerId(name), activity=activity, start=start, end=end)


def seconds(meter: CostMeter, at: float | None = None) -> dict[str, float]:
    summed: Counter[str] = Counter()
    for tally in meter.tallies(at):
        summed.update({activity.value: spent for activity, spent in tally.seconds.items() if spent})
    return dict(summed)

"""Costs of a bulk loss, from a journal."""

from benchmarks.bulk_loss.run import Times, figures_of, holding, round_of
from spotlight.core.events import Accepted, Leased, Record, Released, StepCommitted
from spotlight.core.types import Frontier, WorkerId
from spotlight.core.work import ReleaseReason, RequestId

COMMITTED = StepCommitted(step=0, iteration=0, update=0, requests=(), frontier=Frontier(), digest="")


def test_costs_of_a_loss_are_those_of_the_lost_nodes_samples():
    lost, back, own = (WorkerId(name) for name in ("ray-a.1/0.1", "ray-a.2/0.1", "reserved-1.1/0.1"))
    one, two = RequestId("one"), RequestId("two")
    events = [
        (5.0, Leased(request=one, attempt=1, worker=lost)),
        (6.0, Leased(request=two, attempt=1, worker=own)),
        (12.0, released(two, 7)),
        (14.0, released(one, 3)),
        (15.0, accepted(two, own)),
        (18.0, COMMITTED),
        (25.0, COMMITTED),
        (31.0, accepted(one, back)),
    ]
    records = [(wall, Record(seq=seq, at=wall, event=event)) for seq, (wall, event) in enumerate(events)]
    assert holding(records[:3]) == {"ray-a"}
    assert holding(records) == set()
    found = round_of(records, Times(killed=10.0, back=20.0, end=40.0), 0.5, {"ray-a"})
    assert (found.lost, found.freed_s, found.redone) == (1, 4.0, 3)
    assert (found.next_sample_s, found.steps_away, found.back_s) == (5.0, 1, 11.0)
    assert figures_of([found, found])["redone"].value == 3


def released(request: RequestId, redone: int) -> Released:
    return Released(request=request, attempt=1, reason=ReleaseReason.LOST, redone=redone)


def accepted(request: RequestId, worker: WorkerId) -> Accepted:
    return Accepted(request=request, attempt=2, worker=worker, digest="", reward=0.0)

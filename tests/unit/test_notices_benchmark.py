"""The benchmark of notices: the state of nodes from a journal, and figures of tries."""

import pytest
from story_journal import request

from benchmarks.lib.merge import write
from benchmarks.notices.run import Follower, Setup, Tries, Try, figures_of, measure
from spotlight.core.errors import InputError
from spotlight.core.events import Leased, NoticeGiven, NoticeWithdrawn, Record, Released, RunStarted
from spotlight.core.types import WorkerId
from spotlight.core.work import NoticeKind, ReleaseReason, Work

WORKER = WorkerId("spot-1.2/0.3")


def made(source: str, scheduler_s: float | None, unsafe: int = 0) -> Try:
    spare_s = None if unsafe else 3.0
    return Try(source=source, held=8, scheduler_s=scheduler_s, unsafe=unsafe, spare_s=spare_s, withdrawn_s=0.5)


def test_follower_counts_a_nodes_samples_and_notices_by_wall_time(tmp_path):
    sample = request(Work.ROLLOUT, 0, 0, 0).id
    follower = Follower(tmp_path)
    events = [
        (0.0, RunStarted(schema=1, run_seed=0, recipe="r", config_digest="", code="", base_digest="", wall=1000.0)),
        (5.0, Leased(request=sample, attempt=1, worker=WORKER)),
        (6.0, NoticeGiven(worker=WORKER, kind=NoticeKind.IMMINENT, seconds=5.0)),
        (7.0, Released(request=sample, attempt=1, reason=ReleaseReason.HANDED_BACK)),
        (9.0, NoticeWithdrawn(worker=WORKER)),
    ]
    for number, (at, event) in enumerate(events):
        follower._add(Record(number, at, event))
    assert follower.held == {"spot-1": [(1005.0, 1), (1007.0, 0)]}
    assert follower.notices == {"spot-1": [(1006.0, True), (1009.0, False)]}


def test_figures_count_late_notices_and_tries_with_steps_to_lose():
    figures = figures_of([made("aws", 0.2), made("aws", 0.4), made("gcp", None, unsafe=3)])
    assert figures["committed_in_time"].value == 2
    assert figures["aws_to_scheduler_s"].value == pytest.approx(0.3)
    assert "2 of 3" in figures["all_to_scheduler_s"].unit
    assert "gcp_to_scheduler_s" not in figures


def test_kept_tries_are_not_made_again_and_those_of_another_setup_are_refused(tmp_path):
    setup, kept = Setup(nodes=4, seconds=5.0), tmp_path / "notices-tries.json"
    write(kept, Tries(setup=setup, tries=[made("aws", 0.2)] * 3))
    assert len(measure(setup, 2, kept)) == 2
    with pytest.raises(InputError, match="choose another --out, or delete it"):
        measure(Setup(nodes=4, seconds=9.0), 2, kept)

"""States of spare processes: one per node, one that warms at a time, back-off after failures."""

from spotlight.node.nursery_packets import KeepSpare
from spotlight.node.spares import CORES_PER_SPARE, PAUSE_FIRST_S, PAUSE_MOST_S, STABLE_S, WARMING_MOST_S, Spares

ORDER = KeepSpare(device="", log="spare.log")
ONE, OTHER, THIRD = 10, 20, 30


def spares(*nodes: int, cores: int = 1) -> Spares:
    kept = Spares(cores)
    for node in nodes:
        kept.keep(node, ORDER, now=0.0)
    return kept


def test_node_has_one_spare_however_often_it_is_requested():
    kept = spares(ONE, ONE)
    assert kept.due(0.0) == (ONE, ORDER)
    kept.started(ONE, pid=1, now=0.0)
    kept.keep(ONE, ORDER, now=1.0)
    assert kept.due(1e6) is None
    assert kept.wait_s(1e6) is None
    kept.ready(1)
    assert kept.due(1e6) is None


def test_spare_is_taken_once_ready_or_not_and_the_next_waits_for_a_request():
    for is_ready in (False, True):
        kept = spares(ONE)
        kept.started(ONE, pid=1, now=0.0)
        if is_ready:
            kept.ready(1)
        assert (kept.take(ONE), kept.take(ONE)) == (1, None)
        assert kept.due(1e6) is None
        assert kept.ended(1, now=1.0) is None, "the end of a worker is no end of a spare"
        kept.keep(ONE, ORDER, now=2.0)
        assert kept.due(2.0) == (ONE, ORDER)


def test_spawn_cancels_a_spare_that_has_not_started():
    kept = spares(ONE)
    assert kept.take(ONE) is None
    assert kept.due(1e6) is None


def test_spares_of_a_machine_warm_one_after_the_other():
    kept = spares(ONE, OTHER)
    kept.started(ONE, pid=1, now=0.0)
    assert kept.due(1.0) is None
    assert kept.wait_s(1.0) == WARMING_MOST_S - 1.0
    kept.ready(1)
    assert kept.due(1.0) == (OTHER, ORDER)
    assert kept.wait_s(1.0) == 0.0


def test_spares_of_a_machine_with_many_cores_warm_at_once_but_not_all():
    kept = spares(ONE, OTHER, THIRD, cores=2 * CORES_PER_SPARE)
    kept.started(ONE, pid=1, now=0.0)
    assert kept.due(0.0) == (OTHER, ORDER)
    kept.started(OTHER, pid=2, now=1.0)
    assert kept.due(1.0) is None
    assert kept.wait_s(1.0) == WARMING_MOST_S - 1.0
    kept.ready(2)
    assert kept.due(1.0) == (THIRD, ORDER)


def test_spare_that_hangs_in_its_imports_delays_others_for_a_limited_time():
    kept = spares(ONE, OTHER)
    kept.started(ONE, pid=1, now=0.0)
    assert kept.due(WARMING_MOST_S) == (OTHER, ORDER)


def test_spare_that_dies_early_backs_off_up_to_a_limit():
    kept, now, pauses = spares(ONE), 0.0, []
    for pid in range(1, 12):
        assert kept.due(now) == (ONE, ORDER)
        kept.started(ONE, pid, now)
        pause = kept.ended(pid, now)
        assert kept.due(now + pause - 0.01) is None
        assert kept.wait_s(now) == pause
        now += pause
        pauses.append(pause)
    assert pauses[:4] == [PAUSE_FIRST_S, 2 * PAUSE_FIRST_S, 4 * PAUSE_FIRST_S, 8 * PAUSE_FIRST_S]
    assert pauses[-1] == PAUSE_MOST_S


def test_fork_that_fails_backs_off_too():
    kept = spares(ONE)
    assert [kept.failed(ONE, now) for now in (0.0, 1000.0)] == [PAUSE_FIRST_S, 2 * PAUSE_FIRST_S]


def test_spare_that_lived_long_is_replaced_after_the_first_pause():
    kept = spares(ONE)
    for pid, now in ((1, 0.0), (2, 10.0), (3, 20.0)):
        kept.started(ONE, pid, now)
        kept.ended(pid, now)
    kept.started(ONE, 4, 30.0)
    kept.ready(4)
    assert kept.ended(4, 31.0 + STABLE_S) == PAUSE_FIRST_S


def test_node_that_ended_has_no_spare():
    kept = spares(ONE, OTHER)
    kept.started(ONE, pid=1, now=0.0)
    kept.forget(ONE)
    assert kept.ended(1, now=0.0) is None
    assert kept.due(0.0) == (OTHER, ORDER)

"""Losses of the fidelity benchmark: placed by iterations, of every kind, and a pair without one is an error."""

import pytest

from benchmarks.fidelity import run as pairs
from benchmarks.fidelity.losses import Undisturbed, check_lost, has_all_kinds, losses, lost_early, weather
from benchmarks.lib.local_runs import Timing
from spotlight.control.market.traces import Happening, TraceEvent, in_order
from spotlight.core.errors import EnvironmentProblem, InputError
from spotlight.core.events import IterationDone, NodeLost, Record

NODES = [f"spot-{number}" for number in range(1, 9)]
SECONDS = (0.5, 19.0, 46.0, 600.0)


@pytest.mark.parametrize("iteration_s", SECONDS)
@pytest.mark.parametrize("seed", range(5))
def test_every_kind_of_loss_comes_while_iterations_count_and_none_before(iteration_s, seed):
    calm = Undisturbed(warm_up_s=4 * iteration_s, iteration_s=iteration_s)
    trace = losses(seed, NODES, calm, iterations=8, slack_s=2 * iteration_s)
    assert trace.kills[0].time_s > 6 * iteration_s
    assert has_all_kinds(trace, end_s=12 * iteration_s)
    assert {event.node for event in trace.events if event.time_s == 0} == set(NODES)


def test_lives_and_notices_are_as_many_iterations_with_any_profile():
    slow, fast = weather(40.0), weather(10.0)
    assert slow.median_life_s == 4 * fast.median_life_s
    assert slow.notices_s == tuple(4 * notice for notice in fast.notices_s)
    assert (slow.tail, slow.zones, slow.noticed_share) == (fast.tail, fast.zones, fast.noticed_share)


def test_too_few_iterations_for_a_loss_are_refused():
    calm = Undisturbed(warm_up_s=100.0, iteration_s=20.0)
    with pytest.raises(InputError, match=r"within 2 iterations of 20 s no trace lost nodes .* \(--iterations\)"):
        losses(0, NODES, calm, iterations=2, slack_s=30.0)


def trace(*kills, noticed=()):
    events = [TraceEvent(0.0, node, Happening.UP) for node in ("a", "b", "c")]
    events += [TraceEvent(time_s, node, Happening.KILL) for node, time_s in kills]
    events += [TraceEvent(time_s - 1, node, Happening.NOTICE, 1.0) for node, time_s in kills if node in noticed]
    return in_order("made", events)


@pytest.mark.parametrize(
    ("made", "has_all"),
    [
        (trace(("a", 10), ("b", 20), ("c", 20), noticed="a"), True),
        (trace(("a", 10), ("b", 20), ("c", 20)), False),
        (trace(("a", 10), ("b", 20), ("c", 20), noticed="abc"), False),
        (trace(("a", 10), ("b", 20), ("c", 21), noticed="a"), False),
        (trace(("a", 10), ("b", 31), ("c", 31), noticed="a"), False),
        (trace(), False),
    ],
)
def test_a_trace_has_all_kinds_with_a_noticed_loss_an_unnoticed_one_and_two_at_once_before_the_end(made, has_all):
    assert has_all_kinds(made, end_s=30) is has_all


def timed(lost):
    return Timing(iterations=(1.0,), rollout=1.0, train=1.0, losses=lost)


def run(*lost_at):
    done = [
        (at, IterationDone(iteration=number, rollout_s=5.0, train_s=5.0, reward=0.5))
        for number, at in enumerate((10.0, 20.0, 30.0))
    ]
    events = [*done, *((at, NodeLost(node="spot-1.1", cause="killed")) for at in lost_at)]
    return [
        Record(seq=seq, at=at, event=event) for seq, (at, event) in enumerate(sorted(events, key=lambda one: one[0]))
    ]


@pytest.mark.parametrize(("real", "simulated"), [(0, 0), (0, 3), (3, 0)])
def test_a_pair_in_which_a_run_lost_no_node_is_refused(real, simulated):
    with pytest.raises(InputError, match=f"lost {real} and {simulated} nodes"):
        check_lost([timed(real), timed(simulated)])


def test_a_pair_whose_runs_lost_nodes_is_kept():
    check_lost([timed(2), timed(1)])


def test_losses_in_the_warm_up_are_counted():
    assert lost_early(run(15.0, 25.0)) == 1
    assert lost_early(run(25.0)) == 0


@pytest.fixture
def repeated(monkeypatch, tmp_path):
    """Runs under a trace whose journals are given; returns the first loss of each run's trace, and the result."""

    def repeat(*journals):
        seen, waiting = [], list(journals)
        monkeypatch.setattr(pairs, "configured", lambda case, folder, name: seen.append(case.trace.kills[0].time_s))
        monkeypatch.setattr(pairs, "trained", lambda config, folder: waiting.pop(0))
        case = pairs.paced_case("h200-qwen-image-512", 8, 0, speed=4.0)
        calm = Undisturbed(warm_up_s=60.0, iteration_s=20.0)
        return seen, lambda: pairs.trained_with_losses(case, 0, 8, calm, tmp_path)

    return repeat


def test_a_run_that_lost_a_node_in_its_warm_up_is_repeated_with_losses_after_that_warm_up(repeated):
    first_losses, train = repeated(run(15.0), run(25.0))
    assert train() == run(25.0)
    # The first run was warm after 20 s of its own, 80 s of the profile.
    assert first_losses[0] > 60 + pairs.START_S * 4
    assert first_losses[1] > 80 + pairs.START_S * 4


def test_runs_that_always_lose_nodes_in_their_warm_up_end_the_benchmark(repeated):
    _, train = repeated(*[run(15.0)] * pairs.STARTS)
    with pytest.raises(EnvironmentProblem, match=r"3 runs in a row lost nodes in their warm-up"):
        train()

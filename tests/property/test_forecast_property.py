"""The forecast over many runs and fleets: sums hold, slots help, and nobody waits longer than allowed."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.control.explore.config import ExploreConfig, PlanKind, Timing
from spotlight.control.forecast import Evaluations, Fleet, Rates, Workload, forecast
from spotlight.control.pipeline.config import PipelineConfig
from spotlight.control.profiles import Operation

RATES = Rates(reserved=7.0, spot=2.5)


class Launched:
    """A fixed cost of every launch and a cost per row."""

    def __init__(self, launch_s: float, row_s: float) -> None:
        self._launch_s, self._row_s = launch_s, row_s

    def seconds(self, operation: Operation, batch: int = 1, degree: int = 1) -> float:
        return self._launch_s + self._row_s * batch


small = st.integers(1, 6)
explores = st.builds(
    ExploreConfig,
    enabled=st.just("on"),
    seeds=st.integers(1, 40),
    most_seeds=st.integers(1, 40),
    steps=st.integers(1, 12),
    plan=st.sampled_from(PlanKind),
    timing=st.sampled_from(Timing),
    overrun=st.floats(0, 2),
)
evaluations = st.builds(Evaluations, every=small, pictures=st.integers(1, 60), steps=small, passes=st.integers(1, 2))
workloads = st.builds(
    Workload,
    iterations=small,
    prompts=small,
    group_size=st.integers(2, 8),
    steps=st.integers(1, 10),
    passes=st.integers(1, 2),
    timesteps=st.integers(1, 3),
    forwards=st.integers(0, 2),
    updates=st.integers(1, 3),
    micro_batch=st.integers(1, 16),
    evaluation=evaluations,
    checkpoint_every=small,
    explore=st.none() | explores,
)
fleets = st.integers(1, 4).flatmap(
    lambda reserved: st.builds(
        Fleet,
        reserved=st.just(reserved),
        spot=st.integers(0, 6),
        gang=st.integers(1, reserved),
        slots=st.integers(1, 3),
        rows=st.integers(1, 8),
        scorers=st.integers(1, 4),
        spot_speed=st.sampled_from([0.25, 0.5, 1.0, 2.0]),
    )
)
paces = st.builds(Launched, st.floats(0.01, 5), st.floats(0, 5))


@given(workloads, fleets, paces)
@settings(max_examples=150, deadline=None)
def test_phases_add_up_and_dollars_follow_the_hours(work, fleet, times):
    one = forecast(work, fleet, times, RATES)
    parts = msgspec.structs.asdict(one.phases).values()
    assert min(parts) >= 0
    assert one.seconds_per_iteration == pytest.approx(sum(parts))
    assert one.hours * 3600 > work.iterations * (one.seconds_per_iteration - one.phases.exploration)
    assert one.dollars == pytest.approx(one.hours * one.dollars_per_hour)


@given(workloads, fleets, paces)
@settings(max_examples=100, deadline=None)
def test_more_slots_never_make_the_same_rollout_longer(work, fleet, times):
    plain = msgspec.structs.replace(work, explore=None)
    larger = msgspec.structs.replace(fleet, spot=fleet.spot + 1)
    few, more = (forecast(plain, machines, times, RATES) for machines in (fleet, larger))
    assert more.phases.rollout <= few.phases.rollout + 1e-9
    assert more.phases.train == few.phases.train


@given(workloads, explores, fleets, paces)
@settings(max_examples=150, deadline=None)
def test_previews_that_finish_are_of_those_planned_and_waited_for_within_the_overrun(work, explore, fleet, times):
    one = forecast(msgspec.structs.replace(work, explore=explore), fleet, times, RATES)
    assert 0 <= one.previews_finished <= one.previews_planned <= max(explore.seeds, explore.most_seeds) * work.prompts
    assert one.audited <= one.previews_finished
    if explore.timing is Timing.BESIDE:
        assert one.phases.exploration <= (explore.overrun + 1e-9) * one.phases.train
        if not explore.overrun:
            assert one.previews_finished <= one.previews_fit or one.previews_fit == explore.most_seeds * work.prompts
    else:
        assert one.previews_finished == one.previews_planned


@given(workloads, fleets, paces, st.booleans(), st.integers(1, 4), st.sampled_from([0.25, 0.5, 1.0]))
@settings(max_examples=150, deadline=None)
def test_what_may_overlap_never_makes_an_iteration_longer(work, fleet, times, tag, least, share):
    plain = msgspec.structs.replace(work, explore=None)
    seconds = []
    for gap, asynchrony in ((False, False), (True, False), (True, True)):
        pipeline = PipelineConfig(gap=gap, tag=tag, asynchrony=asynchrony, least_groups=least, stale_share=share)
        one = forecast(msgspec.structs.replace(plain, pipeline=pipeline), fleet, times, RATES)
        # Evaluation fits beside as much as is left of training, which is another matter.
        seconds.append(one.seconds_per_iteration - one.phases.evaluation)
    assert seconds[0] >= seconds[1] - 1e-9 >= seconds[2] - 2e-9

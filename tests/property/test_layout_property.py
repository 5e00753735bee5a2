"""Layouts for any situation: legal, complete, near the best of all partitions, deterministic."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.control.elastic.config import ElasticConfig
from spotlight.control.elastic.efficiency import DEFAULTS, LOWEST, Efficiency
from spotlight.control.elastic.layout import LayoutPlanner, RowView, Situation, SlotView, Waiting
from spotlight.core.types import Version, WorkerId
from spotlight.core.work import WeightsId

HELD = WeightsId(Version(1))
TOKENS = st.sampled_from([192, 1024, 4096, 6400, 16384])
NEAR = 0.05
"""Share of the best value by which a layout may fall short."""


@st.composite
def situations(draw: st.DrawFn, most: int = 5) -> Situation:
    slots = []
    for number in range(draw(st.integers(1, most))):
        rows = draw(st.lists(st.builds(RowView, st.integers(1, 30), TOKENS, st.just(HELD)), max_size=2))
        slots.append(
            SlotView(
                WorkerId(f"n.1/{number}.1"),
                kind=draw(st.sampled_from(["H100", "A100"])),
                speed=draw(st.sampled_from([1.0, 1.0, 1.0, 0.8])),
                rows=tuple(rows),
                holds=frozenset({HELD}),
                notice=draw(st.sampled_from([None, None, None, 30.0])),
            )
        )
    waiting = Waiting(tuple(draw(st.lists(TOKENS, max_size=7))), draw(st.booleans()))
    return Situation(tuple(slots), waiting, heads=draw(st.sampled_from([1, 2, 3, 24])))


CONFIGS = st.sampled_from(
    [
        ElasticConfig(),
        ElasticConfig(mixed_gpus="refuse"),
        ElasticConfig(degrees=[1, 2, 4]),
        ElasticConfig(max_degree=3),
        ElasticConfig(gain=0.0),
    ]
)


def planner(config: ElasticConfig) -> LayoutPlanner:
    return LayoutPlanner(config, config.efficiency())


def partitions(names: list[WorkerId]) -> Iterator[list[list[WorkerId]]]:
    if not names:
        yield []
        return
    for smaller in partitions(names[1:]):
        yield [[names[0]], *smaller]
        for place in range(len(smaller)):
            yield [*smaller[:place], [names[0], *smaller[place]], *smaller[place + 1 :]]


def leader_first(crew: list[WorkerId], busy: set[WorkerId]) -> tuple[WorkerId, ...]:
    return tuple(sorted(crew, key=lambda name: name not in busy))


@given(situations(), CONFIGS)
def test_every_slot_is_in_exactly_one_crew_of_a_legal_degree(situation: Situation, config: ElasticConfig) -> None:
    layout = planner(config).choose(situation)
    assert planner(config).fits(layout, situation)
    assert sorted(name for crew in layout for name in crew) == sorted(slot.worker for slot in situation.slots)
    legal = config.legal_degrees(situation.heads, len(situation.slots))
    assert all(len(crew) in legal for crew in layout)


@given(situations(), CONFIGS)
def test_no_request_waits_for_a_slot_that_follows_or_is_idle(situation: Situation, config: ElasticConfig) -> None:
    free = {slot.worker for slot in situation.slots if not slot.rows and slot.notice is None}
    led = [crew for crew in planner(config).choose(situation) if crew[0] in free]
    assert len(led) >= min(len(free), len(situation.waiting.tokens))


@given(situations(most=8), CONFIGS, st.lists(TOKENS, min_size=8, max_size=12))
def test_every_crew_has_one_slot_while_requests_equal_slots(
    situation: Situation, config: ElasticConfig, tokens: list[int]
) -> None:
    queue = Waiting(tuple(tokens[: len(situation.slots)]), situation.waiting.pressing)
    layout = planner(config).choose(Situation(situation.slots, queue, situation.heads))
    assert all(len(crew) == 1 for crew in layout)


@settings(max_examples=300)
@given(situations(), CONFIGS)
def test_value_is_near_the_best_of_all_legal_partitions(situation: Situation, config: ElasticConfig) -> None:
    plan = planner(config)
    busy = {slot.worker for slot in situation.slots if slot.rows}
    candidates = (
        tuple(leader_first(crew, busy) for crew in crews)
        for crews in partitions(sorted(slot.worker for slot in situation.slots))
    )
    best = max(plan.value(layout, situation) for layout in candidates if plan.fits(layout, situation))
    assert plan.value(plan.choose(situation), situation) >= best - NEAR * max(best, 1.0)


@given(situations(), CONFIGS, st.randoms(use_true_random=False))
def test_layout_does_not_depend_on_the_order_of_its_inputs(situation: Situation, config: ElasticConfig, rng) -> None:
    slots = list(situation.slots)
    rng.shuffle(slots)
    shuffled = Situation(tuple(slots), situation.waiting, situation.heads)
    assert planner(config).choose(shuffled) == planner(config).choose(situation)


@given(situations(), CONFIGS, st.lists(st.floats(0.98, 1.02), min_size=20, max_size=20))
def test_jitter_of_speeds_never_makes_a_layout_flap(
    situation: Situation, config: ElasticConfig, jitter: list[float]
) -> None:
    plan = planner(config)
    decision = plan.decide(situation, None, 0.0)
    settled = plan.decide(situation, decision, 100.0)
    for number, factor in enumerate(jitter):
        slots = tuple(
            SlotView(slot.worker, slot.kind, slot.speed * factor, slot.rows, slot.holds, slot.notice)
            if (number + place) % 2
            else slot
            for place, slot in enumerate(situation.slots)
        )
        jittered = Situation(slots, situation.waiting, situation.heads)
        assert plan.decide(jittered, settled, 200.0 + 10 * number).layout == settled.layout


@given(situations(), st.lists(TOKENS, max_size=7), CONFIGS)
def test_changes_come_no_faster_than_the_hysteresis(
    situation: Situation, tokens: list[int], config: ElasticConfig
) -> None:
    plan = planner(config)
    first = plan.decide(situation, None, 0.0)
    other = Situation(situation.slots, Waiting(tuple(tokens)), situation.heads)
    assert plan.decide(other, first, config.hysteresis_s * 0.9) == first


@given(st.integers(1, 40000), st.integers(1, 40000), st.integers(1, 12))
def test_speed_up_is_bounded_and_grows_with_tokens(one: int, other: int, degree: int) -> None:
    table = Efficiency()
    small, large = sorted((one, other))
    assert LOWEST <= table.speed_up(small, degree) <= table.speed_up(large, degree) + 1e-9 <= degree + 1e-9


@given(
    st.lists(st.tuples(TOKENS, st.integers(1, 8), st.floats(allow_nan=True, allow_infinity=True)), max_size=30),
    TOKENS,
    st.integers(1, 8),
)
def test_any_measurements_leave_speed_ups_bounded(
    measured: list[tuple[int, int, float]], tokens: int, degree: int
) -> None:
    table = Efficiency()
    for entry in measured:
        table.measured(*entry)
    assert LOWEST <= table.speed_up(tokens, degree) <= degree


@pytest.mark.parametrize(("tokens", "degree", "speed_up"), DEFAULTS)
def test_speed_up_at_a_default_point_is_the_value_of_the_table(tokens: int, degree: int, speed_up: float) -> None:
    assert Efficiency().speed_up(tokens, degree) == pytest.approx(speed_up)

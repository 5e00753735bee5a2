"""Which crews a node should have: slots alone while work waits, together in the tail, and no oscillation."""

import math

import pytest

from spotlight.control.elastic.config import ElasticConfig
from spotlight.control.elastic.efficiency import Efficiency
from spotlight.control.elastic.layout import LayoutPlanner, RowView, Situation, SlotView, Waiting
from spotlight.core.errors import ConfigError
from spotlight.core.types import Version, WorkerId
from spotlight.core.work import WeightsId

NOW, OLD = WeightsId(Version(3)), WeightsId(Version(2))
SMALL, LARGE = 1024, 6400


def name(number: int) -> WorkerId:
    return WorkerId(f"spot-1.1/{number}.1")


def idle(number: int, **fields: object) -> SlotView:
    return SlotView(name(number), **{"holds": frozenset({NOW}), **fields})


def busy(number: int, remaining: int = 10, tokens: int = LARGE, weights: WeightsId = NOW, **fields: object) -> SlotView:
    return idle(number, rows=(RowView(remaining, tokens, weights),), **fields)


def at(slots: list[SlotView], waiting: list[int] | None = None, pressing: bool = False, **fields: object) -> Situation:
    return Situation(tuple(slots), Waiting(tuple(waiting or ()), pressing), **{"heads": 24, **fields})


def planner(**settings: object) -> LayoutPlanner:
    config = ElasticConfig(**settings)
    return LayoutPlanner(config, config.efficiency())


def degrees(situation: Situation, **settings: object) -> list[int]:
    return sorted((len(crew) for crew in planner(**settings).choose(situation)), reverse=True)


@pytest.mark.parametrize(
    ("waiting", "expected"), [(0, [1, 1, 1]), (1, [3]), (2, [2, 1]), (3, [1, 1, 1]), (30, [1, 1, 1])]
)
def test_three_survivors_are_split_by_the_length_of_the_queue(waiting: int, expected: list[int]) -> None:
    assert degrees(at([idle(i) for i in range(3)], [LARGE] * waiting)) == expected


def test_crew_of_a_larger_sample_is_larger_and_a_tiny_one_has_a_slot_alone() -> None:
    largest = [degrees(at([idle(i) for i in range(8)], [tokens]))[0] for tokens in (192, SMALL, LARGE, 16384)]
    assert largest == sorted(largest)
    assert largest[0] == 1 < largest[-1]


def test_pressing_work_takes_slots_that_hardly_pay() -> None:
    slots = [idle(i) for i in range(4)]
    assert degrees(at(slots, [SMALL], pressing=True))[0] > degrees(at(slots, [SMALL]))[0]


def test_spare_slots_go_to_the_leaders_with_most_work_left() -> None:
    slots = [busy(0, remaining=2), busy(1, remaining=20), idle(2)]
    assert planner().choose(at(slots)) == ((name(0),), (name(1), name(2)))


def test_busy_slot_leads_and_never_follows() -> None:
    layout = planner().choose(at([idle(0), busy(1), busy(2), idle(3)]))
    assert {crew[0] for crew in layout} == {name(1), name(2)}


def test_slot_with_a_notice_stands_alone_and_gets_no_work() -> None:
    slots = [busy(0), idle(1, notice=30.0), idle(2)]
    assert planner().choose(at(slots)) == ((name(0), name(2)), (name(1),))
    assert planner().choose(at([idle(1, notice=30.0), idle(2)], [LARGE])) == ((name(1),), (name(2),))


def test_follower_must_hold_the_weights_of_the_leaders_samples() -> None:
    slots = [busy(0, weights=OLD, holds=frozenset({OLD, NOW})), idle(1), idle(2, holds=frozenset({OLD, NOW}))]
    assert planner().choose(at(slots)) == ((name(0), name(2)), (name(1),))


def test_pair_that_failed_together_is_kept_apart() -> None:
    layout = planner().choose(at([busy(0), idle(1), idle(2)], apart=((name(0), name(1)),)))
    assert layout == ((name(0), name(2)), (name(1),))


def test_mixed_gpus_are_named_or_refused() -> None:
    slots = [busy(0, kind="H100"), idle(1, kind="A100", speed=0.8)]
    decision = planner().decide(at(slots), None, 0.0)
    assert decision.layout == ((name(0), name(1)),)
    assert f"{name(1)} (A100) is the slowest of {name(0)}'s crew" in decision.reason
    assert degrees(at(slots), mixed_gpus="refuse") == [1, 1]


def test_much_slower_slot_is_left_out_because_it_would_set_the_pace() -> None:
    assert degrees(at([busy(0), idle(1, speed=0.4)])) == [1, 1]


def test_slot_that_may_not_follow_any_leader_leads_what_waits() -> None:
    slots = [idle(0, kind="H100"), idle(1, kind="A100"), busy(2, kind="H100")]
    layout = planner(mixed_gpus="refuse").choose(at(slots, [SMALL]))
    assert layout == ((name(1),), (name(2), name(0)))


def test_idle_leader_is_given_no_follower_without_its_weights() -> None:
    slots = [idle(0, holds=frozenset({OLD, NOW})), idle(1), idle(2, holds=frozenset({OLD, NOW}))]
    assert planner().choose(at(slots, [LARGE])) == ((name(0), name(2)), (name(1),))


def test_only_listed_degrees_are_chosen() -> None:
    assert degrees(at([idle(i) for i in range(4)], [LARGE]), degrees=[1, 4]) == [4]
    assert degrees(at([idle(i) for i in range(3)], [LARGE]), degrees=[1, 4]) == [1, 1, 1]
    assert degrees(at([idle(i) for i in range(4)], [LARGE]), degrees=[1]) == [1, 1, 1, 1]


def test_crew_has_no_more_members_than_the_model_has_heads() -> None:
    assert degrees(at([idle(i) for i in range(4)], [LARGE], heads=2))[0] == 2


def test_layout_stays_for_a_while_unless_it_is_impossible() -> None:
    plan = planner()
    slots = [busy(0), idle(1), idle(2)]
    first = plan.decide(at(slots), None, 0.0)
    assert first.layout == ((name(0), name(1), name(2)),)
    assert plan.decide(at(slots, [LARGE]), first, 1.0) is first
    later = plan.decide(at(slots, [LARGE]), first, 3.0)
    assert sorted(map(len, later.layout)) == [1, 2]
    lost = plan.decide(at(slots[:2]), first, 0.1)
    assert lost.layout == ((name(0), name(1)),)
    joined = plan.decide(at([*slots, idle(3)]), first, 0.1)
    assert len(joined.layout[0]) == 4


def test_layout_without_work_stays_as_it_is() -> None:
    plan = planner()
    first = plan.decide(at([busy(0), idle(1)]), None, 0.0)
    assert plan.decide(at([idle(0), idle(1)]), first, 100.0) is first


def test_layout_does_not_change_for_a_jitter_of_speeds() -> None:
    plan = planner()
    decision = plan.decide(at([busy(0), idle(1), idle(2), busy(3)]), None, 0.0)
    for second in range(1, 200):
        speeds = [1 + 0.03 * math.sin(second * k) for k in (1, 2, 3, 5)]
        slots = [
            busy(0, speed=speeds[0]),
            idle(1, speed=speeds[1]),
            idle(2, speed=speeds[2]),
            busy(3, speed=speeds[3]),
        ]
        assert plan.decide(at(slots), decision, float(second)) is decision


def test_growth_from_two_to_four_keeps_leader_and_follower() -> None:
    plan = planner()
    first = plan.decide(at([busy(2), idle(1)]), None, 0.0)
    grown = plan.decide(at([busy(2), idle(1), idle(0), idle(3)]), first, 1.0)
    assert grown.layout[0][:2] == (name(2), name(1))
    assert len(grown.layout[0]) == 4


def test_measured_speeds_correct_the_table() -> None:
    config = ElasticConfig()
    efficiency = config.efficiency()
    plan = LayoutPlanner(config, efficiency)
    situation = at([busy(0), idle(1)])
    assert len(plan.choose(situation)) == 1
    for _ in range(20):
        efficiency.measured(LARGE, 1, 10.0)
        efficiency.measured(LARGE, 2, 9.0)
    assert len(plan.choose(situation)) == 2


def test_profile_replaces_the_table_and_measurements_can_be_off() -> None:
    config = ElasticConfig(speed_ups=((192, 2, 1.9),), measure=False)
    efficiency = config.efficiency()
    for _ in range(20):
        efficiency.measured(192, 1, 10.0)
        efficiency.measured(192, 2, 5.0)
    assert efficiency.speed_up(192, 2) == pytest.approx(1.9)


def test_larger_crew_is_corrected_even_if_no_slot_alone_was_measured() -> None:
    efficiency = Efficiency()
    before = efficiency.speed_up(LARGE, 4)
    for _ in range(50):
        efficiency.measured(LARGE, 2, 10.0)
        efficiency.measured(LARGE, 4, 10.0)
    assert efficiency.speed_up(LARGE, 2) == Efficiency().speed_up(LARGE, 2)
    assert efficiency.speed_up(LARGE, 4) < 0.8 * before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"degrees": [1, 2, 2]}, "each number of slots once"),
        ({"degrees": [0, 2]}, "none below 1"),
        ({"degrees": []}, "each number of slots once"),
        ({"max_degree": 0}, "at least one slot"),
        ({"degrees": [1, 4], "max_degree": 2}, "contradict"),
        ({"speed_ups": [(1024, 2, 3.0)]}, "at most the degree"),
    ],
)
def test_impossible_settings_are_refused_in_a_sentence(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ElasticConfig(**settings)


def test_degree_beyond_heads_or_slots_is_refused_with_the_legal_ones() -> None:
    with pytest.raises(ConfigError, match=r"8 slots per crew, but a node has 4 slots .* out of 1, 2, 3, 4\."):
        ElasticConfig(degrees=[1, 8]).check(heads=24, slots=4)
    with pytest.raises(ConfigError, match=r"6 slots per crew, but the model has 3 heads .* out of 1, 2, 3\."):
        ElasticConfig(max_degree=6).check(heads=3, slots=8)
    ElasticConfig().check(heads=1, slots=1)

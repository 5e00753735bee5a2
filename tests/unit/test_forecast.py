"""The forecast of a run, on round durations whose sums can be checked by hand."""

import msgspec
import pytest
from forecast_stories import EXPLORE, FLEET, RATES, WORK, Proportional

from spotlight.control.explore.config import ExploreConfig, PlanKind, Timing
from spotlight.control.forecast import Fleet, Forecast, Rates, Workload, for_spot_counts, forecast
from spotlight.control.profiles import Operation
from spotlight.core.errors import ConfigError

TIMES = Proportional()
TRAIN_S = 2 * 0.5 + 2 * (8 * 2 * 2.0 + 5.0)
"""Roles there and back; each of two updates: 8 samples per rank at 2 timesteps, and a step."""


def work(**changes: object) -> Workload:
    return msgspec.structs.replace(WORK, **changes)


def fleet(**changes: object) -> Fleet:
    return msgspec.structs.replace(FLEET, **changes)


def explored(**changes: object) -> Forecast:
    settings = EXPLORE.model_copy(update=changes)
    return forecast(work(explore=settings), FLEET, TIMES, RATES)


def test_phases_of_a_plain_iteration_add_up_to_it():
    one = forecast(WORK, FLEET, TIMES, RATES)
    assert one.phases.rollout == 8 * 10
    assert one.phases.train == TRAIN_S
    assert one.phases.exploration == 0
    assert one.phases.publish == 7
    assert one.phases.evaluation == pytest.approx(7 / 5)
    assert one.phases.checkpoint == 2.5 / 5, "the rest of its ten seconds is written while the next ones run"
    assert one.seconds_per_iteration == pytest.approx(80 + TRAIN_S + 7 + 1.4 + 0.5)


def test_checkpoint_that_takes_longer_than_iterations_is_what_a_run_takes():
    times = Proportional({Operation.SNAPSHOT: 2.5, Operation.CHECKPOINT: 1000.0})
    assert forecast(work(checkpoint_every=2), FLEET, times, RATES).seconds_per_iteration == pytest.approx(500)
    assert forecast(work(checkpoint_every=100), FLEET, times, RATES).phases.checkpoint == pytest.approx(2.5 / 100)


def test_dollars_are_those_of_the_whole_fleet_busy_or_not():
    one = forecast(WORK, FLEET, TIMES, RATES)
    assert one.dollars_per_hour == 2 * 6 + 2 * 2
    assert one.dollars_per_iteration == pytest.approx(16 * one.seconds_per_iteration / 3600)
    around_s = 60 + 7 + 2 * 10 + 10
    assert one.hours == pytest.approx((around_s + 10 * one.seconds_per_iteration) / 3600)
    assert one.dollars == pytest.approx(16 * one.hours)


def test_slots_of_a_node_count_each_but_train_as_many_as_the_gang():
    one = forecast(WORK, fleet(slots=2), TIMES, RATES)
    assert (one.slots, one.spot_slots) == (8, 4)
    assert one.phases.rollout == 4 * 10
    assert one.phases.train == TRAIN_S
    assert one.dollars_per_hour == 2 * 16


def test_rollout_ends_with_the_slot_that_has_most_to_do():
    """33 samples on 4 slots: one of them has 9."""
    one = forecast(work(prompts=3, group_size=11), FLEET, TIMES, RATES)
    assert one.phases.rollout == 9 * 10


def test_guidance_doubles_rows_of_rollout_and_training():
    one = forecast(work(passes=2), FLEET, TIMES, RATES)
    assert one.phases.rollout == 2 * 80
    assert one.phases.train == 2 * 0.5 + 2 * (2 * 32 + 5)


def test_forwards_that_the_loss_needs_are_charged_per_timestep():
    one = forecast(work(forwards=1), FLEET, TIMES, RATES)
    assert one.phases.train == TRAIN_S + 2 * 16 * 1.0


def test_scoring_that_keeps_up_is_waited_for_once_and_slower_scoring_sets_the_pace():
    quick = forecast(WORK, FLEET, Proportional({Operation.REWARD: 1.0}), RATES)
    assert quick.phases.rollout == 80 + 4
    slow = forecast(WORK, FLEET, Proportional({Operation.REWARD: 20.0}), RATES)
    assert slow.phases.rollout == 40 + 2 * 80
    assert forecast(WORK, fleet(scorers=4), Proportional({Operation.REWARD: 20.0}), RATES).phases.rollout == 80 + 20


def test_updates_beyond_the_groups_are_not_taken():
    assert work(updates=9, prompts=4).samples_by_update == [8, 8, 8, 8]
    assert work(updates=3, prompts=4).samples_by_update == [16, 8, 8]


def test_evaluation_waits_only_for_what_does_not_fit_beside_training():
    long = work(evaluation=msgspec.structs.replace(WORK.evaluation, pictures=20))
    beside = forecast(long, FLEET, TIMES, RATES)
    assert beside.phases.evaluation == pytest.approx((7 + 10 * 10 - TRAIN_S) / 5)
    everybody_trains = forecast(long, fleet(spot=0), TIMES, RATES)
    assert everybody_trains.phases.evaluation == pytest.approx((7 + 10 * 10) / 5)


# -- previews ----------------------------------------------------------------------------------------------------------


def test_fixed_previews_beyond_the_window_are_discarded_and_nobody_waits():
    """75 s hold 15 previews of 5 s on each of the two slots that do not train."""
    one = explored()
    assert (one.previews_planned, one.previews_finished, one.previews_fit) == (64, 30, 30)
    assert one.phases.exploration == 0


def test_quicker_previews_are_charged_as_such():
    quick = Proportional({Operation.PREVIEW_STEP: 0.5})
    one = forecast(work(explore=EXPLORE), FLEET, quick, RATES)
    assert one.previews_finished == 2 * explored().previews_finished


def test_overrun_lets_previews_finish_and_is_waited_for():
    one = explored(overrun=1.0)
    assert one.previews_finished == 60
    assert one.phases.exploration == pytest.approx(TRAIN_S)
    enough = explored(overrun=2.0)
    assert enough.previews_finished == 64
    assert enough.phases.exploration == pytest.approx(32 * 5 - TRAIN_S)


def test_fixed_previews_with_nobody_beside_training_are_drawn_afterwards_by_all():
    alone = fleet(reserved=2, spot=0)
    one = forecast(work(explore=EXPLORE.model_copy(update={"overrun": 3.0})), alone, TIMES, RATES)
    assert one.previews_finished == 64
    assert one.phases.exploration == 32 * 5
    assert forecast(work(explore=EXPLORE), alone, TIMES, RATES).previews_planned == 0


def test_inline_previews_take_all_slots_and_everybody_waits():
    one = explored(timing=Timing.INLINE)
    assert one.previews_finished == 64
    assert one.phases.exploration == 16 * 5
    around_s = 60 + 7 + 2 * 10 + 10
    assert one.hours == pytest.approx((around_s + 10 * one.seconds_per_iteration - 80) / 3600)


def test_bandit_plans_what_fits_before_its_margin():
    one = explored(plan=PlanKind.BANDIT, margin=0.2)
    assert one.previews_planned == one.previews_finished == 2 * 12
    assert explored(plan=PlanKind.BANDIT, margin=0.2, most_seeds=4).previews_planned == 16


def test_bandit_plans_beyond_the_window_only_where_nobody_waits():
    assert explored(plan=PlanKind.BANDIT, margin=-0.2).previews_planned == 2 * 18
    assert explored(plan=PlanKind.BANDIT, margin=-0.2, overrun=0.5).previews_planned == 2 * 15


def test_audited_seeds_make_the_rollout_longer():
    one = explored(overrun=2.0)
    assert one.audited == 8
    assert one.phases.rollout == 10 * 10


@pytest.mark.parametrize(
    ("settings", "machines"),
    [(EXPLORE, {"spot": 0}), (ExploreConfig(enabled="on", seeds=8), {}), (None, {})],
)
def test_nothing_is_previewed_where_nobody_is_free_or_nothing_could_be_selected(settings, machines):
    one = forecast(work(explore=settings), fleet(**machines), TIMES, RATES)
    assert (one.previews_planned, one.previews_finished, one.audited) == (0, 0, 0)
    assert one.phases.exploration == 0


# -- capacity ----------------------------------------------------------------------------------------------------------


def test_spot_nodes_shorten_the_rollout_and_leave_training_as_it_is():
    none, some, many = for_spot_counts(WORK, FLEET, TIMES, RATES, [0, 2, 6])
    assert [one.spot for one in (none, some, many)] == [0, 2, 6]
    assert none.phases.rollout > some.phases.rollout > many.phases.rollout
    assert none.phases.train == some.phases.train == many.phases.train
    assert (none.dollars_per_hour, many.dollars_per_hour) == (12, 24)


def test_spot_nodes_without_a_price_are_refused():
    free_of_spot = Rates(reserved=6.0, spot=None)
    assert forecast(WORK, fleet(spot=0), TIMES, free_of_spot).dollars_per_hour == 12
    with pytest.raises(ConfigError, match=r"2 spot nodes .* market.spot_price"):
        forecast(WORK, FLEET, TIMES, free_of_spot)

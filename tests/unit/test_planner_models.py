"""The models behind the planner: the gain of a choice, the duration of previews, and how well they rank."""

import pytest

from spotlight.control.explore.bandit import Bandit, best_arm, prior_rho
from spotlight.control.explore.gain import gain
from spotlight.control.explore.timing import TimeModel
from spotlight.sim.learning import LearningModel

# -- gain --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seeds", "group", "row"),
    [
        (20, 16, (1.25, 1.21, 1.16, 1.09)),
        (24, 16, (1.47, 1.40, 1.30, 1.17)),
        (30, 16, (1.77, 1.66, 1.49, 1.28)),
        (32, 16, (1.86, 1.74, 1.55, 1.31)),
        (64, 16, (2.89, 2.63, 2.21, 1.68)),
        (96, 24, (2.89, 2.63, 2.21, 1.68)),
    ],
)
def test_gain_is_that_of_the_monte_carlo_table(seeds, group, row):
    assert [gain(seeds, group, rho) for rho in (1.0, 0.927, 0.8, 0.6)] == pytest.approx(list(row), rel=0.03)


def test_gain_of_no_choice_or_no_fidelity_is_one():
    assert gain(16, 16, 1.0) == gain(3, 16, 1.0) == gain(64, 16, 0.0) == gain(64, 16, -0.4) == 1.0


# -- time --------------------------------------------------------------------------------------------------------------


def observed(model, cost, steps, previews=100, speed=50.0, finished=100):
    """One exploration in a world where a preview of S steps costs cost(S) row-steps."""
    return model.previewed(
        steps=steps,
        planned=previews,
        finished=finished,
        predicted_s=model.predict(previews, steps, speed),
        seconds=finished * cost(steps) / speed,
    )


def test_time_model_learns_speed_and_overhead_from_different_step_counts():
    model = TimeModel()

    def cost(steps):
        return 1.3 * steps + 4.0

    for steps in (3, 8, 4, 6, 3, 8, 4, 6, 3, 8) * 3:
        model = observed(model, cost, steps)
    assert abs(model.relative_error) < 0.03
    for steps in (3, 5, 8):
        assert model.row_steps(steps) == pytest.approx(cost(steps), rel=0.05)


def test_time_model_learns_as_much_from_an_exploration_that_was_cut_short():
    whole, cut = TimeModel(), TimeModel()
    for _ in range(4):
        whole = observed(whole, lambda steps: 2.0 * steps, 6)
        cut = observed(cut, lambda steps: 2.0 * steps, 6, finished=37)
    assert cut.row_steps(6) == pytest.approx(whole.row_steps(6))


def test_time_model_is_robust_against_one_absurd_observation():
    model = TimeModel()
    for _ in range(10):
        model = observed(model, lambda steps: steps + 1.0, 6)
    before = model.row_steps(6)
    assert observed(model, lambda steps: 1000.0 * steps, 6).row_steps(6) < 2 * before


def test_time_model_fits_what_it_predicts():
    model = TimeModel()
    count = model.fits(10.0, 6, 50.0)
    assert model.predict(count, 6, 50.0) <= 10.0 < model.predict(count + 1, 6, 50.0)


# -- bandit ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["words-nft", "words-large-nft", "scenes-nft"])
def test_bandit_prior_rises_with_steps_and_is_near_what_was_measured(name):
    measured = LearningModel.load(name).fidelity
    curve = [prior_rho(steps, 10) for steps in sorted(measured)]
    assert curve == sorted(curve)
    assert curve == pytest.approx([measured[steps] for steps in sorted(measured)], abs=0.12)


ARMS = (2, 3, 4, 5, 6, 8, 10)


def audited(steps, rho, times=1, discount=0.9, seeds=40):
    bandit = Bandit()
    for _ in range(times):
        bandit = bandit.learned(steps, rho, audited=seeds, discount=discount)
    return bandit


def test_bandit_without_audits_uses_the_prior():
    assert Bandit().curve(ARMS, 10) == pytest.approx({steps: prior_rho(steps, 10) for steps in ARMS})


def test_bandit_forgets_old_audits():
    bandit = audited(6, 0.2, times=20, discount=0.8)
    low = bandit.curve(ARMS, 10)[6]
    for _ in range(20):
        bandit = bandit.learned(6, 0.9, audited=40, discount=0.8)
    assert low < 0.35
    assert bandit.curve(ARMS, 10)[6] > 0.85


def test_bandit_learns_about_neighbouring_arms_from_one():
    before, after = Bandit().curve(ARMS, 10), audited(6, 0.4, times=3).curve(ARMS, 10)
    lost = {steps: before[steps] - after[steps] for steps in (2, 4, 5, 6)}
    assert lost[6] > lost[5] > lost[4] > lost[2] > 0


def test_bandit_is_more_certain_of_an_arm_the_nearer_the_audits_were():
    bandit = audited(6, prior_rho(6, 10), times=5)
    doubt = bandit.doubt(ARMS, 10)
    assert doubt[6] < doubt[5] < doubt[4] < doubt[2] < Bandit().doubt(ARMS, 10)[2]
    assert bandit.curve(ARMS, 10, alpha=1.0)[2] > bandit.curve(ARMS, 10)[2]


def test_bandit_never_ranks_more_steps_worse():
    curve = audited(3, 0.9, times=3).learned(8, 0.3, audited=10, discount=0.9).curve(ARMS, 10)
    assert list(curve.values()) == sorted(curve.values())


def test_bandit_trusts_a_tiny_audit_little_and_a_large_one_more():
    tiny, usual, large = (audited(6, 0.2, seeds=seeds).curve(ARMS, 10)[6] for seeds in (1, 32, 128))
    assert prior_rho(6, 10) > tiny > usual > large > 0.2


def test_equal_arms_go_to_the_fewest_steps():
    assert best_arm({8: 1.5, 4: 1.5, 6: 1.2}, [8, 6, 4]) == 4

"""The plan where slots are missing: nothing of the grid gains more per second, and to preview nothing is a choice."""

from hypothesis import given
from hypothesis import strategies as st

from spotlight.control.explore.gain import excess
from spotlight.control.explore.shortage import PayingPlan, Shortage, paying_plan

SHORTAGES = st.builds(
    Shortage,
    group_size=st.integers(2, 24),
    prompts=st.integers(0, 8),
    rolled_out=st.integers(8, 16),
    beside=st.floats(0, 5000),
    speed=st.floats(1, 500),
    iteration_s=st.floats(1, 600),
)
CURVES = st.dictionaries(st.integers(1, 10), st.floats(0, 1), min_size=1, max_size=3)


def cost(steps: int) -> float:
    return steps + 2.0


def seconds_per_gain(shortage: Shortage, rho: float, prompts: int, seeds: int, steps: int) -> float:
    wait_s = max(0.0, prompts * seeds * cost(steps) - shortage.beside) / shortage.speed
    gain = 1 + rho**2 * excess(seeds, shortage.group_size) * prompts / shortage.rolled_out
    return (shortage.iteration_s + wait_s) / gain


@given(shortage=SHORTAGES, rho=CURVES, most=st.integers(1, 40), data=st.data())
def test_no_number_of_prompts_seeds_and_steps_gains_clearly_more_per_second(shortage, rho, most, data):
    best = paying_plan(shortage, rho, most, cost)
    assert best.seconds_per_gain <= shortage.iteration_s
    steps = data.draw(st.sampled_from(sorted(rho)))
    prompts, seeds = data.draw(st.integers(0, shortage.prompts)), data.draw(st.integers(0, most))
    # Numbers an eighth apart are tried, and the value is flat between them.
    assert best.seconds_per_gain <= 1.05 * seconds_per_gain(shortage, rho[steps], prompts, seeds, steps)


@given(shortage=SHORTAGES, rho=CURVES, most=st.integers(1, 40))
def test_plan_has_the_gain_and_the_wait_that_it_states(shortage, rho, most):
    best = paying_plan(shortage, rho, most, cost)
    if not best.seeds:
        assert best == PayingPlan(steps=min(rho), seconds_per_gain=shortage.iteration_s)
        return
    assert shortage.group_size < best.seeds <= most
    assert 0 < best.prompts <= shortage.prompts
    found = seconds_per_gain(shortage, rho[best.steps], best.prompts, best.seeds, best.steps)
    assert abs(found - best.seconds_per_gain) < 1e-9 * found
    assert (shortage.iteration_s + best.wait_s) / best.gain == best.seconds_per_gain < shortage.iteration_s


@given(shortage=SHORTAGES, rho=CURVES, most=st.integers(1, 40))
def test_more_slots_beside_training_never_make_progress_slower(shortage, rho, most):
    more = Shortage(**{name: getattr(shortage, name) for name in shortage.__struct_fields__} | {"beside": 5000.0})
    assert (
        paying_plan(more, rho, most, cost).seconds_per_gain <= paying_plan(shortage, rho, most, cost).seconds_per_gain
    )

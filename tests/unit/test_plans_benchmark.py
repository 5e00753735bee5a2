"""`benchmarks/plans/`: what a plan is worth and costs, and the recipes that ship the chosen ones."""

from pathlib import Path

import pytest
from recipe_groups import FLEET_RECIPES

from benchmarks.headline.setups import PROFILES
from benchmarks.learning_fit.run import PreviewRanks
from benchmarks.plans import figures, run
from spotlight.config import load_config
from spotlight.control.explore.config import Precision
from spotlight.control.explore.gain import gain


def clocks(family: str, seconds: dict[str, float]) -> list[run.PlanClock]:
    """Clocks of all plans with one second per iteration, except for the named ones."""
    return [
        run.PlanClock(
            family=family, profile=profile, spot=8, plan=plan.name, start_s=0.0,
            iteration_s=seconds.get(plan.name, 1.0), evaluation_s=0.0, commit="", date="", hardware="",
        )
        for profile in PROFILES
        for plan in run.plans_of(family)
    ]  # fmt: skip


def test_progress_of_a_plan_is_the_gain_of_its_previews(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "ITERATIONS", 24)
    figures.progress_of.cache_clear()
    model_rho = 0.792
    many, few, scouted = (run.SearchedPlan(24, 5), run.SearchedPlan(8, 5), run.SearchedPlan(24, 5, 2.0, 4))
    found = {plan: sum(figures.progress_of("scenes", plan)) / 4 for plan in (many, few, scouted)}
    assert found[many] == pytest.approx(gain(24, 4, model_rho), rel=0.2)
    assert 1 < found[few] < found[many] < found[scouted]
    exact, rounded = (sum(figures.progress_of("scenes", many._replace(precision=each))) for each in ("exact", "fp8"))
    assert rounded < exact
    figures.progress_of.cache_clear()


def test_plan_of_shorter_iterations_is_sooner_and_one_of_more_progress_too() -> None:
    family, chosen, earlier = "scenes", run.chosen_plan("scenes"), run.EARLIER["scenes"]
    field = clocks(family, {chosen.name: 0.5, earlier.name: 1.0})
    ratio = figures.figures_of(field)[f"{family} 8 chosen"]
    progress = {plan: sum(figures.progress_of(family, plan)) / 4 for plan in (chosen, earlier)}
    iterations = {plan: figures.iterations_of(family, each) for plan, each in progress.items()}
    # Once averages lag by iterations, once by progress; the lesser gain counts.
    ratios = [2 * before / after for before, after in zip(iterations[earlier], iterations[chosen], strict=True)]
    assert ratio.value == pytest.approx(min(ratios))
    assert min(iterations[chosen]) > figures.needed_progress(family) / progress[chosen]
    rows = figures.searched(field)
    assert rows[0].plan == chosen.name
    assert next(row for row in rows if row.plan == earlier.name).sooner == (1.0, 1.0)


def test_short_run_has_the_seconds_of_its_slots(tmp_path: Path) -> None:
    family, plan = "words-large", run.SearchedPlan(8, 4, 2.0, 4)
    found = {}
    for spot in (0, 8):
        task = run.ClockTask(family, PROFILES[0], spot, plan, tmp_path)
        run.run_task(task)
        found[spot] = run.merge.read(task.path, run.PlanClock, "plans")
        assert list(tmp_path.glob("*.run")) == []
    assert found[0].iteration_s > 1.5 * found[8].iteration_s
    assert found[0].evaluation_s > 1.5 * found[8].evaluation_s > 0
    assert found[8].hours(10, every=5) == pytest.approx(
        (found[8].start_s + 10 * found[8].iteration_s + 2 * found[8].evaluation_s) / 3600
    )


def test_fp8_never_counts_as_a_better_ranking() -> None:
    ranks = PreviewRanks(prompts=1, seeds=2, second_order={5: 0.8}, fp8_steps=5, fp8=0.6)
    assert ranks.fp8_share == pytest.approx(0.75)
    assert PreviewRanks(prompts=1, seeds=2, second_order={5: 0.8}, fp8_steps=5, fp8=0.9).fp8_share == 1.0


@pytest.mark.parametrize("name", FLEET_RECIPES)
def test_recipe_of_a_fleet_learns_and_previews_as_the_headline_does(name: str) -> None:
    family, spot = name.split("-nft-4-")
    shipped, raced = load_config(name), run.contest(family, run.OURS, [f"cluster.spot={spot}"]).config(run.OURS, 0)
    for section in ("algorithm", "rollout", "train", "iterations"):
        assert getattr(shipped, section) == getattr(raced, section)
    assert shipped.eval.every == raced.eval.every
    assert (shipped.cluster.reserved, shipped.cluster.spot, shipped.cluster.gang) == (4, int(spot), 4)
    # All weights of the tiny models are trained, and only frozen ones have a copy in fp8.
    more = {"seeds": 32} if name == "scenes-nft-4-16" else {}
    assert shipped.explore == raced.explore.model_copy(update={"precision": Precision.EXACT, **more})

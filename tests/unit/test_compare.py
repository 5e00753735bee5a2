"""Setups compared on curves made by hand: targets, factors, and what cannot be compared."""

import io
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console
from story_journal import RunScript, story

from spotlight.control.market.prices import PriceTable
from spotlight.core.errors import ConfigError, InputError
from spotlight.core.events import Evaluated, IterationDone, NodeJoined, Record
from spotlight.core.types import NodeId
from spotlight.core.work import SlotClass
from spotlight.surface.compare import Curve, CurvePoint, Reached, compare, curve_of, to_target
from spotlight.surface.compare.plot import draw, mean_curve
from spotlight.surface.compare.table import show
from spotlight.surface.projections import RunView

PRICES = PriceTable.load()


def curve(setup: str, scores: Sequence[float], hours: float = 1.0, price: float = 10.0, seed: int = 0) -> Curve:
    """An evaluation every 10 iterations, each of which takes `hours` at `price` dollars per hour."""
    points = [
        CurvePoint(iteration=10 * n, hours=10 * n * hours, dollars=10 * n * hours * price, score=score)
        for n, score in enumerate(scores)
    ]
    return Curve(setup=setup, seed=seed, score="exact", points=tuple(points))


# -- targets -----------------------------------------------------------------------------------------------------------


def test_target_between_two_evaluations_is_interpolated_on_every_axis():
    assert to_target(curve("any", [0.0, 0.4, 0.8]), 0.5) == Reached(iterations=12.5, hours=12.5, dollars=125.0)


def test_target_at_an_evaluation_is_reached_there():
    assert to_target(curve("any", [0.0, 0.5, 0.5]), 0.5) == Reached(iterations=10, hours=10, dollars=100)


def test_dip_neither_undoes_a_target_nor_brings_a_later_one_nearer():
    dipping = curve("any", [0.0, 0.5, 0.125, 1.0])
    assert to_target(dipping, 0.5) == Reached(iterations=10, hours=10, dollars=100)
    assert to_target(dipping, 0.75) == Reached(iterations=25, hours=25, dollars=250)


def test_target_beyond_the_best_is_never_reached():
    assert to_target(curve("any", [0.0, 0.6, 0.2]), 0.61) is None


def test_target_below_the_base_model_costs_nothing():
    assert to_target(curve("any", [0.3, 0.6]), 0.2) == Reached(iterations=0, hours=0, dollars=0)


# -- comparison --------------------------------------------------------------------------------------------------------


def test_factors_separate_saved_time_from_saved_money():
    slow = curve("reserved-only", [0.0, 0.2, 0.4, 0.6, 0.8], hours=1.0, price=10.0)
    fast = curve("spotlight", [0.0, 0.4, 0.8], hours=0.5, price=20.0)
    half = compare([slow, fast], "reserved-only").of("spotlight", 0.5)
    assert half.factors is not None
    assert half.factors.iterations.mean == pytest.approx(2.0)
    assert half.factors.seconds_per_iteration.mean == pytest.approx(2.0)
    assert half.factors.fleet_price.mean == pytest.approx(0.5)
    assert half.factors.hours.mean == pytest.approx(4.0)
    assert half.factors.dollars.mean == pytest.approx(2.0)


def test_baseline_reaches_all_of_its_gain_and_saves_nothing_against_itself():
    comparison = compare([curve("plain", [0.1, 0.3, 0.7, 0.5])], "plain")
    whole = comparison.of("plain", 1.0)
    assert whole.iterations is not None
    # The mean of the last two evaluations, which the curve first comes to on its way to the better one.
    assert (whole.iterations.mean, whole.target.mean) == (pytest.approx(17.5), pytest.approx(0.6))
    assert whole.factors is not None
    assert whole.factors.dollars.mean == pytest.approx(1.0)


def test_spread_over_seeds_is_the_mean_with_the_least_and_the_most():
    runs = [
        curve("plain", [0.0, 0.5, 1.0, 1.0], seed=1),
        curve("plain", [0.0, 0.25, 0.5, 0.5], seed=2),
        curve("quick", [0.0, 1.0], seed=1),
        curve("quick", [0.0, 0.125, 0.5], seed=2),
    ]
    half = compare(runs, "plain").of("quick", 0.5)
    assert half.iterations is not None
    assert (half.iterations.low, half.iterations.high) == (5, pytest.approx(40 / 3))
    assert half.iterations.mean == pytest.approx((5 + 40 / 3) / 2)
    assert half.factors is not None
    assert half.factors.iterations.mean == pytest.approx(math.sqrt(2 * 0.75))
    product = half.factors.iterations.mean * half.factors.seconds_per_iteration.mean
    assert product == pytest.approx(half.factors.hours.mean)
    assert product * half.factors.fleet_price.mean == pytest.approx(half.factors.dollars.mean)


def test_target_that_one_seed_misses_has_a_count_instead_of_a_figure():
    runs = [curve("plain", [0.0, 1.0], seed=seed) for seed in (1, 2)]
    runs += [curve("worse", [0.0, 1.0], seed=1), curve("worse", [0.0, 0.6], seed=2)]
    comparison = compare(runs, "plain")
    missed = comparison.of("worse", 0.75)
    assert (missed.reached, missed.seeds, missed.hours, missed.factors) == (1, 2, None, None)
    assert comparison.of("worse", 0.5).hours is not None


def test_endings_list_the_best_score_and_the_cost_of_each_setup():
    comparison = compare([curve("plain", [0.0, 0.4, 0.3]), curve("quick", [0.0, 0.9], price=5.0)], "plain")
    assert [(one.setup, one.best.mean, one.dollars.mean) for one in comparison.endings] == [
        ("plain", 0.4, 200),
        ("quick", 0.9, 50),
    ]


@pytest.mark.parametrize(
    ("curves", "words"),
    [
        ([curve("quick", [0, 1])], "no run of the baseline 'plain'"),
        ([curve("plain", [0, 1]), curve("plain", [0, 1])], "two runs of 'plain' with seed 0"),
        ([curve("plain", [0, 1]), curve("quick", [0, 1], seed=4)], "'quick' was run with seed 4, but the baseline"),
        ([curve("plain", [0.5, 0.4])], r"ends at 0\.4, no better than its base model's 0\.5"),
        ([curve("plain", [0, 1]), Curve(setup="x", seed=0, score="reward", points=())], "cannot be compared"),
    ],
)
def test_curves_that_cannot_be_compared_are_refused_with_a_reason(curves, words):
    with pytest.raises(InputError, match=words):
        compare(curves, "plain")


def test_unknown_setup_or_target_is_refused_with_the_known_ones():
    comparison = compare([curve("plain", [0, 1])], "plain")
    with pytest.raises(InputError, match=r"'quick' at 0\.5 of the gain; name one of the setups plain at 0\.25"):
        comparison.of("quick", 0.5)


# -- from a journal ----------------------------------------------------------------------------------------------------


def test_curve_of_a_run_has_the_cost_at_which_its_weights_were_made():
    records = story(iterations=4)
    found = curve_of(records, PRICES, "spotlight")
    assert (found.setup, found.seed, found.score) == ("spotlight", 7, "exact")
    assert [point.iteration for point in found.points] == [0, 1, 2, 3, 4]
    assert (found.points[0].hours, found.points[0].dollars) == (0, 0)
    for point in found.points[1:]:
        until = next(n for n, record in enumerate(records) if _finishes(record, point.iteration - 1))
        assert point.hours == pytest.approx(records[until].at / 3600)
        assert point.dollars == pytest.approx(RunView.of(records[: until + 1]).bill(PRICES).dollars)
    assert found.points[-1].dollars > found.points[1].dollars > 0


def test_other_score_can_be_named_and_must_exist():
    assert curve_of(story(iterations=2), PRICES, "any", "reward").score == "reward"
    with pytest.raises(InputError, match="'any' has no held-out score 'geneval'"):
        curve_of(story(iterations=2), PRICES, "any", "geneval")


def test_iteration_that_is_repeated_counts_from_its_last_end():
    def done(iteration: int) -> IterationDone:
        return IterationDone(iteration=iteration, rollout_s=1, train_s=1, reward=0)

    def scored(iteration: int) -> Evaluated:
        return Evaluated(iteration=iteration, scores={"exact": (iteration / 10, 0, 1)})

    script = RunScript()
    for at, event in ((0, scored(0)), (3600, done(0)), (7200, done(1)), (7200, scored(2)), (9000, done(0))):
        script.add(event, at)
    assert [point.iteration for point in curve_of(script.records(), PRICES, "any").points] == [0]
    script.add(done(1), 18000)
    script.add(scored(2), 18000)
    assert [(point.iteration, point.hours) for point in curve_of(script.records(), PRICES, "any").points] == [
        (0, 0.0),
        (2, 5.0),
    ]


def test_machine_without_a_price_is_refused_instead_of_left_out():
    script = RunScript()
    script.add(NodeJoined(node=NodeId("spot-1.1"), slot_class=SlotClass.SPOT, slots=1, price="aws-p5-h10"))
    script.add(IterationDone(iteration=0, rollout_s=1, train_s=1, reward=0), 10)
    with pytest.raises(ConfigError, match=r"no row 'aws-p5-h10'.*did you mean 'aws-p5-h100'"):
        curve_of(script.records(), PRICES, "any")


def _finishes(record: Record, iteration: int) -> bool:
    return isinstance(record.event, IterationDone) and record.event.iteration == iteration


# -- shown -------------------------------------------------------------------------------------------------------------


def test_tables_name_every_setup_with_its_hours_and_what_was_not_reached():
    runs = [curve("plain", [0.0, 0.5, 1.0, 1.0]), curve("quick", [0.0, 1.0], price=3.0), curve("worse", [0.0, 0.2])]
    console = Console(file=io.StringIO(), width=100)
    show(compare(runs, "plain"), console, "list-2026-08")
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    (quick,) = [line.split() for line in lines if line.split()[:2] == ["quick", "100%"] and "of" in line]
    assert quick[-3:] == ["10.0", "10.00", "30.00"]
    (saved,) = [line.split() for line in lines if line.split()[:2] == ["quick", "100%"] and "of" not in line]
    assert saved[2:] == ["2.00", "1.00", "3.33", "2.00", "6.67"]
    (worse,) = [line.split() for line in lines if line.split()[:2] == ["worse", "50%"] and "of" in line]
    assert worse[-6:] == ["0", "of", "1", "-", "-", "-"]
    assert any("priced as if, list-2026-08" in line for line in lines)


def test_mean_curve_is_over_the_iterations_that_all_seeds_have():
    mean = mean_curve([curve("plain", [0.0, 0.5, 1.0], seed=1), curve("plain", [0.2, 0.7], seed=2, hours=3.0)])
    assert [(point.iteration, point.hours) for point in mean] == [(0, 0), (10, 20)]
    assert [point.score for point in mean] == pytest.approx([0.1, 0.6])


def test_picture_is_drawn_as_png_and_other_names_are_refused(tmp_path: Path):
    runs = [curve("plain", [0.0, 0.5, 1.0], seed=seed) for seed in (1, 2)] + [curve("quick", [0.0, 1.0], seed=1)]
    draw(runs, "plain", "a title", tmp_path / "curves.png", "list-2026-08")
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.format == "PNG"
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 2
    with pytest.raises(InputError, match=r"end it in \.png"):
        draw(runs, "plain", "a title", tmp_path / "curves.pdf", "list-2026-08")

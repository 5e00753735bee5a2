"""`benchmarks/headline/`, by market: windows, classes, crossings, what is run, and figures over races."""

import json
from argparse import Namespace
from pathlib import Path

import msgspec
import pytest

from benchmarks.headline import market_figures as results
from benchmarks.headline import market_runs as markets
from benchmarks.headline.cells import Cell, CellPoint
from benchmarks.headline.market_check import check_figures
from benchmarks.headline.market_figures import crossing, market_races
from benchmarks.headline.market_windows import (
    CHOSEN_WITH,
    MarketClass,
    MarketWindow,
    at_hours,
    drawn,
    held_slots,
    listed,
)
from benchmarks.headline.run import contest_of, run_cells
from benchmarks.headline.setups import FITTED, STEADY
from benchmarks.lib import merge
from spotlight.core.errors import InputError

OURS = "spotlight-fixed"
PROFILE = "h200-qwen-image-512"


def points(scores: list[float], hours: float, spot: float = 0.0, reserved: float = 4.0) -> tuple[CellPoint, ...]:
    """Evaluations every 10 iterations, `hours` apart, with this number of slots of either class."""
    return tuple(
        CellPoint(
            iteration=10 * number,
            hours=number * hours,
            reserved_hours=reserved * number * hours,
            spot_hours=spot * number * hours,
            score=score,
        )
        for number, score in enumerate(scores)
    )


def cell(setup: str, hours: float, trace: str = STEADY, seed: int = 0, spot: float = 0.0, **fields: object) -> Cell:
    made = points([0.0, 0.4, 0.8, 0.8], hours, spot)
    settled = {"family": "scenes", "points": made, "numerics": "model"} | fields
    return Cell(
        setup=setup, seed=seed, profile=PROFILE, profile_digest="", trace=trace, trace_digest="", iterations=30,
        losses=0, previews=0, commit="", date="", hardware="", seconds=0.0, **settled,
    )  # fmt: skip


def counts(path: Path, steps: list[tuple[float, int]], hours: float) -> None:
    """A recorded trace: nodes obtainable from each hour on."""
    lines = [f"{hour * 3600:.0f},{nodes}" for hour, nodes in [*steps, (hours, steps[-1][1])]]
    path.write_text("t_s,n\n" + "\n".join(lines) + "\n")


# -- windows -----------------------------------------------------------------------------------------------------------


def test_classes_are_by_mean_held_spot_slots():
    found = [MarketClass.of(slots) for slots in (0.0, 0.0999, 0.1, 0.999, 1.0, 5.99, 6.0, 8.0)]
    kinds = MarketClass.NONE, MarketClass.SCARCE, MarketClass.PARTIAL, MarketClass.FULL
    assert found == [kind for kind in kinds for _ in range(2)]


def test_windows_are_listed_in_hours_or_seconds_or_at_the_same_hours_of_all_files(tmp_path):
    (tmp_path / "hours.txt").write_text("file,start_h\na.csv,1.5\n")
    (tmp_path / "seconds.txt").write_text("class,file,start_s,end_s\nscarce,a.csv,5400,12600\n")
    assert listed(tmp_path / "hours.txt") == listed(tmp_path / "seconds.txt") == [MarketWindow("a.csv", 1.5)]
    counts(tmp_path / "a.csv", [(0, 3)], 20)
    counts(tmp_path / "b.csv", [(0, 3)], 20)
    assert len(at_hours(tmp_path, "*.csv", [0.0, 4.0])) == 4
    assert MarketWindow("a.csv+b.csv", 4.0).trace(tmp_path) == f"{tmp_path}/a.csv+{tmp_path}/b.csv@4"
    with pytest.raises(InputError, match=r"no trace c\.csv"):
        MarketWindow("c.csv", 0.0).trace(tmp_path)
    (tmp_path / "hours.txt").write_text("name,hour\na.csv,1.5\n")
    with pytest.raises(InputError, match="file,start_h"):
        listed(tmp_path / "hours.txt")


def test_drawn_windows_are_of_all_classes_apart_and_away_from_those_of_earlier_choices(tmp_path):
    counts(tmp_path / "changing.csv", [(0, 0), (40, 8), (80, 3), (120, 0)], 200)
    used = CHOSEN_WITH[0]
    counts(tmp_path / used.file, [(0, 8), (13, 0), (60, 8)], 100)
    with pytest.raises(InputError, match="of class scarce"):
        drawn(tmp_path, "*.csv", 1, 5)
    often = [(half / 2 + later, 1 - round(later / 0.2)) for half in range(120) for later in (0.0, 0.2)]
    counts(tmp_path / "scarce.csv", often, 90)
    for seed in range(5):
        found = drawn(tmp_path, "*.csv", 2, seed)
        assert found == drawn(tmp_path, "*.csv", 2, seed)
        for hours in (0.5, 2.0):
            kinds = [MarketClass.of(held_slots(str(tmp_path / window.file), window.start_h, hours)) for window in found]
            assert kinds == [kind for kind in MarketClass for _ in range(2)]
        for one, two in zip(found[::2], found[1::2], strict=True):
            assert one.file != two.file or abs(one.start_h - two.start_h) >= 12
        assert all(window.file != used.file or window.start_h >= used.start_h + 12 for window in found)
    assert len({tuple(drawn(tmp_path, "*.csv", 2, seed)) for seed in range(5)}) > 1


# -- runs --------------------------------------------------------------------------------------------------------------


def wanted(out: Path, **changes: object) -> Namespace:
    given = {
        "family": ["scenes", "words-large"], "seeds": [5, 6], "profiles": [PROFILE], "numerics": "model",
        "ours": OURS, "out": out, "device": "cpu", "remember": None, "same_batches": False, "overrides": [], "jobs": 1,
    }  # fmt: skip
    return Namespace(**{**given, **changes})


def test_setups_without_spot_run_once_for_all_markets_and_real_numbers_of_a_seed_are_shared(tmp_path):
    traces = ["a.csv@1", "b.csv@2"]
    tasks = markets.tasks_of(wanted(tmp_path), traces)
    cells = [(task.family, task.seed, *each) for task in tasks for each in task.wanted]
    assert len(tasks) == len(cells) == len(set(cells))
    mine = [(trace, setup) for family, seed, _, trace, setup in cells if (family, seed) == ("scenes", 5)]
    assert mine.count((STEADY, "reserved-only")) == mine.count((STEADY, "reserved-explore")) == 1
    assert sum(setup == OURS for _, setup in mine) == 1 + len(traces)
    assert sum(setup == "spot-no-explore" for _, setup in mine) == len(traces)
    assert not [each for each in cells if each[1] == 6 and each[4] == "spot-no-explore"], "one clock for all seeds"
    shared = markets.tasks_of(wanted(tmp_path, numerics="real"), traces)
    assert [(task.family, task.seed) for task in shared] == [
        ("scenes", 5),
        ("scenes", 6),
        ("words-large", 5),
        ("words-large", 6),
    ]
    assert [each for task in shared for each in task.wanted] == [each for task in tasks for each in task.wanted]


def test_races_without_spot_slots_are_run_again_with_stand_ins(tmp_path):
    found = [cell("reserved-only", 2.0, seed=5)]
    found += [cell(OURS, 1.0, "a@1", seed=5, spot=8.0), cell(OURS, 1.0, "b@2", seed=5, spot=0.05)]
    (task,) = markets.fallback_tasks(wanted(tmp_path), ["x/a.csv@1", "x/b.csv@2"], found)
    assert (task.family, task.seed, task.wanted) == ("scenes", 5, [(PROFILE, "x/b.csv@2", f"{OURS}-fallback")])


def test_setup_with_stand_ins_is_the_setup_with_a_fallback(tmp_path):
    args = wanted(tmp_path, family="scenes")
    plain, helped = (
        contest_of(args, PROFILE, "calm@0.5", setup, 0).config(OURS, 0) for setup in (OURS, f"{OURS}-fallback")
    )
    assert (plain.market.fallback_s, helped.market.fallback_s) == (None, 300.0)
    assert helped.explore == plain.explore


def test_cells_with_and_without_stand_ins_are_simulated_once(tmp_path):
    counts(tmp_path / "none.csv", [(0, 0), (29, 8)], 30)
    small = ["iterations=2", "rollout.prompts=2", "eval.prompts=2", "eval.every=1"]
    args = wanted(tmp_path / "out", family="words-large", overrides=small)
    args.out.mkdir()
    trace = f"{tmp_path}/none.csv@2"
    cells = [(PROFILE, trace, OURS), (PROFILE, trace, f"{OURS}-fallback"), (PROFILE, STEADY, "reserved-only")]
    run_cells(args, 5, cells[:1])
    args.overrides = [*small, "market.fallback_s=0"]
    run_cells(args, 5, cells[1:])
    found = {each.setup: each for each in markets.read_cells(args.out)}
    alone, helped = found[OURS], found[f"{OURS}-fallback"]
    assert {each.trace for each in (alone, helped)} == {"none@2"}
    assert (
        str(tmp_path)
        not in (args.out / "words-large-h200-qwen-image-512-none@2-spotlight-fixed-seed5.json").read_text()
    )
    assert alone.points[-1].spot_hours == 0.0
    assert alone.points[-1].reserved_hours == pytest.approx(4 * alone.points[-1].hours, rel=1e-3)
    assert helped.points[-1].reserved_hours > 6 * helped.points[-1].hours
    times = {path: path.stat().st_mtime_ns for path in args.out.glob("*.json")}
    run_cells(args, 5, cells[1:])
    assert times == {path: path.stat().st_mtime_ns for path in args.out.glob("*.json")}


def test_setup_that_does_not_explore_has_one_clock_for_all_seeds_and_learns_as_reserved_only(tmp_path):
    """What `completed` relies on, with machines lost in mid-run: another seed's own run equals the composed one."""
    counts(tmp_path / "lossy.csv", [(0, 8), (0.01, 2), (0.02, 6), (0.03, 1)], 30)
    small = ["iterations=6", "rollout.prompts=8", "eval.prompts=2", "eval.every=2", "market.boot_s=5"]
    args = wanted(tmp_path / "out", family="words-large", overrides=small)
    args.out.mkdir()
    for seed in (5, 6):
        run_cells(
            args, seed, [(PROFILE, f"{tmp_path}/lossy.csv", "spot-no-explore"), (PROFILE, STEADY, "reserved-only")]
        )
    ran = markets.read_cells(args.out)
    assert max(each.losses for each in ran) > 3
    (own,) = [each for each in ran if (each.setup, each.seed) == ("spot-no-explore", 6)]
    (made,) = [each for each in results.completed([each for each in ran if each is not own]) if each not in ran]
    assert (made.setup, made.seed, made.trace) == ("spot-no-explore", 6, "lossy")
    for there, here in zip(made.points, own.points, strict=True):
        assert (there.iteration, there.score) == (here.iteration, here.score)
        assert (there.hours, there.spot_hours) == pytest.approx((here.hours, here.spot_hours))


# -- figures -----------------------------------------------------------------------------------------------------------


def test_both_sides_cross_with_means_of_two_evaluations():
    lucky = points([0.0, 0.9, 0.3, 0.6, 0.8, 0.8], 1.0, spot=2.0)
    found = crossing(lucky, 0.65)
    # Means of two: 0.45, 0.6, 0.45, 0.7, 0.8 at 0.5, 1.5, 2.5, 3.5, 4.5 h; one evaluation alone has 0.9 at 1 h.
    assert found.came
    assert found.hours == pytest.approx(2.5 + (0.65 - 0.6) / (0.7 - 0.6))
    assert (found.iterations, found.spot_hours) == pytest.approx((10 * found.hours, 2 * found.hours))
    never = crossing(lucky, 0.95)
    assert (never.came, never.hours) == (False, 5.0)


def race(ours: float, seed: int = 0, spot: float = 8.0, trace: str = "a@1", **others: float) -> list[Cell]:
    setups = {"reserved-only": 4.0, **{name.replace("_", "-"): hours for name, hours in others.items()}}
    return [cell(setup, hours, seed=seed) for setup, hours in setups.items()] + [cell(OURS, ours, trace, seed, spot)]


def test_race_is_classed_by_the_slots_held_until_its_score_and_lost_if_later_or_never():
    (full,) = market_races(race(1.0, spot=7.0), OURS)
    assert (full.market, full.slots, full.sooner("reserved-only"), full.is_lost) == (
        MarketClass.FULL, pytest.approx(7.0), pytest.approx(4.0), False,
    )  # fmt: skip
    (later,) = market_races(race(5.0, spot=0.0), OURS)
    assert (later.market, later.is_lost) == (MarketClass.NONE, True)
    cells = race(1.0)
    never = [*cells[:-1], cell(OURS, 1.0, "a@1", spot=8.0, points=points([0.0, 0.1, 0.2, 0.3], 1.0, 8.0))]
    (early,) = market_races(never, OURS)
    assert (early.is_lost, early.sooner("reserved-only")) == (True, 1.0), "an end without the score gains nothing"


def test_modelled_seeds_of_one_real_seed_are_one_repeat():
    def units(numerics: str) -> set[tuple[str, int]]:
        seeds = (FITTED[0], FITTED[0] + len(FITTED), FITTED[1])
        cells = [msgspec.structs.replace(each, numerics=numerics, seed=seed) for seed in seeds for each in race(1.0)]
        return {each.unit for each in market_races(cells, OURS)}

    assert units("model") == {("scenes", FITTED[0]), ("scenes", FITTED[1])}
    assert len(units("real")) == 3


def test_figures_by_class_have_intervals_over_seeds_not_races():
    """Every seed has one gain on all its windows: twenty races are as uncertain as two seeds."""
    cells = []
    for seed, ours in ((0, 1.0), (1, 2.0)):
        for window in range(10):
            cells += race(ours, seed, trace=f"w{window}@0", reserved_explore=3.0)
    cells += race(5.0, 2, spot=0.0, trace="none@0")
    unique = list({(each.setup, each.trace, each.seed): each for each in cells}.values())
    figures = results.figures_of(unique, OURS)
    assert (figures["races"].value, figures["windows"].value, figures["races_full"].value) == (21, 11, 20)
    full = figures["speedup_full"]
    assert full.value == pytest.approx(8**0.5)
    assert (full.low, full.high) == pytest.approx((2.0, 4.0))
    assert figures["speedup_none"].value == pytest.approx(0.8)
    assert (figures["share_lost_full"].value, figures["share_lost_none"].value) == (0.0, 1.0)
    assert figures["worst_vs_reserved_only"].value == pytest.approx(0.8)
    assert "none@0" in figures["worst_vs_reserved_only"].unit
    # 4 reserved slots for 3 h over 4 reserved and 8 spot slots for 1 h or 2 h, at $6.88 and $2.57875.
    assert figures["cost_vs_reserved_explore"].value == pytest.approx(3 / 2**0.5 * 4 * 6.88 / (4 * 6.88 + 8 * 2.57875))
    assert "cost_vs_reserved_explore gcp-a3-h100-single" in figures


def test_stand_ins_are_compared_with_the_baseline_and_priced_against_no_stand_ins():
    helped = cell(f"{OURS}-fallback", 1.0, "none@0", points=points([0.0, 0.4, 0.8, 0.8], 1.0, reserved=12.0))
    figures = results.figures_of([*race(4.0, spot=0.0, trace="none@0"), helped], OURS)
    assert figures["speedup_none"].value == pytest.approx(1.0)
    assert figures["speedup_none_with_fallback"].value == pytest.approx(4.0)
    assert figures["price_of_fallback_none"].value == pytest.approx(12 / 16)


def test_factors_of_steady_capacity_multiply_to_the_whole_gain():
    steady = [cell(OURS, 1.0, seed=3), cell("explore-inline", 1.5, seed=3), cell("reserved-explore", 2.5, seed=3)]
    figures = results.figures_of([*steady, *race(1.0, 3)], OURS)
    names = ("explore_on_the_same_slots", "more_slots", "previews_beside_training", "all")
    same, more, beside, whole = (figures[f"factor_{name}_steady"].value for name in names)
    assert (same, more, beside) == pytest.approx((4.0 / 2.5, 2.5 / 1.5, 1.5))
    assert same * more * beside == pytest.approx(whole)
    assert figures["races"].value == 1, "steady capacity is no market"


def test_fixed_scores_do_not_move_with_the_baselines_end():
    rising = points([0.5, 0.6, 0.7, 0.6], 4.0)
    cells = [
        cell("reserved-only", 4.0, points=rising),
        cell(OURS, 1.0, "a@1", points=points([0.5, 0.6, 0.7, 0.7], 1.0)),
    ]
    figures = results.figures_of(cells, OURS)
    assert figures["speedup_at_0.60 scenes"].value == pytest.approx(4.0)
    assert "0 of 1 did not reach it" in figures["speedup_at_0.60 scenes"].unit


def test_model_error_is_of_the_mean_gain_over_the_same_races():
    model = [*race(1.0, 0), *race(2.0, 1)]
    real = [*race(2.0, 0), *race(1.0, 1), *race(1.0, 7)]
    figures = check_figures(model, real, OURS)
    (gain,) = [figures[f"speedup_{kind}_real"] for kind in MarketClass if f"speedup_{kind}_real" in figures]
    assert gain.value == pytest.approx((2 * 4 * 4) ** (1 / 3)), "of all races with real numbers"
    assert figures["model_error"].value == pytest.approx(0.0), "gains of 4 and 2, and of 2 and 4"
    assert figures["model_error_by_race"].value == pytest.approx((1.0 + 0.5) / 2)
    with pytest.raises(InputError, match="other races"):
        check_figures(model, race(1.0, 7), OURS)


def test_result_has_slot_hours_of_every_evaluation_and_no_folders(tmp_path, capsys):
    folder = tmp_path / "cells"
    folder.mkdir()
    for each in race(1.0, spot=8.0):
        merge.write(folder / f"{each.name}.json", each)
    out = tmp_path / "markets"
    markets.present([folder], [], Namespace(ours=OURS, out=out, json=True, numbers="", curves=None))
    written = json.loads(out.with_suffix(".json").read_text())
    assert written["points"] == "iteration,hours,reserved_slot_hours,spot_slot_hours,score"
    (ours,) = [each for each in written["cells"] if each["setup"] == OURS]
    assert ours["points"][-1] == "30,3.0000,12.0000,24.0000,0.8000"
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]["speedup_full"]["value"] == pytest.approx(4)


def test_nothing_to_compare_is_refused():
    with pytest.raises(InputError, match="nothing can be compared"):
        results.figures_of([cell(OURS, 1.0)], OURS)

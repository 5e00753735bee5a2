"""`benchmarks/pipeline/`: ceilings that nothing passes, rows that never lose, and figures that name their cell."""

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest

from benchmarks.pipeline import run as pipeline
from benchmarks.pipeline.ceilings import ceiling_s, colocated_s, sums_of
from benchmarks.pipeline.cells import (
    COLOCATED,
    Cell,
    Loss,
    Machines,
    Row,
    Setting,
    least_groups,
    offered,
    profile_of,
    quickest,
    sensible_rows,
)
from benchmarks.pipeline.figures import Outcome, columns_of, figures_of, modelled, random_figures_of, ranks_of
from benchmarks.pipeline.random_cells import GRID, drawn
from spotlight.config import load_config
from spotlight.control.profiles import Operation, Profile
from spotlight.core.errors import InputError

SMALL = Cell("h200-qwen-image-512", Machines(4, 8), Setting(4, 10, 2))


@cache
def outcomes() -> list[Outcome]:
    folder = Path(tempfile.mkdtemp())
    try:
        return [done.outcome for done in pipeline.run_missing(pipeline.tasks_of([SMALL], [0]), folder, jobs=1)]
    finally:
        shutil.rmtree(folder)


def outcome(row: str, seconds: float, ceiling_s: float | None = 1.0, cell: Cell = SMALL) -> Outcome:
    return Outcome(cell=cell, row=row, seed=0, rows=4, units=(), seconds=seconds, ceiling_s=ceiling_s, bound_s=1.0)


@pytest.mark.slow
def test_no_row_is_quicker_than_its_ceiling_and_none_loses_against_the_one_before():
    (column,) = columns_of(outcomes())
    assert [row.row for row in column.rows] == list(Row)
    assert all(row.share <= 1.001 for row in column.rows)
    assert min(column.ratios()) >= 0.999
    assert column.best.seconds >= column.best.bound_s


@pytest.mark.parametrize(
    ("cell", "rows"),
    [
        pytest.param(Cell("h200-qwen-image-512", Machines(4, 8), Setting(32, 20, 2)), 8, marks=pytest.mark.slow),
        pytest.param(Cell("h200-qwen-image-512", Machines(4, 8, 0.5), Setting(32, 20, 2)), 16, marks=pytest.mark.slow),
        (Cell("h200-qwen-image-512", Machines(4, 8), Setting(8, 20, 2)), 8),
        (Cell("h200-qwen-image-512", Machines(8, 24), Setting(2, 20, 4)), 1),
        (Cell("h200-qwen-image-512", Machines(8, 24), Setting(8, 40, 4)), 3),
        (Cell("h200-qwen-image-512", Machines(4, 8, 0.5), Setting(8, 20, 2)), 12),
        (Cell("h200-qwen-image-1280", Machines(2, 6, 0.5), Setting(2, 30, 1, 1, Loss.FLOW_GRPO)), 4),
    ],
    ids=lambda each: each.name if isinstance(each, Cell) else f"{each} rows",
)
def test_trainers_that_help_are_never_quicker_than_their_ceiling(cell, rows):
    assert quickest(cell, Row.TAG, rows, 0).seconds >= ceiling_s(cell, Row.TAG)


def test_all_rows_with_batches_over_pairs_choose_from_the_same_parts():
    cell = Cell("h200-qwen-image-512", Machines(4, 8), Setting(32, 40, 4))
    parts = [least_groups(cell, row) for row in Row]
    assert parts[0] == parts[1]
    assert parts[2] == parts[3] == parts[4]
    assert set(parts[1]) < set(parts[2])


@pytest.mark.parametrize("every", [24, pytest.param(1, marks=pytest.mark.slow)])
def test_ceilings_of_rows_with_more_switches_are_never_higher(every):
    for cell in pipeline.cells()[::every]:
        ceilings = [ceiling_s(cell, row) for row in Row]
        assert ceilings == sorted(ceilings, reverse=True)
        if cell.machines.speed == 1.0:
            assert ceilings[-1] >= 0.999 * colocated_s(cell)


def charged(cell: Cell, samples: int) -> float:
    """Seconds to train `samples` samples, without an optimizer step, in full batches over samples."""
    times, batch = profile_of(cell.profile), 8
    batches = samples // cell.machines.trainers // batch * cell.setting.timesteps
    return batches * (times.seconds(Operation.TRAIN_TIMESTEP, batch) + times.seconds(Operation.DENOISE_STEP, batch))


def test_trainers_that_adopt_their_own_weights_may_draw_the_first_group_before_others_hold_them(tmp_path):
    slow = json.loads(Profile.load(SMALL.profile).to_json())
    slow["operations"]["node_fetch"]["series"][0]["points"][0] |= {"p50": 6.0, "p99": 6.0}
    path = tmp_path / "slow.json"
    path.write_text(json.dumps(slow))
    profile, few = profile_of(str(path)), Cell(str(path), Machines(4, 8), Setting(2, 20, 4))
    least_s = 20 * profile.seconds(Operation.DENOISE_STEP, 1) + profile.seconds(Operation.DECODE, 1)
    after_s = sums_of(few, Row.TAG, 4).trained + profile.seconds(Operation.PUBLISH)
    # Four trainers draw the first group, four rows each, before the others hold the weights that they need for it.
    begun_s = ceiling_s(few, Row.TAG) - after_s
    assert profile.seconds(Operation.ADOPT) + least_s <= begun_s < profile.seconds(Operation.NODE_FETCH)


def test_ceiling_of_the_generation_axis_is_the_published_formula_where_units_are_alike():
    cell = Cell("h200-qwen-image-512", Machines(4, 8), Setting(32, 20, 2))
    units = 8
    sums = sums_of(cell, Row.GAP, 8)
    g, t = sums.drawn / units, charged(cell, sums.last)
    joined_s = sums.trained - units * t
    expected = g + (units - 1) * max(g, t) + t + joined_s + sums.handed_out
    last_s = t + joined_s
    assert max(sums.drawn + last_s, sums.first_drawn + sums.trained) + sums.handed_out == pytest.approx(expected)
    assert ceiling_s(cell, Row.GAP) <= expected + 1e-9


def test_slots_draw_even_shares_or_what_was_timed():
    few = Cell(SMALL.profile, Machines(8, 24), Setting(2, 20, 4))
    assert sensible_rows(SMALL, Row.SERIAL) == sensible_rows(SMALL, COLOCATED) == [1, 2, 4, 6, 8]
    assert max(sensible_rows(few, Row.TSP)) == 2
    assert max(sensible_rows(few, Row.TAG)) == 4, "trainers hold new weights first, and draw everything"


def test_rows_halfway_between_timed_ones_are_offered_where_trainers_help_and_take_the_seconds_halfway():
    profile = profile_of(SMALL.profile)
    others = [offered(profile, row) for row in (*Row, COLOCATED) if row != Row.TAG]
    assert all(rows == [1, 2, 4, 8, 16] for rows in others)
    assert offered(profile, Row.TAG) == [1, 2, 3, 4, 6, 8, 12, 16]
    fewer, between, more = (profile.seconds(Operation.DENOISE_STEP, rows) for rows in (8, 12, 16))
    assert between == pytest.approx((fewer + more) / 2)


def test_figures_have_the_worst_row_the_best_cell_and_the_pool():
    better = Cell(SMALL.profile, SMALL.machines, Setting(8, 10, 2))
    figures = figures_of(
        [
            *(outcome(row, seconds) for row, seconds in zip(Row, (8.0, 4.0, 4.4, 4.0, 4.0), strict=True)),
            outcome(COLOCATED, 6.0, None),
            *(outcome(row, seconds, 2.0, better) for row, seconds in zip(Row, (9.0, 6.0, 4.0, 3.0, 2.5), strict=True)),
            outcome(COLOCATED, 5.0, None, better),
        ]
    )
    assert figures["best_speedup_vs_serial"].value == pytest.approx(3.6)
    assert better.name in figures["best_speedup_vs_serial"].unit
    assert figures["worst_row_ratio"].value == pytest.approx(4.0 / 4.4)
    assert figures["worst_share_of_ceiling"].value == pytest.approx(1 / 8)
    assert (figures["speedup_vs_colocated"].low, figures["speedup_vs_colocated"].high) == pytest.approx((1.5, 2.0))


def test_operations_that_were_not_measured_are_named():
    ranks = ranks_of([outcome(Row.SERIAL, 2.0), outcome(COLOCATED, 2.0, None)])
    names = modelled(profile_of(SMALL.profile), ranks)
    assert names == ["optimizer_step of 4 ranks", "optimizer_step of 12 ranks"]


def test_a_longer_random_list_begins_with_the_shorter_and_holds_no_chosen_cell():
    chosen = pipeline.cells()
    few, more = drawn(5, 3, without=chosen), drawn(60, 3, without=chosen)
    assert more[:5] == few
    assert len(set(more)) == 60
    assert not set(more) & set(chosen)
    assert more[:5] != drawn(5, 4, without=chosen)


def test_random_cells_cover_the_grid_and_can_all_be_simulated():
    cells = drawn(200, 0)
    assert {cell.setting.steps for cell in cells} == set(GRID["steps"])
    assert {cell.machines.trainers for cell in cells} == set(GRID["trainers"])
    assert {cell.setting.loss for cell in cells} == set(GRID["loss"])
    for setting in {cell.setting for cell in cells}:
        load_config(setting.loss.recipe, setting.overrides)
    assert all(sensible_rows(cell, row) for cell in cells for row in (*Row, COLOCATED))
    steps = {point.degree for point in profile_of(SMALL.profile).operations[Operation.OPTIMIZER_STEP].points}
    assert {ranks for cell in cells for ranks in (cell.machines.trainers, cell.machines.slots)} <= steps


def test_rows_that_have_a_file_are_not_simulated_again(tmp_path, monkeypatch):
    few = Cell(SMALL.profile, Machines(2, 2), Setting(2, 2, 1))
    tasks = [task for task in pipeline.tasks_of([few], [0]) if task.row in (Row.SERIAL, Row.GAP)]
    both = pipeline.run_missing(tasks, tmp_path, jobs=1)
    tasks[1].path(tmp_path).unlink()
    simulated, simulate = [], pipeline.run_task
    monkeypatch.setattr(pipeline, "run_task", lambda folder, task: (simulated.append(task), simulate(folder, task)))
    again = pipeline.run_missing(tasks, tmp_path, jobs=1)
    assert simulated == tasks[1:]
    assert [done.outcome for done in again] == [done.outcome for done in both]
    assert both[0].outcome.seconds >= both[1].outcome.seconds
    assert all(done.processor_s > 0 for done in both)


def test_rows_of_another_profile_are_refused(tmp_path):
    (task, *_) = pipeline.tasks_of([Cell(SMALL.profile, Machines(2, 2), Setting(2, 2, 1))], [0])
    pipeline.run_missing([task], tmp_path, jobs=1)
    path = task.path(tmp_path)
    path.write_text(path.read_text().replace(Profile.load(SMALL.profile).digest, "0" * 16))
    with pytest.raises(InputError, match="another setting or profile"):
        pipeline.run_missing([task], tmp_path, jobs=1)


def test_random_figures_have_quartiles_and_an_interval_narrower_than_the_extremes():
    cells = [Cell(SMALL.profile, SMALL.machines, Setting(prompts, 10, 2)) for prompts in range(2, 22)]
    found = []
    for number, cell in enumerate(cells):
        found += [outcome(row, (2.0 + number / 10) / (place + 1), 0.1, cell) for place, row in enumerate(Row)]
        found += [outcome(COLOCATED, 1.0 + number, None, cell)]
    figures = random_figures_of(found)
    assert figures["random_median_speedup_vs_serial"].value == pytest.approx(5.0)
    least, most = figures["random_speedup_vs_colocated"].low, figures["random_speedup_vs_colocated"].high
    quartiles, middle = (
        figures["random_speedup_vs_colocated_quartiles"],
        figures["random_speedup_vs_colocated_interval"],
    )
    assert least < quartiles.low < middle.low < middle.value < middle.high < quartiles.high < most
    assert "20 settings" in quartiles.unit

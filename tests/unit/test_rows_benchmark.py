"""The benchmark of rows: its ratio, what counts, and that finished runs are not made again."""

import msgspec
import pytest

from benchmarks.rows import run as benchmark
from spotlight.core.events import IterationDone, Record, WorkerJoined
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import SlotClass


def cell(arm: str, *rollout_s: float, rows: int = 4, seed: int = 0) -> benchmark.Cell:
    return benchmark.Cell(
        recipe="r", arm=arm, seed=seed, rows=(rows,), rollout_s=rollout_s, train_s=(1.0,) * len(rollout_s),
        iteration_s=tuple(seconds + 1 for seconds in rollout_s), first_worker_s=9.0, commit="abc", date="today",
        hardware="a desk",
    )  # fmt: skip


def test_auto_is_compared_with_the_best_fixed_arm():
    cells = [cell("8", 12.0), cell("64", 2.0, 2.2, 3.0), cell("256", 2.0, 9.0, 2.4), cell("auto", 2.2, 3.3, rows=171)]
    found = benchmark.figures(cells)
    ratio = found["rows_auto_vs_best"]
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2.75 / 2.2, 1.0, 1.5))
    assert found["iteration_auto_vs_best"].value == pytest.approx(3.75 / 3.2)
    assert found["auto_rows"].value == 171
    assert found["rollout_s_8"].value == 12.0


def test_ratio_needs_both_sides():
    assert "rows_auto_vs_best" not in benchmark.figures([cell("8", 12.0)])
    assert "rows_auto_vs_best" not in benchmark.figures([cell("auto", 2.0)])


def test_slow_arms_count_fewer_iterations():
    assert [benchmark.counted(arm, 4) for arm in ("1", "8", "16", "32", "256", "auto")] == [1, 1, 2, 4, 4, 4]


def test_cell_leaves_out_the_warm_up():
    joined = WorkerJoined(worker=WorkerId("w"), node=NodeId("n"), slot_class=SlotClass.SPOT, rows=171)
    done = [IterationDone(iteration=n, rollout_s=10.0 - n, train_s=1.0, reward=0.5) for n in range(4)]
    ends = [30.0, 40.0, 49.0, 57.0]
    records = [Record(seq=0, at=20.0, event=joined)]
    records += [Record(seq=n + 1, at=end, event=event) for n, (end, event) in enumerate(zip(ends, done, strict=True))]
    found = benchmark.cell_of("r", "auto", 3, records)
    assert (found.rollout_s, found.iteration_s) == ((8.0, 7.0), (9.0, 8.0))
    assert (found.rows, found.first_worker_s, found.seed) == ((171,), 20.0, 3)


def test_run_that_is_done_is_read_and_not_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "trained", None)
    (tmp_path / "words-nft-auto-0.json").write_bytes(msgspec.json.encode(cell("auto", 2.0)))
    assert benchmark.measured("words-nft", "auto", 0, 4, tmp_path) == cell("auto", 2.0)


def test_arms_differ_in_their_rows_alone(tmp_path):
    fixed, auto = (benchmark.config_of("words-large-nft", arm, 0, 4, tmp_path) for arm in ("64", "auto"))
    assert (fixed.cluster.rows, auto.cluster.rows) == (64, "auto")
    assert fixed.model_copy(update={"cluster": auto.cluster}) == auto
    assert not auto.explores

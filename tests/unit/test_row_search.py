"""`cluster.rows: auto`: the rows that a worker measures for its device, and that the next worker reuses them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny_models import PROMPTS, SIZE, tiny_adapter

from spotlight.compute.meter import BatchReading
from spotlight.compute.models.config import ModelConfig
from spotlight.compute.rollout import row_search
from spotlight.compute.rollout.row_search import RolloutShape, search_rows
from spotlight.compute.train.config import NftConfig, TrainConfig
from spotlight.core.errors import EnvironmentProblem
from spotlight.core.types import NodeId, Prompt
from spotlight.core.work import SlotClass
from spotlight.node import equipment
from spotlight.node.launch import SlotDevice, WorkerLaunch
from spotlight.node.measured import MeasuredFigures
from spotlight.node.worker_settings import RowsSettings, WorkerSettings

MOST = 171
HELD = 1000
"""Bytes allocated before the search."""


@dataclass
class ScriptedDevice:
    """A model whose forwards take the given seconds and memory; it is its own clock and meter."""

    seconds: Callable[[int], float]
    row_bytes: int = 0
    decode_bytes: int = 0
    fits: int = 10**9
    now: float = 0.0
    tried: list[int] = field(default_factory=list)
    guided: bool = False
    _began: float = 0.0
    _peak: int = HELD
    memory: int | None = None

    def __post_init__(self) -> None:
        self.adapter = tiny_adapter()
        self.adapter.velocity = self._velocity
        self.adapter.decode = self._decode

    def _velocity(self, x_BSC, sigma_B, cond, uncond, guidance, size):
        rows = len(x_BSC)
        assert size == SIZE
        assert len(cond.mask) == rows
        self.guided = uncond is not None
        if rows > self.fits:
            raise torch.OutOfMemoryError("out of memory")
        self.tried.append(rows)
        self.now += self.seconds(rows)
        self._peak = max(self._peak, HELD + rows * self.row_bytes)
        return x_BSC

    def _decode(self, x0_BSC, size):
        assert len(x0_BSC) == 1, "pictures are decoded one by one"
        self._peak = max(self._peak, HELD + self.decode_bytes)

    def start(self) -> None:
        self._began, self._peak = self.now, HELD

    def stop(self) -> BatchReading:
        return BatchReading(self.now - self._began, self._peak)

    def release(self) -> None:
        pass

    def rows(self, spare: int | None = None, most: int = MOST, guidance: float = 1.0, **changes: object) -> int:
        rolled = {"size": SIZE, "guidance": guidance, "window": 0, "prompt": PROMPTS[0], "most": most} | changes
        return search_rows(self.adapter, RolloutShape(**rolled), spare, self, clock=lambda: self.now)


def latent_bytes() -> int:
    tokens, channels = tiny_adapter().latent_shape(SIZE)
    return 4 * tokens * channels


@pytest.mark.parametrize("most", [1, 43, 171])
def test_launch_bound_device_takes_a_slots_share_of_the_iteration(most):
    assert ScriptedDevice(lambda rows: 1e-4).rows(most=most) == most


@pytest.mark.parametrize(("full", "expected"), [(1, 4), (8, 8), (64, 64)])
def test_device_that_is_bound_by_arithmetic_takes_no_more_rows_than_fill_it(full, expected):
    assert ScriptedDevice(lambda rows: 1e-4 * max(rows, full)).rows() == expected


def test_size_that_was_timed_while_others_computed_does_not_end_the_search():
    assert ScriptedDevice(lambda rows: 3e-4 if rows == 4 else 1e-4).rows() == MOST


def test_rows_fit_what_is_spare_with_samples_in_flight_and_a_picture_beside():
    device = ScriptedDevice(lambda rows: 1e-4, row_bytes=100)
    row = 100 + 3 * latent_bytes()
    assert device.rows(spare=16 * row) == 16
    assert device.rows(spare=16 * row - 1) == 8
    # Latents and means of a window stay on the device until a sample is finished.
    wide = 100 + 9 * latent_bytes()
    assert device.rows(spare=16 * wide, window=3) == 16
    assert device.rows(spare=16 * wide - 1, window=3) == 8
    decoding = ScriptedDevice(lambda rows: 1e-4, row_bytes=100, decode_bytes=5000)
    assert decoding.rows(spare=16 * row) == 8
    assert decoding.rows(spare=16 * row + 5000) == 16


def test_forward_that_runs_out_of_memory_ends_the_search_at_the_size_before():
    assert ScriptedDevice(lambda rows: 1e-4, fits=100).rows() == 64


def test_device_without_room_for_one_row_is_refused():
    with pytest.raises(EnvironmentProblem, match="too little free memory for a forward of 1 row at 16x24"):
        ScriptedDevice(lambda rows: 1e-4, fits=0).rows()


def test_slow_model_is_measured_for_no_longer_than_the_limit(monkeypatch):
    monkeypatch.setitem(row_search.SEARCH_S, "cpu", 10.0)
    slow = ScriptedDevice(lambda rows: 0.5)
    chosen = slow.rows()
    assert chosen == max(slow.tried) < MOST
    assert slow.now < 12.0
    monkeypatch.setitem(row_search.SEARCH_S, "cpu", 100.0)
    assert ScriptedDevice(lambda rows: 0.5).rows() == MOST


def test_compilation_of_each_new_size_does_not_end_the_search():
    """A size takes a minute the first time and a tenth of a millisecond after that."""
    device = ScriptedDevice(lambda rows: 60.0 if rows not in device.tried[:-1] else 1e-4)
    assert device.rows() == MOST


def test_guidance_is_measured_where_the_recipe_guides():
    plain, guided = ScriptedDevice(lambda rows: 1e-4), ScriptedDevice(lambda rows: 1e-4)
    plain.rows()
    guided.rows(guidance=2.0)
    assert (plain.guided, guided.guided) == (False, True)


def test_prompt_that_the_model_cannot_take_does_not_fail_the_search():
    assert ScriptedDevice(lambda rows: 1e-4).rows(prompt=Prompt(text="no word in quotes")) == MOST


def launch(shared: Path, rows: int | None = None, trains: bool = False, processes: int = 1) -> WorkerLaunch:
    return WorkerLaunch(
        node=NodeId("spot-1.1"), slot_class=SlotClass.SPOT, rows=rows, trains=trains, threads=1, heartbeat_s=1.0,
        store=str(shared), settings=b"", device=SlotDevice("cpu", processes), shared=str(shared),
    )  # fmt: skip


ROWS = RowsSettings(most=MOST, height=SIZE.height, width=SIZE.width, guidance=1.0, window=0, prompt=PROMPTS[0].text)


def test_worker_that_comes_back_reuses_the_measured_rows(tmp_path, monkeypatch):
    found = iter([24, 12, 6])
    monkeypatch.setattr(equipment, "search_rows", lambda *args: next(found))
    adapter = tiny_adapter()
    assert equipment.rows_of(launch(tmp_path), ROWS, adapter) == 24
    assert equipment.rows_of(launch(tmp_path), ROWS, adapter) == 24
    # A slot that also trains, or that shares its device, has less memory.
    assert equipment.rows_of(launch(tmp_path, trains=True), ROWS, adapter) == 12
    assert equipment.rows_of(launch(tmp_path, processes=3), ROWS, adapter) == 6
    assert equipment.rows_of(launch(tmp_path, trains=True), ROWS, adapter) == 12


def test_each_device_is_measured_separately_since_another_program_may_use_one_of_them(tmp_path):
    assert MeasuredFigures(tmp_path, "rows", "cuda:0", int).of("H200, rolls out", lambda: 128) == 128
    assert MeasuredFigures(tmp_path, "rows", "cuda:1", int).of("H200, rolls out", lambda: 16) == 16
    assert MeasuredFigures(tmp_path, "rows", "cuda:0", int).of("H200, rolls out", lambda: 1) == 128


def test_measurement_that_fails_leaves_nothing_and_is_made_by_the_next(tmp_path):
    measured = MeasuredFigures(tmp_path, "rows", "cuda:0", int)
    with pytest.raises(EnvironmentProblem):
        measured.of("gpu", lambda: ScriptedDevice(lambda rows: 1e-4, fits=0).rows())
    assert measured.of("gpu", lambda: 8) == 8


def test_worker_with_fixed_rows_measures_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(equipment, "search_rows", None)
    assert equipment.rows_of(launch(tmp_path, rows=16), ROWS, tiny_adapter()) == 16


def test_real_worker_is_equipped_with_the_rows_that_it_measured(tmp_path, capsys):
    settings = WorkerSettings(
        run_seed=0, run_folder=str(tmp_path), deterministic=False, model=ModelConfig(name="words"),
        train=TrainConfig(), algorithm=NftConfig(),
        rows=RowsSettings(most=6, height=32, width=96, guidance=1.0, window=0, prompt='the word "river"'),
    )  # fmt: skip
    made = equipment.equip(launch(tmp_path), settings, lambda message: None)
    assert 1 <= made.engine.rows <= 6
    assert (
        MeasuredFigures(tmp_path, "rows", "cpu", int).of("cpu, shared by 1, rolls out", lambda: -1) == made.engine.rows
    )
    assert f"cpu (cpu), {made.engine.rows} rows" in capsys.readouterr().out


FREE, CACHED, TRAINED = 80_000, 10_000, 1_000


@pytest.mark.parametrize(
    ("trains", "processes", "expected"),
    [
        (False, 1, 0.9 * 90_000 - 3 * TRAINED),
        (False, 3, 0.3 * 90_000 - 3 * TRAINED),
        (True, 1, 0.5 * (0.9 * 90_000 - 6 * TRAINED)),
        (True, 3, 0.5 * (0.3 * 90_000 - 6 * TRAINED)),
    ],
)
def test_spare_memory_is_shared_and_leaves_room_for_what_comes_later(
    tmp_path, monkeypatch, trains, processes, expected
):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (FREE, 140_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: CACHED + 500)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 500)
    parameters = [SimpleNamespace(numel=lambda: TRAINED // 4, element_size=lambda: 4, requires_grad=True)]
    adapter = SimpleNamespace(
        device=torch.device("cuda"), transformer=SimpleNamespace(parameters=lambda: iter(parameters))
    )
    assert equipment.spare_bytes(adapter, trains, processes) == int(expected)

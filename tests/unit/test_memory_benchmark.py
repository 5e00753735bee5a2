"""The benchmark of the memory plan on a tiny model: its figures, and the bytes beside them."""

import json
import runpy
import sys

import pytest

from benchmarks.memory import calibrate
from spotlight.compute.models.family_registry import FAMILIES


@pytest.mark.slow
def test_predictions_for_the_tiny_model_are_near_the_bytes_of_its_tensors(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["memory", "--tiny", "--json", "--out", str(tmp_path / "memory")])
    runpy.run_module("benchmarks.memory", run_name="__main__")
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    assert {*figures} == {
        "memory_train_512_b4", "memory_train_512_b8", "memory_train_512_b4_kept", "memory_rollout_1280"
    }  # fmt: skip
    for name, figure in figures.items():
        # A rollout's plan adds its decoding, which the CPU runs after the steps.
        assert figure["value"] == pytest.approx(1.0, abs=0.25 if "rollout" in name else 0.1)
    cases = json.loads((tmp_path / "memory.json").read_text())["cases"]
    for name, case in cases.items():
        assert case["predicted"] / case["measured"] == pytest.approx(figures[name]["value"])
        assert case["lines"]["base weights"] > 0


@pytest.mark.slow
def test_calibration_runs_all_its_cases_with_a_tiny_model():
    found = calibrate.calibrate(FAMILIES["sd3"], tiny=True, left_s=lambda: 1000.0)
    assert {*found["cases"]} == {str(case) for case in calibrate.OTHERS}
    assert found["sizes"]["adapters"] == 4 * found["sizes"]["adapter_parameters"] > 0


def test_calibration_that_runs_out_of_time_starts_no_further_case():
    assert calibrate.calibrate(FAMILIES["sd3"], tiny=True, left_s=lambda: 5.0) == {}

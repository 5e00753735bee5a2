"""Products of matrices on a CPU: a row gives the same bits whatever the number of rows beside it."""

import os
import subprocess
import sys

import pytest

from spotlight.core.processor import PROCESSORS, STRICT, set_strict_rounding

NAME, VALUE = STRICT
OF_INTEL = "processor\t: 0\nvendor_id\t: GenuineIntel\n"
OF_AMD = "processor\t: 0\nvendor_id\t: AuthenticAMD\n"
IS_INTEL = PROCESSORS.exists() and "GenuineIntel" in PROCESSORS.read_text()
PRODUCTS = """
import spotlight, torch
torch.manual_seed(0)
layer, rows = torch.nn.Linear(512, 512), torch.randn(96, 512)
whole = layer(rows)
print(sum(not torch.equal(layer(rows[:count]), whole[:count]) for count in range(1, 96)))
"""


@pytest.mark.parametrize(("made", "found"), [(OF_INTEL, VALUE), (OF_AMD, None), (None, None)])
def test_mkl_is_strict_on_processors_of_intel_alone(made, found, tmp_path, monkeypatch):
    monkeypatch.setenv(NAME, "set and deleted, so that it is as before in the end")
    monkeypatch.delenv(NAME)
    processors = tmp_path / "cpuinfo"
    if made is not None:
        processors.write_text(made)
    set_strict_rounding(processors)
    assert os.environ.get(NAME) == found


def test_variable_set_by_the_user_stays(tmp_path, monkeypatch):
    monkeypatch.setenv(NAME, "AVX2")
    processors = tmp_path / "cpuinfo"
    processors.write_text(OF_INTEL)
    set_strict_rounding(processors)
    assert os.environ[NAME] == "AVX2"


@pytest.mark.skipif(not IS_INTEL, reason="MKL chooses kernels that round differently on Intel's processors")
def test_a_row_does_not_depend_on_the_rows_beside_it():
    plain = {name: value for name, value in os.environ.items() if name != NAME}
    done = subprocess.run([sys.executable, "-c", PRODUCTS], env=plain, capture_output=True, text=True, check=True)
    assert int(done.stdout) == 0

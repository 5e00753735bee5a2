"""The notebook of the documentation runs: its code cells in order, in one namespace, inside an event loop as Jupyter's.

Cells tagged `live`, which start a real run, are executed by the slow test.
"""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tour.ipynb"


def cells() -> list[dict[str, Any]]:
    notebook = json.loads(NOTEBOOK.read_text())
    assert notebook["nbformat"] == 4
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def executed(wanted: list[dict[str, Any]]) -> dict[str, Any]:
    names: dict[str, Any] = {}

    async def kernel() -> None:
        for cell in wanted:
            exec(compile("".join(cell["source"]), f"{NOTEBOOK.name}, {cell['id']}", "exec"), names)

    asyncio.run(kernel())
    return names


def test_the_notebook_plans_simulates_and_compares(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = executed([cell for cell in cells() if "live" not in cell["metadata"].get("tags", [])])
    shown = capsys.readouterr().out
    assert "'train.learning_rate', which does not exist" in shown
    assert "2 spot nodes: " in shown
    assert "after 3 iterations, " in shown
    assert "spot-no-explore: " in shown
    assert names["status"].state == "finished"


def test_the_notebook_is_stored_without_outputs():
    assert [cell["id"] for cell in cells() if cell["outputs"] or cell["execution_count"]] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_notebook_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = executed(cells())
    assert names["run"].status().state == "finished"
    assert re.search(r'the word "\w+" version 0, seed \d+: \d\.\d\d \d{4}', capsys.readouterr().out)
    assert (names["run"].path / "report.html").is_file()

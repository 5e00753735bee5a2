"""What the documents point to is there: files, results, benchmarks and the tests that hold a promise."""

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "benchmarks/README.md", "docs/decisions.md", "docs/data_and_rewards.md")
IN_CODE = re.compile(r"(?<![\w/])((?:benchmarks|tests|docs)/[\w./-]+\.(?:py|json|png|md)|benchmarks/\w+/)(?!\w)")
COMMAND = re.compile(r"python -m benchmarks\.([a-z_]+)")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)\)")


def named_in(document: str) -> set[Path]:
    """Files that it names from the root, and those that it links to from where it is."""
    path = ROOT / document
    text = path.read_text()
    run = {ROOT / "benchmarks" / name / "__main__.py" for name in COMMAND.findall(text)}
    return run | {ROOT / name for name in IN_CODE.findall(text)} | {path.parent / link for link in LINK.findall(text)}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_a_document_names_exists(document):
    absent = sorted(str(path.relative_to(ROOT)) for path in named_in(document) if not path.exists())
    assert not absent, f"{document} names files that are not there: {', '.join(absent)}"


def test_the_readme_names_the_headline_its_picture_and_the_promises_tests():
    """So that the search above cannot pass by finding nothing."""
    named = {str(path.relative_to(ROOT)) for path in named_in("README.md")}
    assert {"benchmarks/headline", "docs/results/headline.json", "tests/unit/test_noise.py"} <= named
    assert any(name.endswith(".png") for name in named)
    assert len(named) > 30


@pytest.mark.parametrize("result", sorted(path.name for path in (ROOT / "docs/results").glob("*.json")))
def test_every_result_is_told_of(result):
    told = "".join((ROOT / document).read_text() for document in DOCUMENTS)
    assert f"docs/results/{result}" in told or f"results/{result}" in told, f"nobody says what {result} shows"


BENCHMARKS = sorted(path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py"))


def test_the_table_of_benchmarks_has_a_row_for_each_folder_and_no_other():
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "benchmarks/README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == BENCHMARKS


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_says_how_it_is_run(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert stopped.value.code == 0
    described = capsys.readouterr().out
    assert described.startswith(f"usage: python -m benchmarks.{name} ")
    assert f"python -m benchmarks.{name}" in described.partition("\n\n")[2]
    assert "--json" in described

"""Documents point to existing things: files, results, benchmarks and the tests that hold a promise."""

import ast
import re
from pathlib import Path

import pytest
from document_commands import help_of

from spotlight.compute.models.family_registry import FAMILIES

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "benchmarks/README.md",
        *ROOT.glob("docs/**/*.md"),
    )
)
IN_CODE = re.compile(
    r"(?<![\w/])((?:benchmarks|tests|docs|launch)/[\w./-]+\.(?:py|json|png|md|yaml|sbatch)|benchmarks/\w+/)(?!\w)"
)
COMMAND = re.compile(r"python -m benchmarks\.([a-z0-9_]+)")
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


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_document_speaks_of_us(document):
    said = re.findall(r"\b(?:[Ww]e|[Oo]urs?|us)\b(?!-)", (ROOT / document).read_text())
    assert not said, f"{document} says {', '.join(said)}: name the program, or what was measured"


def test_every_file_that_the_code_names_exists():
    sources = [*ROOT.glob("src/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]
    named = {(source, name) for source in sources for name in IN_CODE.findall(source.read_text())}
    assert len(named) > 200
    absent = sorted(f"{source.relative_to(ROOT)}: {name}" for source, name in named if not (ROOT / name).exists())
    assert not absent


def test_the_pages_name_the_headline_its_picture_and_the_promises_tests():
    """So that the search above cannot pass by finding nothing."""
    readme, headline, promises = (
        {str(path.resolve().relative_to(ROOT)) for path in named_in(page)}
        for page in ("README.md", "docs/results/time_and_money.md", "docs/promises.md")
    )
    assert {"docs/results/README.md", "docs/results/demo.png", "docs/decisions.md"} <= readme
    assert {"docs/results/headline.json", "docs/results/headline-scenes-512-calm.png"} <= headline
    assert {"tests/unit/test_noise.py", "tests/storm/test_simulate.py"} <= promises


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name != "README.md"])
def test_every_page_is_linked_from_another(document):
    linked = {path.resolve() for other in DOCUMENTS if other != document for path in named_in(other)}
    assert ROOT / document in linked


def test_the_readme_stays_a_screen_and_a_half():
    assert len(re.sub(r"<!--.*?-->", "", (ROOT / "README.md").read_text()).split()) <= 960


@pytest.mark.parametrize("result", sorted(path.name for path in (ROOT / "docs/results").glob("*.json")))
def test_every_result_is_linked_from_a_page(result):
    linked = {path.resolve() for document in DOCUMENTS for path in named_in(document)}
    assert ROOT / "docs/results" / result in linked, f"no page says what {result} shows"


TECHNIQUE = re.compile(r"^\| ([\w -]+) \| (?:Spotlight|DigenRL) \| \[.*?\]\((.*?)\) \| \[.*?\]\((.*?)\)", re.MULTILINE)
TECHNIQUES = TECHNIQUE.findall((ROOT / "docs/map.md").read_text())


def test_the_map_has_the_techniques_of_both_abstracts():
    assert {technique for technique, _, _ in TECHNIQUES} == {
        *("Seed exploration", "Bandit planner", "Regroup", "Weight copy between neighbours"),
        *("Pull scheduler with commits", "GAP", "TSP", "TAG", "One-step asynchrony"),
    }


@pytest.mark.parametrize(("technique", "source", "tests"), TECHNIQUES)
def test_the_file_of_a_technique_begins_with_its_name_and_its_tests_exist(technique, source, tests):
    described = ast.get_docstring(ast.parse((ROOT / "docs" / source).read_text())) or ""
    assert described.startswith(technique)
    assert "def test_" in (ROOT / "docs" / tests).read_text()


BENCHMARKS = sorted(path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py"))


def test_the_table_of_benchmarks_has_a_row_for_each_folder_and_no_other():
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "benchmarks/README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == BENCHMARKS


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_documents_its_command(name):
    described = help_of(name)
    assert described.startswith(f"usage: python -m benchmarks.{name} ")
    assert f"python -m benchmarks.{name}" in described.partition("\n\n")[2]
    assert "--json" in described


def test_line_counts_of_the_adapters_are_those_of_their_files():
    rows = re.findall(
        r"^\| `(compute/models/\w+\.py)` \| (\d+) \|$", (ROOT / "docs/models.md").read_text(), re.MULTILINE
    )
    assert len(rows) == len(FAMILIES)
    for name, lines in rows:
        assert len((ROOT / "src/spotlight" / name).read_text().splitlines()) == int(lines), name

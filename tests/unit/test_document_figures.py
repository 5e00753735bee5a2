"""Every figure that README and docs quote equals its result file, and the checker finds wrong ones."""

import json
import re

import document_figures
import pytest
from document_figures import ROOT, mistakes_in

LENIENT = ("docs/decisions/", "docs/map.md", "docs/settings.md", "benchmarks/README.md", "CONTRIBUTING.md")
"""Only figures with a source are checked: decisions have measurements without a result file, settings have defaults."""
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "benchmarks/README.md",
        *ROOT.glob("docs/**/*.md"),
    )
)
CONSTANTS = {
    # Names of models, and sizes that follow from their widths.
    "docs/models.md": {"3.5", "2.7", "1.7", "4.2", "2.2", "20.4"},
    # Versions, sizes, repeats of the demo, a score fixed beforehand and the share of an interval.
    "README.md": {"3.11", "3.13", "4.3", "8.2", "62", "71", "0.96", "95"},
    # Versions of TLS and Ray, and an address.
    "docs/cluster.md": {"1.3", "127.0", "2.58", "2.62"},
    "docs/operations.md": {"1.3"},
    # The size of adapters, and a goal.
    "docs/results/costs.md": {"1.7", "3"},
    "docs/quickstart.md": {"3.11", "3.13", "4.3"},
    # The share of an interval.
    "docs/trackers.md": {"95"},
    "docs/results/learning.md": {"8.2", "0.96", "62", "71"},
    "docs/results/overlap.md": {"2.1", "95"},
    # Scores fixed beforehand.
    "docs/results/exploration.md": {"95", "0.90", "0.96", "0.98", "0.55", "0.60", "0.65", "1.2"},
    "docs/results/markets.md": {
        *("95", "0.1", "0.55", "0.60", "0.65", "0.90", "0.96", "4.5", "3.5", "0.97", "3", "1.4"),
        # Earlier seeds, whose curves the file does not have, and an earlier result.
        *("2.17", "1.95", "1.385"),
    },
    "docs/results/time_and_money.md": {"25", "50", "75", "4", "1.4", "6.4", "0.683", "0.674", "0.99", "1.2"},
}
"""Numbers that are no results: conditions, goals, sizes, and measurements that no file has, as the page states."""


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_figure_that_a_document_quotes_equals_its_result_file(document):
    text = (ROOT / document).read_text()
    mistakes = mistakes_in(document, text, CONSTANTS.get(document, set()), strict=not document.startswith(LENIENT))
    assert not mistakes, "\n".join(mistakes)


def test_a_changed_number_in_the_headline_of_the_readme_is_found():
    readme = (ROOT / "README.md").read_text()
    number = re.search(r"\*\*(\d+\.\d+)\*\* \([^)]*\)<!-- markets: speedup_full_real -->", readme)
    assert number is not None
    wrong = f"{float(number[1]) + 0.01:.2f}"
    changed = readme[: number.start(1)] + wrong + readme[number.end(1) :]
    (mistake,) = mistakes_in("README.md", changed, CONSTANTS["README.md"])
    assert mistake.startswith(f"README.md: quotes {wrong} as the value of markets: speedup_full_real, which is ")
    assert f"which is {number[1]} (" in mistake


@pytest.fixture
def result(tmp_path, monkeypatch):
    """A result file `made.json` in place of the kept ones."""
    figures = {
        "fast_ratio": {"value": 2.4434, "low": 1.8318, "high": 2.8005},
        "slow_ratio": {"value": 0.5, "low": 0.4, "high": 0.6},
        "share": {"value": 0.3594, "low": 0.3594, "high": 0.3594},
        "stop_s": {"value": 0.07278, "low": 0.0584, "high": 0.1537},
        "cycles": {"value": 49098.0, "low": 48296.0, "high": 53568.0},
    }
    (tmp_path / "made.json").write_text(json.dumps({"figures": figures}))
    monkeypatch.setattr(document_figures, "RESULTS", tmp_path)


@pytest.mark.usefixtures("result")
@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("2.45<!-- made: fast_ratio -->", "quotes 2.45 as the value of made: fast_ratio, which is 2.44 (2.4434)"),
        ("2.44 (1.84, 2.80)<!-- made: fast_ratio -->", "quotes 1.84 as the low of made: fast_ratio, which is 1.83"),
        ("2.44 (1.83, 2.81)<!-- made: fast_ratio -->", "quotes 2.81 as the high of made: fast_ratio, which is 2.80"),
        ("2.81<!-- made: fast_ratio/high -->", "quotes 2.81 as the value of made: fast_ratio/high, which is 2.80"),
        ("37 %<!-- made: share -->", "quotes 37 as the value of made: share, which is 36"),
        ("72 ms<!-- made: stop_s -->", "quotes 72 as the value of made: stop_s, which is 73"),
        ("48,000<!-- made: cycles -->", "quotes 48,000 as the value of made: cycles, which is 49,000"),
        ("1.5<!-- made: *_ratio -->", "quotes 1.5 as the value of made: *_ratio, which is 1.1"),
        ("2.44<!-- made: no_such_figure -->", "made.json has no figure 'no_such_figure'"),
        ("2.44<!-- no_such_file: figure -->", "neither docs/results nor the shipped profiles have no_such_file.json"),
        ("some words<!-- made: fast_ratio -->", "the source 'made: fast_ratio' does not follow a number"),
        ("It is 2.44 times as fast.", "the number 2.44 without a source"),
        ("It takes 40 % less.", "the number 40 without a source"),
        ("| a | b |\n|---|---|\n| row | 2.44 |", "the number 2.44 without a source"),
        ("| a | b<!-- made: {} --> |\n|---|---|\n| row | 2.44 |", "'2.44' of the row 'row' is no number with a source"),
        (
            "| a | b<!-- made: {}_ratio --> |\n|---|---|\n| row<!-- fast --> | 2.45 |",
            "quotes 2.45 as the value of made: fast_ratio, which is 2.44",
        ),
    ],
)
def test_a_figure_that_is_wrong_or_has_no_source_is_found(text, mistake):
    mistakes = mistakes_in("page.md", text)
    assert any(mistake in each for each in mistakes), mistakes
    assert all(each.startswith("page.md: ") for each in mistakes)


@pytest.mark.usefixtures("result")
@pytest.mark.parametrize(
    "text",
    [
        "2.44 (1.83, 2.80)<!-- made: fast_ratio -->, and 2.44 once more",
        "**2.4** (1.8 to 2.8)<!-- made: fast_ratio -->",
        "36 %<!-- made: share --> of them, **73 ms** (58, 154)<!-- made: stop_s -->, 49,000<!-- made: cycles -->",
        "1.1 (0.4, 2.8)<!-- made: fast_ratio & slow_ratio -->",
        "| a | b<!-- made: {}_ratio --> |\n|---|---|\n| row<!-- fast --> | **2.44** (1.83, 2.80) |",
        "`2.44` and [a link](v2.44.md) and\n\n    2.44 times\n",
    ],
)
def test_a_figure_that_is_right_is_accepted(text):
    assert mistakes_in("page.md", text) == []

"""The site: diagrams come from the code, links out of docs/ become pages, and it requests nothing from another host."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import site_hooks
from state_diagrams import ROOT, SOURCE, machines

from spotlight.surface.metrics import METRICS


def rendered(place: str, markdown: str) -> str:
    """A page's text as the build receives it."""
    return site_hooks.on_page_markdown(markdown, SimpleNamespace(file=SimpleNamespace(src_uri=place)), None, None)


def test_the_page_of_states_has_every_machine_with_its_diagram_and_states():
    found, page = machines(), site_hooks.states_page()
    names = {machine.enum for machine in found}
    assert {"SampleState", "GangState", "CrewState", "SlotState", "LinkState", "NoticeState", "Standing"} <= names
    for machine in found:
        section = page.partition(f"## {machine.file.relative_to(SOURCE)}\n")[2].partition("\n## ")[0]
        assert f"`{machine.enum}`" in section
        assert [name for name, _ in machine.states if name not in section] == []


def test_a_line_for_a_diagram_becomes_the_diagram_of_the_docstring():
    text = rendered("how_it_works.md", "Before.\n\n[diagram](../src/spotlight/control/ledger/states.py)\n\nAfter.")
    assert "QUEUED ---------> LEASED ---------> ACCEPTED" in text
    assert "[diagram]" not in text


def test_lines_for_a_listing_and_for_the_metrics_become_what_the_code_has():
    listed = rendered("operations.md", "[listing](../src/spotlight/folder.py)")
    assert "/checkpoints/STEP/" in listed
    assert "Section `output`" not in listed
    table = rendered("metrics.md", "[metrics](../src/spotlight/surface/metrics.py)")
    assert [name for name in METRICS if f"| `{name}` |" not in table] == []


def test_every_metric_that_the_page_of_metrics_names_exists():
    named = set(re.findall(r"`(spotlight_\w+)`", (ROOT / "docs/metrics.md").read_text()))
    assert len(named) > 5
    assert named <= set(METRICS)


def test_a_diagram_that_a_file_does_not_have_fails_the_build():
    with pytest.raises(site_hooks.MissingDiagram, match=r"src/spotlight/budget\.py has no diagram"):
        rendered("how_it_works.md", "[diagram](../src/spotlight/budget.py)")


def test_a_link_out_of_docs_leads_to_a_page_of_the_site():
    assert rendered("map.md", "[x](../src/spotlight/loop.py)") == "[x](repository/src/spotlight/loop.py.md)"
    assert (
        rendered("results/costs.md", "[x](../../benchmarks/README.md#a)") == "[x](../repository/benchmarks/README.md#a)"
    )
    assert rendered("repository/CONTRIBUTING.md", "[x](docs/map.md)") == "[x](../map.md)"
    assert ROOT / "src/spotlight/loop.py" in site_hooks.linked_outside()


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_its_pages_request_nothing_from_another_host(tmp_path):
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    assert [request for page in pages for request in requests_of(page)] == []
    assert "QUEUED ---------&gt; LEASED" in (site / "how_it_works.html").read_text()


def requests_of(page: Path) -> list[str]:
    """Addresses of other hosts that a browser fetches to show a page; links that a person may follow are none."""
    text = page.read_text()
    fetched = re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?((?:https?:)?//[^\"'\s>]+)", text)
    return fetched + re.findall(r"<link\b[^>]*\bhref=[\"']?((?:https?:)?//[^\"'\s>]+)", text)

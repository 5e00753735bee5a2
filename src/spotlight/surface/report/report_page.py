"""The report: all panels of a run in one self-contained file.

Invariant: every string of a run is escaped, and the page has no address that a browser would load
(tests/unit/test_report.py). Its content security policy forbids scripts and requests, whatever the page has.
"""

import base64
import hashlib
import secrets
from functools import cache
from pathlib import Path

from markupsafe import Markup

from spotlight.control.market.prices import PriceTable
from spotlight.core.run_files import word_of
from spotlight.surface.html.fragments import report_fragments
from spotlight.surface.html.templating import STATIC, rendered
from spotlight.surface.liveness import standing_of
from spotlight.surface.media import PictureFolder
from spotlight.surface.panels.ledger_panel import AuditVerdict
from spotlight.surface.panels.run_panels import RunSetting, panels_of
from spotlight.surface.projections import RunView

ORDER = (
    "summary", "problems", "scores", "gallery", "rewards", "timeline", "crews", "slot_time", "previews", "training",
    "stale", "cost", "ledger", "feed", "iterations",
)  # fmt: skip
"""Panels in the order of the report."""


def write_report(
    view: RunView,
    run_folder: Path,
    path: Path,
    *,
    prices: PriceTable | None = None,
    setting: RunSetting | None = None,
    verdict: AuditVerdict | None = None,
) -> None:
    """Write the page; `verdict` is the outcome of an audit, if any."""
    page = render_report(view, run_folder, prices or PriceTable.load(), setting, verdict)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A new file ("x"), because a write to a fixed name would follow a link.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    with partial.open("x", encoding="utf-8") as file:
        file.write(page)
    partial.replace(path)


def render_report(
    view: RunView,
    run_folder: Path,
    prices: PriceTable,
    setting: RunSetting | None = None,
    verdict: AuditVerdict | None = None,
) -> str:
    pictures = PictureFolder(run_folder)
    name = run_folder.resolve().name
    panels = panels_of(
        view,
        prices,
        setting or RunSetting(word=word_of(run_folder)),
        standing_of(view, run_folder),
        verdict,
        is_there=pictures.is_embeddable,
    )
    style, digest = inline_style()
    return rendered(
        "report.html",
        name=name,
        style=style,
        style_hash=digest,
        order=ORDER,
        fragments=report_fragments(panels, view, pictures.embedded),
        facts=view.facts,
        records=view.seq + 1,
    )


@cache
def inline_style() -> tuple[Markup, str]:
    """The style sheet, which is a file of the package, and its hash for the content security policy."""
    text = (STATIC / "panels.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(text), f"sha256-{digest}"

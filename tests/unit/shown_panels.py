"""One panel of a view, as the report shows it."""

import re

from spotlight.control.market.prices import PriceTable
from spotlight.surface.html.fragments import report_fragments
from spotlight.surface.panels.run_panels import RunSetting, panels_of
from spotlight.surface.projections import RunView

PRICES = PriceTable.load()


def shown(view: RunView, panel: str, setting: RunSetting | None = None) -> str:
    """HTML of the panel; empty if it is hidden, because it has nothing to show."""
    panels = panels_of(view, PRICES, setting)
    html = str(report_fragments(panels, view, media=lambda path: path)[panel])
    return "" if " hidden>" in html else html


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def rows_of(html: str) -> dict[str, list[str]]:
    """Cells of all table rows, by their heads."""
    found = re.findall(r"<tr[^>]*><th scope=\"row\">(.*?)</th>(.*?)</tr>", html)
    return {head: re.findall(r"<td>(.*?)</td>", cells) for head, cells in found if "<td>" in cells}

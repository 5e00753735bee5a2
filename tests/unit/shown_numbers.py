"""Numbers as a surface shows them: the words of each panel of page and report."""

import re
from html.parser import HTMLParser

DROPPED = {"svg", "style", "script", "time", "button", "output", "progress", "canvas", "video"}
"""Elements whose text is drawn, changes all the time, or is no number of the run."""
VOID = {"img", "input", "meta", "link", "br", "hr", "path", "line", "rect", "circle", "polyline", "polygon"}


class PanelWords(HTMLParser):
    """Text by panel, without drawings and without what only one of page and report has."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: dict[str, str] = {}
        self._panel: str | None = None
        self._depth = 0
        self._dropped = 0
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag in VOID:
            return
        names = dict(attrs)
        if self._panel is None and "data-panel" in names:
            self._panel, self._depth = names["data-panel"], 0
            self.words[self._panel] = ""
        if self._panel is not None:
            self._depth += 1
        if self._dropped or tag in DROPPED or "data-timeline" in names or names.get("class") in ("legend", "versions"):
            self._dropped += 1

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        self._dropped = max(0, self._dropped - 1)
        if self._panel is not None:
            self._depth -= 1
            if not self._depth:
                self._panel = None

    def handle_data(self, data):
        if self._panel is not None and not self._dropped:
            self.words[self._panel] += f" {data}"


def words_of(html: str) -> dict[str, str]:
    """Text by panel."""
    return {panel: " ".join(text.split()) for panel, text in PanelWords(html).words.items()}


def numbers_in(text: str) -> list[str]:
    return re.findall(r"\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?", text)

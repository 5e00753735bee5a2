"""The Jinja2 environment: autoescape everywhere, and no text of a run reaches a page with control characters.

Invariant: no template marks text of a run as safe (tests/unit/test_hostile_text.py).
"""

import datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from spotlight.surface import formats
from spotlight.surface.activity_names import LABELS, SPANNED
from spotlight.surface.html.chart_drawing import drawn_chart, shown
from spotlight.surface.html.crew_drawing import shade

TEMPLATES = Path(__file__).with_name("templates")
STATIC = Path(__file__).with_name("static")
LONGEST_TEXT = 300
"""Characters of a prompt or a reason that are shown."""


@cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
        extensions=["jinja2.ext.do"],
    )
    made.filters.update(
        {
            "amount": formats.count,
            "capital": lambda text: f"{text[:1].upper()}{text[1:]}",
            "clock": formats.clock,
            "dollars": formats.dollars,
            "duration": formats.duration,
            "frames": lambda strip: [(one.iteration, one.path, one.words, one.is_video) for one in strip.pictures],
            "json": lambda value: msgspec.json.encode(value).decode(),
            "percent": lambda share: formats.UNKNOWN if share is None else formats.percent(share),
            "score": lambda value: formats.UNKNOWN if value is None else formats.score(value),
            "score_name": formats.score_name,
            "short": lambda text: formats.shortened(text, LONGEST_TEXT),
            "shown": shown,
            "took": formats.took,
            "utc": _utc,
        }
    )
    made.globals.update(drawn_chart=drawn_chart, shade=shade, labels=LABELS, spanned=SPANNED, unknown=formats.UNKNOWN)
    return made


def rendered(template: str, **context: Any) -> Markup:
    """A template with this context, as markup."""
    return Markup(environment().get_template(template).render(**context))


def _finalized(value: Any) -> Any:
    """Every value that a template writes passes here before it is escaped."""
    return formats.plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _utc(wall: float) -> str:
    return f"{datetime.datetime.fromtimestamp(wall, tz=datetime.UTC):%Y-%m-%d %H:%M} UTC"

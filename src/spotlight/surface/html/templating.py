"""The Jinja2 environment: autoescape everywhere, and no text of a run reaches a page with control characters.

Invariant: no template marks text of a run as safe (tests/unit/test_hostile_text.py).
"""

import datetime
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from spotlight.surface import formats
from spotlight.surface.activity_names import LABELS, SPANNED
from spotlight.surface.html.chart_drawing import drawn_chart, path_of, shown
from spotlight.surface.html.crew_drawing import shade
from spotlight.surface.html.scales import Scale

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
            "code": _code,
            "dollars": formats.dollars,
            "duration": formats.duration,
            "frames": lambda strip: [(one.iteration, one.path, one.words, one.is_video) for one in strip.pictures],
            "json": lambda value: msgspec.json.encode(value).decode(),
            # Fragments that were rendered before; everything else is escaped.
            "markup": Markup,
            "percent": lambda share: formats.UNKNOWN if share is None else formats.percent(share),
            "score": lambda value: formats.UNKNOWN if value is None else formats.score(value),
            "score_name": formats.score_name,
            "short": lambda text: formats.shortened(text, LONGEST_TEXT),
            "shown": shown,
            "spark": _spark,
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
    return formats.without_controls(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _code(text: str) -> Markup:
    """Text with its commands, which stand between backticks, as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(formats.without_controls(text)))))


def _spark(values: Sequence[float]) -> str:
    """Points of a small line, 120 by 28."""
    x, y = Scale(0, len(values) - 1, 2, 118), Scale(min(values), max(values), 25, 3)
    return path_of((x(number), y(value)) for number, value in enumerate(values))


def _utc(wall: float) -> str:
    try:
        return f"{datetime.datetime.fromtimestamp(wall, tz=datetime.UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):
        # No calendar has it: the clock of the machine was wrong, or the journal is foreign.
        return formats.UNKNOWN

"""Formats of numbers and strings for people. All text of the page passes through `safe`."""

import html
import math

UNKNOWN = "–"


def safe(text: object) -> str:
    """Escape text for HTML."""
    return html.escape(str(text), quote=True)


def count(number: float, singular: str = "", plural: str = "") -> str:
    """`1,234 samples`; the plural adds an s unless it is given."""
    noun = singular if number == 1 else plural or f"{singular}s"
    return f"{number:,.0f} {noun}" if singular else f"{number:,.0f}"


def percent(share: float) -> str:
    """Two digits where they matter: 0.4 %, 7.3 %, 42 %."""
    if not math.isfinite(share):
        return UNKNOWN
    return f"{100 * share:.1f} %" if 0 < abs(share) < 0.0995 else f"{100 * share:.0f} %"


def duration(seconds: float) -> str:
    """`8.4 s`, `3 min 20 s`, `2 h 05 min`, `3 d 4 h`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"


def clock(seconds: float) -> str:
    """A place on a time axis: `0:45`, `12:30`, `3:05:00`."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def dollars(amount: float | None) -> str:
    """`$1,234`, `$12.30`, `$0.042`."""
    if amount is None or not math.isfinite(amount):
        return UNKNOWN
    if amount >= 1000:
        return f"${amount:,.0f}"
    return f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:.3f}"


def score(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else UNKNOWN


NAMES = {"exact": "exact match", "geneval": "GenEval score"}


def score_name(name: str) -> str:
    """Readable name of a held-out score."""
    return NAMES.get(name, name.replace("_", " "))

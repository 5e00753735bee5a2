"""Formats of numbers and strings for people, the same on page, report and terminal."""

import math

UNKNOWN = "–"
HIDDEN = "\N{REPLACEMENT CHARACTER}"
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0xFEFF)
_SHOWN = {**dict.fromkeys((*_CONTROLS, *_DIRECTIONS), HIDDEN), **dict.fromkeys(map(ord, "\t\n\r"), " ")}
_SHOWN.update(dict.fromkeys(range(0xD800, 0xE000), HIDDEN))


def without_controls(text: str) -> str:
    """Text without control characters, changes of direction and halves of characters: each is replaced by one sign.

    A prompt or a run's name may have them, and they would reorder or hide what is beside it.
    """
    return text.translate(_SHOWN)


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


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
    if not math.isfinite(seconds):
        return UNKNOWN
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


def took(seconds: float) -> str:
    """A duration, with milliseconds where they matter."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else duration(seconds)


def clock(seconds: float) -> str:
    """A place on a time axis: `0:45`, `12:30`, `3:05:00`."""
    if not math.isfinite(seconds):
        return UNKNOWN
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def dollars(amount: float | None) -> str:
    """`$1,234`, `$12.30`, `$0.042`, `$0.00038`."""
    if amount is None or not math.isfinite(amount):
        return UNKNOWN
    if amount >= 1000:
        return f"${amount:,.0f}"
    if amount >= 1 or amount == 0:
        return f"${amount:,.2f}"
    return f"${amount:.3f}" if amount >= 0.01 else f"${amount:.{1 - math.floor(math.log10(abs(amount)))}f}"


def score(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else UNKNOWN


LONGEST_NAME = 60
NAMES = {"exact": "exact match", "geneval": "GenEval score"}


def score_name(name: str) -> str:
    """Readable name of a score; a reward may have any name."""
    return NAMES.get(name) or shortened(without_controls(name.replace("_", " ")), LONGEST_NAME)

"""Common pieces of the page: section, legend, table. Text that is not markup is escaped."""

from collections.abc import Iterable, Sequence

from spotlight.surface.report.formats import safe


def section(title: str, lead: str, body: str) -> str:
    """A card: heading, a sentence on how to read it, and the body."""
    return f'<section><h2>{safe(title)}</h2><p class="lead">{safe(lead)}</p>{body}</section>'


def empty(title: str, why: str) -> str:
    """A card without content, with the reason."""
    return f'<section><h2>{safe(title)}</h2><p class="empty">{safe(why)}</p></section>'


def swatch(drawn: str, label: str) -> str:
    """One entry of a legend; `drawn` is SVG in a box of 22 x 14."""
    return f'<li><svg viewBox="0 0 22 14" aria-hidden="true">{drawn}</svg>{safe(label)}</li>'


def box(css: str) -> str:
    """A filled box for a swatch."""
    return f'<rect width="22" height="14" rx="2" class="{css}"/>'


def stroke(css: str) -> str:
    """A level line for a swatch."""
    return f'<line x1="0" y1="7" x2="22" y2="7" class="{css}"/>'


def legend(swatches: Iterable[str]) -> str:
    return f'<ul class="legend">{"".join(swatches)}</ul>'


def figure(caption: str, body: str, css: str = "") -> str:
    return f'<figure class="{css}"><figcaption>{safe(caption)}</figcaption>{body}</figure>'


def table(heads: Sequence[str], body: str) -> str:
    """A table; `body` is one or more rows. It scrolls sideways if it does not fit."""
    cells = "".join(f"<th>{safe(head)}</th>" for head in heads)
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'


def row(head: object, *cells: object) -> str:
    return f"<tr><th>{safe(head)}</th>{''.join(f'<td>{safe(cell)}</td>' for cell in cells)}</tr>"

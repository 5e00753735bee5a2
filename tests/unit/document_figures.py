"""Checker: every figure that a document quotes equals its result file.

A quoted figure is followed by its source, a comment that no reader sees:

    2.44 (1.83, 2.80)<!-- explore: words_nft_iterations_ratio -->

`explore` is docs/results/explore.json, the rest is the name of a figure there, or of a derived one
(derived_figures.py). A shipped profile with the name of an operation is the median of one that has a single duration.
In parentheses are low and high. `name/high` is the high alone. A `*` matches any text, and `a & b` joins patterns:
several figures count as their geometric mean, from their least low to their greatest high. A quoted `%` is the value
times 100, `ms` is seconds times 1000.

In a table the header of a column may hold the source with `{}` in place of a part; the first cell of each row then
holds that part: `<!-- words_nft -->`.

A number with a fraction, in percent or in "times" that has no source must repeat one that has, on the same page, or be
listed as a constant of that page: a condition, a goal or a size instead of a result.
"""

import json
import re
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple

from derived_figures import Figure, count, derived_from, over

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
PROFILES = ROOT / "src" / "spotlight" / "assets" / "profiles"

NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
SOURCE = r"<!-- (?P<source>[^>]*?) -->"
QUOTED = (
    rf"(?P<value>{NUMBER})\**(?P<unit> %| [A-Za-z]+)?\**(?:\s\((?P<low>{NUMBER})(?:, | to )(?P<high>{NUMBER})\))?\**"
)
FIGURE = re.compile(rf"(?<![\w.]){QUOTED}{SOURCE}")
BARE = re.compile(r"(?<![\w.,/-])(\d[\d,]*\.\d+(?![\w.]*\w/)|\d[\d,]*(?= %| times))")
"""Numbers that read like results: with a fraction, in percent, or times."""
NOT_PROSE = re.compile(r"^```.*?^```|^(?:    [^\n]*\n)+|`[^`]*`|\]\([^)]*\)|<!--.*?-->", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!-- (.*?) -->")
SCALES = {" %": 100.0, " ms": 1000.0}


class Quote(NamedTuple):
    """A figure as a document has it."""

    text: str
    value: str
    low: str | None
    high: str | None
    unit: str
    source: str


def mistakes_in(document: str, text: str, constants: Collection[str] = (), strict: bool = True) -> list[str]:
    """The mistakes in the figures of a document, one sentence each."""
    quotes, mistakes = [], []
    for found in _quotes(text):
        if isinstance(found, str):
            mistakes.append(f"{document}: {found}")
        else:
            quotes.append(found)
            mistakes += [f"{document}: {problem}" for problem in _wrong_with(found)]
    if strict:
        known = {number.rstrip(",") for quote in quotes for number in re.findall(NUMBER, quote.text)}
        prose = NOT_PROSE.sub(" ", text)
        mistakes += [
            f"{document}: '{_around(prose, match)}' has the number {match[1]} without a source; "
            f"write it as {match[1]}<!-- file: figure -->, repeat a figure that has one, or list it as a constant."
            for match in BARE.finditer(prose)
            if match[1] not in known and match[1] not in constants
        ]
    return mistakes


def _around(text: str, match: re.Match[str]) -> str:
    return " ".join(text[max(0, match.start() - 30) : match.end() + 20].split())


# -- finding -----------------------------------------------------------------------------------------------------------


def _quotes(text: str) -> Iterator[Quote | str]:
    """All figures with a source, and the reasons why others have none."""
    lines = text.splitlines()
    prose: list[str] = []
    place = 0
    while place < len(lines):
        if lines[place].startswith("|") and place + 1 < len(lines) and lines[place + 1].startswith("|--"):
            end = place
            while end < len(lines) and lines[end].startswith("|"):
                end += 1
            yield from _of_table([_cells(line) for line in lines[place:end]])
            place = end
        else:
            prose.append(lines[place])
            place += 1
    yield from _of_prose("\n".join(prose))


def _of_prose(text: str) -> Iterator[Quote | str]:
    for comment in COMMENT.finditer(text):
        before = text[max(0, comment.start() - 80) : comment.end()]
        match = next((each for each in FIGURE.finditer(before) if each.end() == len(before)), None)
        if match is None:
            yield f"the source '{comment[1]}' does not follow a number."
        else:
            yield _quote(match, match["source"])


def _of_table(rows: list[list[str]]) -> Iterator[Quote | str]:
    templates = [(COMMENT.findall(cell) or [None])[0] for cell in rows[0]]
    has_parts = any(templates)
    for row in rows[2:]:
        part = COMMENT.search(row[0])
        for cell, template in list(zip(row, templates, strict=True))[has_parts:]:
            if template is None or COMMENT.search(cell):
                yield from _of_prose(cell)
            elif cell:
                match = re.fullmatch(rf"\**{QUOTED}", cell)
                if match is None or part is None:
                    yield f"the table cell '{cell}' of the row '{row[0]}' is no number with a source."
                else:
                    yield _quote(match, template.replace("{}", part[1]))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])]


def _quote(match: re.Match[str], source: str) -> Quote:
    text = COMMENT.sub("", match[0]).strip()
    return Quote(text, match["value"], match["low"], match["high"], match["unit"] or "", source)


# -- comparing ---------------------------------------------------------------------------------------------------------


def _wrong_with(quote: Quote) -> Iterator[str]:
    try:
        figure = figure_of(quote.source)
    except LookupError as error:
        yield f"'{quote.text}' is said to be {quote.source}, but {error.args[0]}"
        return
    scale = SCALES.get(quote.unit, 1.0)
    for field, quoted in (("value", quote.value), ("low", quote.low), ("high", quote.high)):
        if quoted is not None and not _agree(quoted, figure[field] * scale):
            actual = _as_quoted(quoted, figure[field] * scale)
            yield f"quotes {quoted} as the {field} of {quote.source}, which is {actual} ({figure[field]:.6g})."


def _agree(quoted: str, actual: float) -> bool:
    return float(quoted.replace(",", "")) == float(_as_quoted(quoted, actual).replace(",", ""))


def _as_quoted(quoted: str, actual: float) -> str:
    """The value with the digits of the quote: trailing zeros of thousands are not claimed to be exact."""
    _, _, fraction = quoted.partition(".")
    if fraction:
        return f"{actual:.{len(fraction)}f}"
    digits = quoted.replace(",", "")
    zeros = len(digits) - len(digits.rstrip("0")) if len(digits) > 3 else 0
    return f"{round(actual, -zeros):,.0f}"


def figure_of(source: str) -> Figure:
    """The figure that a source names; LookupError names what is missing."""
    name, colon, wanted = source.partition(": ")
    if not colon or not any((folder / f"{name}.json").is_file() for folder in (RESULTS, PROFILES)):
        raise LookupError(f"neither docs/results nor the shipped profiles have {name}.json.")
    wanted, _, field = wanted.partition("/")
    found = [figure for pattern in wanted.split(" & ") for figure in _matching(name, pattern.strip())]
    if not found:
        raise LookupError(f"{name}.json has no figure '{wanted}'.")
    whole = found[0] if len(found) == 1 else over(figure["value"] for figure in found)
    if len(found) > 1:
        whole |= {"low": min(each["low"] for each in found), "high": max(each["high"] for each in found)}
    return whole if not field else dict.fromkeys(("value", "low", "high"), whole[field])


def _matching(name: str, pattern: str) -> list[Figure]:
    return [figure for key, figure in _figures(name).items() if key == pattern or fnmatchcase(key, pattern)]


@cache
def _figures(name: str) -> dict[str, Figure]:
    path = RESULTS / f"{name}.json"
    if path.is_file():
        result = json.loads(path.read_text())
        return {**result["figures"], **derived_from(name, result)}
    points = {
        operation: [point for series in timed["series"] for point in series["points"]]
        for operation, timed in json.loads((PROFILES / f"{name}.json").read_text())["operations"].items()
    }
    return {name: count(each[0]["p50"]) for name, each in points.items() if len(each) == 1}

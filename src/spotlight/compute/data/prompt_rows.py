"""Prompts of a source with numbered lines or rows: all of them, or one error that lists every bad one; free of torch.

Invariants (tests/unit/test_prompt_files.py): a source is read whole or refused with all its bad lines; one text never
has two targets or scenes, because a prompt is identified by its text (`Prompt.id`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from spotlight.core.errors import PromptError
from spotlight.core.types import Clause, Prompt, SceneSpec

LISTED_LINES = 10
"""Number of bad lines that an error lists in full; it counts the rest."""
FORMATS = {
    "line": 'a line is {"prompt": ..., "target": ...}, where target may be left out, or GenEval metadata',
    "row": "a row has a text in the column prompt, and a text or nothing in the column target",
}
"""The expected form by the unit of a source."""
KINDS = {"line": "file", "row": "table"}

Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """Prompts and their places in the source."""

    source: str
    prompts: tuple[Prompt, ...]
    unit: str = "prompt"
    """What the source numbers: `line` of a file (from 1), `row` of a table (from 0), or `prompt` (from 1)."""
    numbers: tuple[int, ...] = ()
    """The numbers of the prompts in the source; prompts of a source without numbers are counted."""

    def place(self, index: int) -> str:
        return f"{self.unit} {self.numbers[index] if self.numbers else index + 1}"

    @property
    def repeated(self) -> int:
        """Number of prompts that repeat an earlier one."""
        return len(self.prompts) - len(set(self.prompts))

    def where(self, is_wanted: Callable[[Prompt], bool]) -> "PromptSet":
        """The wanted prompts, with their places."""
        indices = [index for index, prompt in enumerate(self.prompts) if is_wanted(prompt)]
        return PromptSet(
            source=self.source,
            prompts=tuple(self.prompts[index] for index in indices),
            unit=self.unit,
            numbers=tuple(self.numbers[index] if self.numbers else index + 1 for index in indices),
        )


def collected(source: str, unit: str, rows: Iterable[tuple[int, Row]], parse: Callable[[Row], Prompt]) -> PromptSet:
    """Parse numbered rows; raises PromptError with all bad ones. `parse` raises ValueError or a msgspec error."""
    found: dict[int, Prompt] = {}
    bad: dict[int, str] = {}
    first: dict[str, int] = {}
    """First row of every text."""
    for number, row in rows:
        try:
            prompt = found[number] = parse(row)
        except (msgspec.MsgspecError, ValueError) as error:
            bad[number] = str(error)
            continue
        earlier = first.setdefault(prompt.text, number)
        if found[earlier] != prompt:
            bad[number] = f"the text of {unit} {earlier} with another target or scene"
    if bad:
        raise PromptError(_all_bad(source, unit, bad, len(found.keys() | bad.keys())))
    if not found:
        raise PromptError(
            f"the prompt {KINDS[unit]} {source} holds no prompt, so there is nothing to draw; write one per {unit}."
        )
    return PromptSet(source=source, prompts=tuple(found.values()), unit=unit, numbers=tuple(found))


def _all_bad(source: str, unit: str, bad: dict[int, str], count: int) -> str:
    listed = [f"{unit} {number} ({reason})" for number, reason in list(bad.items())[:LISTED_LINES]]
    if len(bad) > LISTED_LINES:
        listed.append(f"{len(bad) - LISTED_LINES} more")
    return (
        f"the prompt {KINDS[unit]} {source} has {len(bad)} bad of {count} {unit}s: {', '.join(listed)}; "
        f"{FORMATS[unit]}: correct or remove them."
    )


def from_text(line: str) -> Prompt:
    return Prompt(text=line, target=_quoted(line))


def _quoted(text: str) -> str | None:
    """The text between the only two double quotes, if there are exactly two."""
    parts = text.split('"')
    return parts[1] if len(parts) == 3 else None


class _PlainLine(msgspec.Struct, forbid_unknown_fields=True):
    prompt: str
    target: str | None = None


class _StrictClause(Clause, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A clause in a file; a misspelt field is an error, not ignored."""


class _GenEvalLine(msgspec.Struct, forbid_unknown_fields=True):
    """GenEval's layout: the scene's fields lie beside the prompt, where `Prompt` nests them."""

    prompt: str
    tag: str
    include: tuple[_StrictClause, ...]
    exclude: tuple[_StrictClause, ...] = ()


def from_json(line: str) -> Prompt:
    return from_fields(msgspec.json.decode(line))


def from_fields(fields: object) -> Prompt:
    """A prompt of the fields of a line or row."""
    if isinstance(fields, dict) and fields.keys() & {"tag", "include", "exclude"}:
        scene = msgspec.convert(fields, _GenEvalLine)
        include, exclude = _clauses(scene.include), _clauses(scene.exclude)
        prompt = Prompt(text=scene.prompt, scene=SceneSpec(tag=scene.tag, include=include, exclude=exclude))
    else:
        plain = msgspec.convert(fields, _PlainLine)
        prompt = Prompt(text=plain.prompt, target=_quoted(plain.prompt) if plain.target is None else plain.target)
    if not prompt.text.strip() or (prompt.target is not None and not prompt.target.strip()):
        raise ValueError("an empty prompt or target")
    return prompt


def _clauses(strict: Sequence[Clause]) -> tuple[Clause, ...]:
    return tuple(Clause(**msgspec.structs.asdict(clause)) for clause in strict)

"""Prompt sets: a split of a world, a text file, or JSON lines; free of torch.

Invariants (tests/unit/test_prompt_files.py): a file is read whole or refused with all its bad lines; one text never
has two targets or scenes, because a prompt is identified by its text (`Prompt.id`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from spotlight.compute.data.config import DataConfig
from spotlight.compute.data.vocabulary import shortened
from spotlight.compute.data.worlds import World, in_held_out_order
from spotlight.core.errors import InputError, PromptError
from spotlight.core.types import Clause, Prompt, SceneSpec

LISTED_LINES = 10
"""Number of bad lines that an error lists in full; it counts the rest."""
FORMATS = 'a line is {"prompt": ..., "target": ...}, where target may be left out, or GenEval metadata'


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """Prompts and their places in the source."""

    source: str
    prompts: tuple[Prompt, ...]
    lines: tuple[int, ...] = ()
    """Line numbers, where the source is a file."""

    def place(self, index: int) -> str:
        return f"line {self.lines[index]}" if self.lines else f"prompt {index + 1}"

    @property
    def repeated(self) -> int:
        """Number of prompts that repeat an earlier one."""
        return len(self.prompts) - len(set(self.prompts))


class RunPrompts(msgspec.Struct, frozen=True, kw_only=True):
    """The prompts of a run; stored in its folder, so that a change of the prompt file does not change the run."""

    training: tuple[Prompt, ...]
    held_out: tuple[Prompt, ...]

    @classmethod
    def of(cls, training: PromptSet, held_out: PromptSet) -> "RunPrompts":
        """Combine both sets; raises PromptError if one text has different targets or scenes in them."""
        trained = {prompt.text: prompt for prompt in training.prompts}
        for index, prompt in enumerate(held_out.prompts):
            if trained.get(prompt.text, prompt) != prompt:
                raise PromptError(
                    f"the prompt {shortened(prompt)} ({held_out.place(index)} of {held_out.source}) has another target "
                    f"or scene in {training.source}, and a prompt is identified by its text alone; give both the same, "
                    "or change one text."
                )
        return cls(training=training.prompts, held_out=held_out.prompts)

    @property
    def longest(self) -> Prompt:
        """The longest training prompt, in characters."""
        return max(self.training, key=lambda prompt: len(prompt.text))

    def evaluated(self, count: int) -> list[Prompt]:
        """Held-out prompts of every evaluation, one per image; they repeat where there are fewer than `count`."""
        return in_held_out_order(self.held_out, count)

    def shared(self, count: int) -> list[Prompt]:
        """Prompts of an evaluation that are also training prompts."""
        trained = set(self.training)
        return [prompt for prompt in dict.fromkeys(self.evaluated(count)) if prompt in trained]


def run_prompts(data: DataConfig, world: World | None) -> RunPrompts:
    """Read the prompt sets named in the section `data`."""
    return RunPrompts.of(read_prompts(data.prompts, world), read_prompts(data.held_out, world))


def load_prompts(source: str, world: World | None) -> list[Prompt]:
    return list(read_prompts(source, world).prompts)


def read_prompts(source: str, world: World | None) -> PromptSet:
    """Read a split of the world or a file: .txt with a prompt per line, or .jsonl. Without a world only files."""
    path = Path(source)
    if path.suffix.lower() in PARSERS:
        return _from_file(path, source)
    if world is None or path.suffix or path.is_file():
        why = "this model has no prompt splits" if world is None else "prompts are read from these formats only"
        raise InputError(
            f"'{source}' is not a .txt or .jsonl file, and {why}; write a prompt per line into a .txt file, or "
            '{"prompt": ..., "target": ...} into a .jsonl file.'
        )
    return PromptSet(source=f"the split {source}", prompts=tuple(world.prompts(source)))


def _from_file(path: Path, source: str) -> PromptSet:
    if not path.is_file():
        raise InputError(f"the prompt file {source} does not exist; check the path, or name a split: train, test.")
    try:
        # Not splitlines, which also splits at characters that a JSON string may hold.
        content = path.read_text("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise PromptError(f"the prompt file {source} is not UTF-8 text ({error}); save it as UTF-8.") from error
    lines = [(number, line.strip()) for number, line in enumerate(content, 1) if line.strip()]
    if not lines:
        raise PromptError(f"the prompt file {source} holds no prompt, so there is nothing to draw; write one per line.")
    parse, found, bad = PARSERS[path.suffix.lower()], {}, {}
    first: dict[str, int] = {}
    """First line of every text."""
    for number, line in lines:
        try:
            prompt = found[number] = parse(line)
        except (msgspec.MsgspecError, ValueError) as error:
            bad[number] = str(error)
            continue
        earlier = first.setdefault(prompt.text, number)
        if found[earlier] != prompt:
            bad[number] = f"the text of line {earlier} with another target or scene"
    if bad:
        raise PromptError(_all_bad(source, bad, len(lines)))
    return PromptSet(source=source, prompts=tuple(found.values()), lines=tuple(found))


def _all_bad(source: str, bad: dict[int, str], count: int) -> str:
    listed = [f"line {number} ({reason})" for number, reason in list(bad.items())[:LISTED_LINES]]
    if len(bad) > LISTED_LINES:
        listed.append(f"{len(bad) - LISTED_LINES} more")
    return (
        f"the prompt file {source} has {len(bad)} bad of {count} lines: {', '.join(listed)}; {FORMATS}: correct or "
        "remove them."
    )


def _from_text(line: str) -> Prompt:
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


def _from_json(line: str) -> Prompt:
    fields = msgspec.json.decode(line)
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


PARSERS: dict[str, Callable[[str], Prompt]] = {".txt": _from_text, ".jsonl": _from_json}
"""Line parsers by file suffix; a line that is not a prompt raises ValueError or a msgspec error."""

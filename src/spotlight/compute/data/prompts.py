"""Prompt sets: a split of a world, a text file, or JSON lines; free of torch.

Invariants (tests/unit/test_prompt_files.py): a file is read whole or refused with all its bad lines; one text never
has two targets or scenes, because a prompt is known by its text (`Prompt.id`).
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

SPELT_OUT = 10
"""Bad lines that an error spells out; of the others it gives the count."""
FORMATS = 'a line is {"prompt": ..., "target": ...}, where target may be left out, or GenEval metadata'


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """Prompts, and where each was written."""

    source: str
    prompts: tuple[Prompt, ...]
    lines: tuple[int, ...] = ()
    """Line numbers, where the source is a file."""

    def place(self, index: int) -> str:
        return f"line {self.lines[index]}" if self.lines else f"prompt {index + 1}"

    @property
    def repeated(self) -> int:
        """How many repeat an earlier one."""
        return len(self.prompts) - len(set(self.prompts))


class RunPrompts(msgspec.Struct, frozen=True, kw_only=True):
    """The prompts of a run; kept in its folder, so that a file that changes does not change the run."""

    training: tuple[Prompt, ...]
    held_out: tuple[Prompt, ...]

    @classmethod
    def of(cls, training: PromptSet, held_out: PromptSet) -> "RunPrompts":
        """Refused where a text has one target in one set and another one in the other."""
        trained = {prompt.text: prompt for prompt in training.prompts}
        for index, prompt in enumerate(held_out.prompts):
            if trained.get(prompt.text, prompt) != prompt:
                raise PromptError(
                    f"the prompt {shortened(prompt)} ({held_out.place(index)} of {held_out.source}) has another target "
                    f"or scene in {training.source}, and a prompt is known by its text alone; give both the same, or "
                    "change one text."
                )
        return cls(training=training.prompts, held_out=held_out.prompts)

    def evaluated(self, count: int) -> list[Prompt]:
        """The held-out prompts of every evaluation, one per picture: where there are fewer, they come again."""
        return in_held_out_order(self.held_out, count)

    def shared(self, count: int) -> list[Prompt]:
        """Prompts of an evaluation that are also trained on."""
        trained = set(self.training)
        return [prompt for prompt in dict.fromkeys(self.evaluated(count)) if prompt in trained]


def run_prompts(data: DataConfig, world: World | None) -> RunPrompts:
    """What the section `data` names."""
    return RunPrompts.of(read_prompts(data.prompts, world), read_prompts(data.held_out, world))


def load_prompts(source: str, world: World | None) -> list[Prompt]:
    return list(read_prompts(source, world).prompts)


def read_prompts(source: str, world: World | None) -> PromptSet:
    """A split of the world, or a file: .txt with a prompt per line, or .jsonl; without a world only files."""
    path = Path(source)
    if path.suffix.lower() in PARSERS:
        return _from_file(path, source)
    if world is None or path.suffix or path.is_file():
        why = "this model has no prompt splits of its own" if world is None else "prompts are read from these alone"
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
    """Line of every text."""
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
    spelt = [f"line {number} ({reason})" for number, reason in list(bad.items())[:SPELT_OUT]]
    if len(bad) > SPELT_OUT:
        spelt.append(f"{len(bad) - SPELT_OUT} more")
    return (
        f"the prompt file {source} has {len(bad)} bad of {count} lines: {', '.join(spelt)}; {FORMATS}: correct them "
        "or take them out."
    )


def _from_text(line: str) -> Prompt:
    return Prompt(text=line, target=_quoted(line))


def _quoted(text: str) -> str | None:
    """What stands between a text's only two double quotes."""
    parts = text.split('"')
    return parts[1] if len(parts) == 3 else None


class _PlainLine(msgspec.Struct, forbid_unknown_fields=True):
    prompt: str
    target: str | None = None


class _StrictClause(Clause, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As it must be in a file, where a misspelt field would otherwise be lost."""


class _GenEvalLine(msgspec.Struct, forbid_unknown_fields=True):
    """GenEval keeps the scene's fields beside the prompt; ours are a field of it."""

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
"""By suffix of the file; a line that is no prompt raises ValueError or a msgspec error."""

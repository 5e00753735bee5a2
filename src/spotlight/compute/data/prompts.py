"""Prompt sets by name or file."""

import json
from pathlib import Path

import msgspec

from spotlight.compute.data.worlds import World
from spotlight.core.errors import InputError, PromptError
from spotlight.core.types import Clause, Prompt, SceneSpec


def load_prompts(source: str, world: World | None) -> list[Prompt]:
    """A split of the world, a text file, or GenEval's metadata as JSON lines; without a world only files."""
    path = Path(source)
    if path.suffix not in (".txt", ".jsonl"):
        if world is None:
            raise InputError(
                f"'{source}' is not a .txt or .jsonl file, and this model has no prompt splits of its own; pass a "
                "file of prompts."
            )
        return world.prompts(source)
    if not path.is_file():
        raise InputError(f"the prompt file {source} does not exist; check the path, or name a split: train, test.")
    try:
        lines = [(number, line) for number, line in enumerate(path.read_text("utf-8").splitlines(), 1) if line.strip()]
    except UnicodeDecodeError as error:
        raise PromptError(f"the prompt file {source} is not UTF-8 text ({error}); save it as UTF-8.") from error
    if not lines:
        raise PromptError(f"the prompt file {source} holds no prompt, so there is nothing to draw; write one per line.")
    return [_from_text(line) if path.suffix == ".txt" else _from_metadata(line, f"{path}:{n}") for n, line in lines]


def _from_text(line: str) -> Prompt:
    quoted = line.split('"')
    return Prompt(text=line.strip(), target=quoted[1] if len(quoted) == 3 else None)


def _from_metadata(line: str, place: str) -> Prompt:
    """GenEval keeps the scene's fields beside the prompt; ours are a field of it."""
    try:
        fields = json.loads(line)
        return Prompt(
            text=msgspec.convert(fields["prompt"], str),
            scene=SceneSpec(
                tag=msgspec.convert(fields["tag"], str),
                include=msgspec.convert(fields["include"], tuple[Clause, ...]),
                exclude=msgspec.convert(fields.get("exclude", []), tuple[Clause, ...]),
            ),
        )
    except (json.JSONDecodeError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise PromptError(
            f"{place} is not GenEval metadata ({type(error).__name__}: {error}): {line[:80]!r}; each line "
            "needs tag, include and prompt."
        ) from error

"""Prompt sets of a run: a split of a world, a shipped set, a text file, JSON lines, a parquet file or a dataset; free
of torch."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from spotlight.assets import asset
from spotlight.compute.data.config import DataConfig
from spotlight.compute.data.prompt_rows import PromptSet, collected, from_json, from_text
from spotlight.compute.data.prompt_tables import HUB_PREFIX, from_hub, from_parquet, from_saved, is_saved_dataset
from spotlight.compute.data.vocabulary import shortened
from spotlight.compute.data.worlds import World, in_held_out_order
from spotlight.core.errors import InputError, PromptError
from spotlight.core.types import Prompt

LINE_PARSERS: dict[str, Callable[[str], Prompt]] = {".txt": from_text, ".jsonl": from_json}
"""Line parsers by file suffix."""
PARQUET = ".parquet"
SHIPPED = {"signs": "signs.txt", "objects": "objects.jsonl", "pictures": "pictures.txt"}
"""Files of the shipped sets (assets/prompts/README.md)."""
ID_VALUES = 2**64
"""Number of values of a prompt's id, a hash of its text."""


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
    return RunPrompts.of(*prompt_sets(data, world))


def prompt_sets(data: DataConfig, world: World | None) -> tuple[PromptSet, PromptSet]:
    """Training and held-out prompts, from two sources or from one by share."""
    named = read_prompts(data.prompts, world)
    if isinstance(data.held_out, str):
        return named, read_prompts(data.held_out, world)
    return _divided(named, data.held_out)


def _divided(prompts: PromptSet, share: float) -> tuple[PromptSet, PromptSet]:
    """Hold out the prompts whose id, a hash of the text, is in the lowest `share` of its values.

    Invariant (tests/property/test_prompt_share_property.py): a text is in one set, and the same one whatever prompts
    are beside it.
    """

    def is_held_out(prompt: Prompt) -> bool:
        return int(prompt.id, 16) < share * ID_VALUES

    held_out, training = prompts.where(is_held_out), prompts.where(lambda prompt: not is_held_out(prompt))
    if not held_out.prompts or not training.prompts:
        empty = "to train on" if held_out.prompts else "held out"
        raise PromptError(
            f"data.held_out is {share:g}, and of the {len(set(prompts.prompts))} different prompts of {prompts.source} "
            f"that leaves none {empty}, because every prompt is assigned by a hash of its text; name another share, "
            "more prompts, or a file of held-out prompts."
        )
    return training, held_out


def load_prompts(source: str, world: World | None) -> list[Prompt]:
    return list(read_prompts(source, world).prompts)


def read_prompts(source: str, world: World | None) -> PromptSet:
    """Read a file (.txt, .jsonl, .parquet), a dataset (hf:owner/name, a saved folder), a shipped set or a split of the
    world."""
    path = asset(f"prompts/{SHIPPED[source]}") if source in SHIPPED else Path(source)
    suffix = path.suffix.lower()
    if source.startswith(HUB_PREFIX):
        return from_hub(source)
    if is_saved_dataset(path):
        return from_saved(path, source)
    if suffix in (*LINE_PARSERS, PARQUET):
        if not path.is_file():
            raise InputError(f"the prompt file {source} does not exist; check the path, or name a split: train, test.")
        return from_parquet(path, source) if suffix == PARQUET else _from_lines(path, source)
    if world is None or suffix or path.is_file():
        why = "this model has no prompt splits" if world is None else "prompts are read from these formats only"
        raise InputError(
            f"'{source}' is not a .txt, .jsonl or .parquet file nor a dataset (hf:owner/name, or a folder made by "
            f"save_to_disk) nor a shipped set ({', '.join(SHIPPED)}), and {why}; write a prompt per "
            'line into a .txt file, or {"prompt": ..., "target": ...} into a .jsonl file.'
        )
    return PromptSet(source=f"the split {source}", prompts=tuple(world.prompts(source)))


def _from_lines(path: Path, source: str) -> PromptSet:
    try:
        # Not splitlines, which also splits at characters that a JSON string may hold.
        content = path.read_text("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise PromptError(f"the prompt file {source} is not UTF-8 text ({error}); save it as UTF-8.") from error
    lines = ((number, line.strip()) for number, line in enumerate(content, 1) if line.strip())
    return collected(source, "line", lines, LINE_PARSERS[path.suffix.lower()])

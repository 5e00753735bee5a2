"""Synthetic scenes of coloured shapes: GenEval's six tasks at a size that a tiny pixel model can learn.

Invariants: `prompts` is the same list in every process, and no scene of the test split is described by a
prompt of the train split, in either order of its objects; `render` draws exactly the objects of the prompt,
disjoint and fully inside the canvas, and depends on nothing but the prompt and the generator.
"""

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from spotlight.compute.data.vocabulary import Vocabulary
from spotlight.core.errors import InputError, PromptError, suggestion
from spotlight.core.types import Clause, Prompt, SceneSpec, Size

SIZE = Size(48, 48)
SHAPES = ("circle", "square", "triangle", "cross")
PALETTE: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {
        "red": (218, 28, 36),
        "orange": (250, 138, 16),
        "yellow": (242, 220, 40),
        "green": (28, 150, 62),
        "blue": (32, 82, 214),
        "purple": (132, 46, 172),
        "pink": (252, 132, 188),
        "brown": (112, 70, 34),
    }
)
RELATIONS = ("left of", "right of", "above", "below")
NUMBERS: Mapping[int, str] = MappingProxyType({2: "two", 3: "three", 4: "four"})
PLURALS: Mapping[str, str] = MappingProxyType(
    {"circle": "circles", "square": "squares", "triangle": "triangles", "cross": "crosses"}
)
SPLITS = ("train", "test")
TEXT_WIDTH = 12

RADII = (0.10, 0.16)
EDGE = 1.5
GAP = 3.0
TEST_SHARE = 0.15
SUPERSAMPLING = 4
CANDIDATES = 24

# Largest ratio of the offset across the relation's axis to that along it; keeps a margin to GenEval's 0.5 rule.
SLANT = 0.5

_OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
_DIRECTION = {"left of": (0, -1.0), "right of": (0, 1.0), "above": (1, -1.0), "below": (1, 1.0)}

Pixels: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float64]


class Task(StrEnum):
    """GenEval's tags."""

    SINGLE_OBJECT = "single_object"
    TWO_OBJECT = "two_object"
    COUNTING = "counting"
    COLORS = "colors"
    POSITION = "position"
    COLOR_ATTR = "color_attr"


@dataclass(frozen=True)
class Placed:
    """One drawn object: shape, RGB colour, centre and radius in pixels."""

    shape: str
    color: tuple[int, int, int]
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class _NamedPrompt:
    """A prompt and the key of its scene, which both object orders share."""

    prompt: Prompt
    scene_key: str


def article(phrase: str) -> str:
    """Prefix the article as GenEval's prompts do: "a red circle", "an orange circle"."""
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def _entry(task: Task, text: str, include: tuple[Clause, ...], key: str = "") -> _NamedPrompt:
    exclude: tuple[Clause, ...] = ()
    if task is Task.COUNTING:
        exclude = tuple(Clause(class_name=c.class_name, count=c.count + 1) for c in include)
    scene = SceneSpec(tag=task.value, include=include, exclude=exclude)
    text = f"a photo of {text}"
    return _NamedPrompt(Prompt(text=text, scene=scene), key or text)


def _pair(task: Task, first: Clause, second: Clause) -> _NamedPrompt:
    names = [f"{c.color} {c.class_name}" if c.color else c.class_name for c in (first, second)]
    text = " and ".join(article(name) for name in names)
    return _entry(task, text, (first, second), " and ".join(sorted(names)))


def _position(subject: str, relation: str, reference: str) -> _NamedPrompt:
    # GenEval lists the reference first, so that `position` can name its index.
    include = (Clause(class_name=reference, count=1), Clause(class_name=subject, count=1, position=(relation, 0)))
    mirrored = f"{reference} {_OPPOSITE[relation]} {subject}"
    key = min(f"{subject} {relation} {reference}", mirrored)
    return _entry(Task.POSITION, f"{article(subject)} {relation} {article(reference)}", include, key)


def _entries(task: Task) -> Iterator[_NamedPrompt]:
    """Every prompt of one task, in a fixed order."""
    pairs = list(itertools.permutations(SHAPES, 2))
    if task is Task.SINGLE_OBJECT:
        yield from (_entry(task, article(shape), (Clause(class_name=shape, count=1),)) for shape in SHAPES)
    elif task is Task.TWO_OBJECT:
        yield from (_pair(task, Clause(class_name=a, count=1), Clause(class_name=b, count=1)) for a, b in pairs)
    elif task is Task.COUNTING:
        for shape, (count, word) in itertools.product(SHAPES, NUMBERS.items()):
            yield _entry(task, f"{word} {PLURALS[shape]}", (Clause(class_name=shape, count=count),))
    elif task is Task.COLORS:
        for color, shape in itertools.product(PALETTE, SHAPES):
            yield _entry(task, article(f"{color} {shape}"), (Clause(class_name=shape, count=1, color=color),))
    elif task is Task.POSITION:
        yield from (_position(a, relation, b) for (a, b), relation in itertools.product(pairs, RELATIONS))
    else:
        for (a, b), (p, q) in itertools.product(pairs, itertools.permutations(PALETTE, 2)):
            yield _pair(task, Clause(class_name=a, count=1, color=p), Clause(class_name=b, count=1, color=q))


def _test_keys(task: Task, entries: list[_NamedPrompt]) -> frozenset[str]:
    """Keys of the held-out scenes: those with the smallest hashes, until the share of prompts is reached."""
    least = 1 if task is Task.SINGLE_OBJECT else 3
    wanted = max(least, round(TEST_SHARE * len(entries)))
    prompts_of = {entry.scene_key: 0 for entry in entries}
    for entry in entries:
        prompts_of[entry.scene_key] += 1
    held_out: set[str] = set()
    for key in sorted(prompts_of, key=lambda k: hashlib.blake2b(k.encode(), person=b"scene-split").digest()):
        if sum(prompts_of[k] for k in held_out) >= wanted:
            break
        held_out.add(key)
    return frozenset(held_out)


@cache
def _split() -> Mapping[str, tuple[Prompt, ...]]:
    parts: dict[str, list[Prompt]] = {name: [] for name in SPLITS}
    for task in Task:
        entries = list(_entries(task))
        held_out = _test_keys(task, entries)
        for entry in entries:
            parts["test" if entry.scene_key in held_out else "train"].append(entry.prompt)
    return {name: tuple(part) for name, part in parts.items()}


def prompts(split: str) -> list[Prompt]:
    """All prompts of the "train" or the "test" split, task by task."""
    parts = _split()
    if split not in parts:
        raise InputError(f"The scenes have no split '{split}': {suggestion(split, SPLITS)}")
    return list(parts[split])


VOCABULARY = Vocabulary(
    tokens=tuple(sorted({word for split in SPLITS for prompt in prompts(split) for word in prompt.text.split()})),
    width=TEXT_WIDTH,
    longest=TEXT_WIDTH,
    tokenise=lambda prompt: prompt.text.split(),
)
"""Every word of every prompt of both splits."""


def coverage(shape: str, dx: Floats, dy: Floats, radius: float) -> NDArray[np.bool_]:
    """Mask of the points (dx, dy) from the centre that lie in the shape; all shapes have about the same extent."""
    if shape == "circle":
        return dx * dx + dy * dy <= radius * radius
    if shape == "square":
        half = 0.9 * radius
        return (np.abs(dx) <= half) & (np.abs(dy) <= half)
    if shape == "triangle":
        return (dy <= 0.85 * radius) & (np.abs(dx) <= (dy + radius) * 0.52)
    if shape == "cross":
        arm = 0.32 * radius
        x, y = np.abs(dx), np.abs(dy)
        return (np.minimum(x, y) <= arm) & (np.maximum(x, y) <= radius)
    raise PromptError(f"The scenes have no shape '{shape}': {suggestion(shape, SHAPES)}")


def draw(objects: tuple[Placed, ...], background: tuple[int, int, int], size: Size = SIZE) -> Pixels:
    """Draw the objects, anti-aliased, later objects over earlier ones."""
    canvas = np.empty((size.height, size.width, 3))
    canvas[:] = background
    for item in objects:
        reach = item.radius + 1.0
        top, bottom = max(0, int(item.y - reach)), min(size.height, math.ceil(item.y + reach))
        left, right = max(0, int(item.x - reach)), min(size.width, math.ceil(item.x + reach))
        rows, columns = bottom - top, right - left
        step = 1.0 / SUPERSAMPLING
        dy = (top - item.y + step / 2) + step * np.arange(rows * SUPERSAMPLING, dtype=np.float64)[:, None]
        dx = (left - item.x + step / 2) + step * np.arange(columns * SUPERSAMPLING, dtype=np.float64)[None, :]
        inside = coverage(item.shape, dx, dy, item.radius)
        alpha = inside.reshape(rows, SUPERSAMPLING, columns, SUPERSAMPLING).mean(axis=(1, 3))[..., None]
        patch = canvas[top:bottom, left:right]
        patch += alpha * (np.array(item.color, dtype=np.float64) - patch)
    return np.rint(canvas).astype(np.uint8)


def render(prompt: Prompt, rng: np.random.Generator) -> Pixels:
    """Draw a correct image of the prompt; the generator chooses what the prompt leaves open."""
    if prompt.scene is None:
        raise PromptError(
            f"The prompt '{prompt.text}' has no scene metadata, so it cannot be drawn; "
            "take prompts from spotlight.compute.data.scenes.prompts."
        )
    shade = int(rng.integers(226, 252))
    tint = rng.integers(-3, 4, size=3)
    background = (shade + int(tint[0]), shade + int(tint[1]), shade + int(tint[2]))
    return draw(_arranged(prompt.scene, rng), background)


def _arranged(scene: SceneSpec, rng: np.random.Generator) -> tuple[Placed, ...]:
    """Place objects at random; a layout without room is dropped and retried with smaller radii."""
    clause_of = [i for i, clause in enumerate(scene.include) for _ in range(clause.count)]
    names = list(PALETTE)
    colors = []
    for i in clause_of:
        color = scene.include[i].color or names[int(rng.integers(len(names)))]
        if color not in PALETTE:
            raise PromptError(f"The scenes have no colour '{color}': {suggestion(color, PALETTE)}")
        colors.append(PALETTE[color])
    least, most = RADII[0] * SIZE.width, RADII[1] * SIZE.width
    for attempt in range(1000):
        ceiling = max(least, most * 0.985**attempt)
        radii = rng.uniform(least, ceiling, size=len(clause_of))
        centres = _centres(scene, clause_of, radii, rng)
        if centres is not None:
            return tuple(
                Placed(scene.include[i].class_name, colors[k], *centres[k], float(radii[k]))
                for k, i in enumerate(clause_of)
            )
    raise PromptError(
        f"No image holds the {len(clause_of)} objects of this scene: they do not fit into {SIZE} pixels "
        "or their positions contradict each other; use fewer objects."
    )


def _centres(
    scene: SceneSpec, clause_of: list[int], radii: Floats, rng: np.random.Generator
) -> list[tuple[float, float]] | None:
    """Place disjoint centres one after the other; None if an object finds no room."""
    placed: list[tuple[float, float]] = []
    for k, clause in enumerate(clause_of):
        margin = radii[k] + EDGE
        points = margin + rng.random((CANDIDATES, 2)) * (np.array([SIZE.width, SIZE.height]) - 2 * margin)
        free = np.ones(CANDIDATES, dtype=np.bool_)
        position = scene.include[clause].position
        for j, other in enumerate(placed):
            offset = points - np.array(other)
            distance = np.abs(offset)
            free &= distance.max(axis=1) >= radii[k] + radii[j] + GAP
            if position is not None and clause_of[j] == position[1]:
                free &= _in_relation(position[0], offset)
        first = int(free.argmax())
        if not free[first]:
            return None
        placed.append((float(points[first, 0]), float(points[first, 1])))
    return placed


def _in_relation(relation: str, offset: Floats) -> NDArray[np.bool_]:
    """Whether each offset (subject minus reference) is clearly in the relation."""
    if relation not in _DIRECTION:
        raise PromptError(f"The scenes have no position '{relation}': {suggestion(relation, RELATIONS)}")
    axis, sign = _DIRECTION[relation]
    along = sign * offset[:, axis]
    return (along > 0) & (np.abs(offset[:, 1 - axis]) <= SLANT * along)


def pretraining_prompt(rng: np.random.Generator) -> Prompt:
    """Draw a train prompt; every task is equally likely, whatever its number of prompts."""
    task = tuple(Task)[rng.integers(len(Task))]
    of_task = _train_prompts_of(task)
    return of_task[rng.integers(len(of_task))]


@cache
def _train_prompts_of(task: Task) -> tuple[Prompt, ...]:
    return tuple(prompt for prompt in prompts("train") if prompt.scene is not None and prompt.scene.tag == task)

"""Images of words, 32x96 RGB: several faces, colours and offsets, one letter per 12-pixel cell, centred.

Two sources of words: a shipped list of English words, of which a hashed fifth is held out as the `test` split, and
pronounceable made-up words, which only pretraining uses. Invariant: no training stream ever yields a test word
(tests/unit/test_words.py).
"""

import hashlib
from functools import cache

import numpy as np
from numpy.typing import NDArray

from spotlight.assets import asset
from spotlight.compute.data.glyphs import CELL_HEIGHT, CELL_WIDTH, FACES, LETTERS, atlas
from spotlight.compute.data.vocabulary import Vocabulary, shortened
from spotlight.core.errors import InputError, PromptError, suggestion
from spotlight.core.types import Prompt, Size

SIZE = Size(32, 96)
MIN_LETTERS, MAX_LETTERS = 3, 7
TEXT_WIDTH = 12
TEST_SHARE = 0.2
ONSETS = (
    "b", "c", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "x", "y", "z", "br", "ch",
    "cl", "cr", "dr", "fl", "gr", "kn", "pl", "qu", "sh", "sk", "sl", "sp", "st", "th", "tr", "tw",
)  # fmt: skip
VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ee", "oa", "oo", "ou")
CODAS = (
    "b", "ck", "d", "f", "g", "k", "l", "ll", "m", "n", "ng", "nk", "p", "r", "rd", "rn", "s", "sk", "st", "t", "v",
    "w", "x", "y", "z",
)  # fmt: skip


def letters_of(prompt: Prompt) -> list[str]:
    """Letters of the quoted word."""
    parts = prompt.text.split('"')
    if len(parts) != 3 or not parts[1]:
        raise PromptError(
            f"the prompt {shortened(prompt)} has no word between two double quotes, and this model draws nothing else; "
            'write it like: the word "river".'
        )
    return list(parts[1])


VOCABULARY = Vocabulary(tokens=tuple(LETTERS), width=TEXT_WIDTH, longest=MAX_LETTERS, tokenise=letters_of)


def prompt_for(word: str) -> Prompt:
    return Prompt(text=f'the word "{word}"', target=word)


@cache
def english() -> tuple[str, ...]:
    return tuple(asset("words/words.txt").read_text().split())


def is_held_out(word: str) -> bool:
    """Whether the word is in the test split; a function of the word alone, so that the split never drifts."""
    return hashlib.blake2b(word.encode(), digest_size=1).digest()[0] < 256 * TEST_SHARE


@cache
def _splits() -> dict[str, tuple[Prompt, ...]]:
    ordered = sorted(english(), key=lambda word: hashlib.blake2b(word.encode()).digest())
    parts: dict[str, list[Prompt]] = {"train": [], "test": []}
    for word in ordered:
        parts["test" if is_held_out(word) else "train"].append(prompt_for(word))
    return {name: tuple(part) for name, part in parts.items()}


def prompts(split: str) -> list[Prompt]:
    """`train` or `test`: the English words, in a fixed order that is not alphabetical."""
    parts = _splits()
    if split not in parts:
        raise InputError(f"words has no split '{split}': {suggestion(split, tuple(parts))}")
    return list(parts[split])


def made_up_word(rng: np.random.Generator) -> str:
    """Return a pronounceable word of 3 to 7 letters that is in no split."""
    while True:
        word = "".join(
            part[rng.integers(len(part))] for part in (ONSETS, VOWELS, CODAS, VOWELS, CODAS)[: rng.integers(3, 6)]
        )
        if MIN_LETTERS <= len(word) <= MAX_LETTERS and word not in english():
            return word


def pretraining_prompt(rng: np.random.Generator) -> Prompt:
    """Draw an English word of the train split or a made-up word, evenly, so that every letter pair is seen."""
    train = _splits()["train"]
    return train[rng.integers(len(train))] if rng.random() < 0.5 else prompt_for(made_up_word(rng))


def random_colours(rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Draw ink and paper with a luminance difference of at least 0.4 in either direction."""
    weights = np.array([0.299, 0.587, 0.114])
    while True:
        ink, paper = rng.random(3), rng.random(3)
        if abs(float(weights @ (ink - paper))) >= 0.4:
            return ink.astype(np.float32), paper.astype(np.float32)


def _drawable_word(prompt: Prompt) -> str:
    word = prompt.target or ""
    if not 1 <= len(word) <= MAX_LETTERS or not set(word) <= set(LETTERS):
        raise PromptError(
            f"the word {word[: 2 * MAX_LETTERS]!r} cannot be drawn, because a picture holds 1 to {MAX_LETTERS} letters "
            "a to z; set the prompt's target accordingly."
        )
    return word


def render(prompt: Prompt, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw the prompt's word; the generator chooses face, colours and an offset of one pixel."""
    word = _drawable_word(prompt)
    face = atlas()[rng.integers(len(FACES))]
    coverage = np.zeros((SIZE.height, SIZE.width), np.float32)
    left = (SIZE.width - CELL_WIDTH * len(word)) // 2 + int(rng.integers(-1, 2))
    down = int(rng.integers(-1, 2))
    for position, letter in enumerate(word):
        x = left + position * CELL_WIDTH
        coverage[:, x : x + CELL_WIDTH] = face[LETTERS.index(letter)][:CELL_HEIGHT]
    coverage = np.roll(coverage, down, axis=0)[..., None] / 255.0
    ink, paper = random_colours(rng)
    return np.round(255.0 * (coverage * ink + (1.0 - coverage) * paper)).astype(np.uint8)

"""Comparing what was read with what was asked: edit similarity, exact match and a graded score.

Invariant: every score is finite and in [0, 1] for any text, target and posteriors, and `graded` reaches 1
only where `exact_match` holds (tests/unit/test_ocr.py).
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from spotlight.core.errors import PromptError
from spotlight.core.types import Prompt

Posteriors: TypeAlias = NDArray[np.float32]

SCORING_VERSION = 1
"""Raised whenever a rule in this module changes a score."""

DECADES = 2.0
"""How many powers of ten below certainty a letter may be before it counts for nothing; more lifts noise."""


def normalise(text: str) -> str:
    """Lower-case without spaces: the form in which texts are compared."""
    return text.replace(" ", "").lower()


def target_of(prompt: Prompt) -> str:
    """The text to be shown, normalised: `prompt.target`, else what stands in the first double quotes."""
    raw = prompt.target
    if raw is None:
        quoted = prompt.text.split('"', 2)
        raw = quoted[1] if len(quoted) == 3 else ""
    target = normalise(raw)
    if not target:
        raise PromptError(
            f"Prompt {prompt.text!r} names no text to read, so an OCR reward cannot score it; "
            'set its target or put the text in double quotes, as in: a sign that says "hello".'
        )
    return target


def levenshtein(left: str, right: str) -> int:
    """The fewest insertions, deletions and substitutions that turn one text into the other."""
    if len(left) < len(right):
        left, right = right, left
    codes = np.array([ord(letter) for letter in right], dtype=np.int64)
    columns = np.arange(len(right) + 1)
    row = columns
    for letter in left:
        here = row + 1
        here[1:] = np.minimum(here[1:], row[:-1] + (codes != ord(letter)))
        # Insertions chain along the row; subtracting the column turns the chain into a running minimum.
        row = np.minimum.accumulate(here - columns) + columns
    return int(row[-1])


def edit_similarity(text: str, target: str) -> float:
    """Flow-GRPO's OCR score: 1 - distance/length, with distance 0 as soon as the target is part of the text.

    Flow-GRPO divides by zero on an empty target; here it is matched by an empty text only.
    """
    read, wanted = normalise(text), normalise(target)
    if not wanted:
        return float(not read)
    if wanted in read:
        return 1.0
    return 1.0 - min(levenshtein(read, wanted), len(wanted)) / len(wanted)


def exact_match(text: str, target: str) -> float:
    """1 if the text is the target and nothing else, up to case and spaces."""
    return float(normalise(text) == normalise(target))


def soft_lcs(letters: Posteriors, blank: Posteriors, target: str) -> float:
    """How much of the target the posteriors hold in order, each letter credited by its order of magnitude.

    `letters[t, k]` is the probability that frame t shows letter k of the target. Letters are laid on
    increasing frames so that the sum of clip(1 + log10(p) / DECADES, 0, 1) is greatest. A letter that repeats
    the one before needs a blank frame in front of it, because CTC reads an unbroken run as one letter.
    """
    frames, length = letters.shape
    if not frames or not length:
        return 0.0
    credit = np.clip(1.0 + np.log10(np.maximum(letters, 1e-12, dtype=np.float64)) / DECADES, 0.0, 1.0)
    # A separator is whole once blank is likelier than all else together: greedy decoding splits there.
    separator = np.clip(2.0 * blank.astype(np.float64), 0.0, 1.0)
    # best[t] is the greatest credit of the letters so far on the frames before t.
    best = np.zeros(frames + 1)
    for index in range(length):
        gain = credit[:, index]
        before = best[:-1]
        if index and target[index] == target[index - 1]:
            gain = gain * np.concatenate(([0.0], separator[:-1]))
            before = np.concatenate(([0.0], best[:-2]))
        placed = np.concatenate(([0.0], before + gain))
        best = np.maximum.accumulate(np.maximum(best, placed))
    return float(best[-1] / length)


def extra_glyphs(text: str, target: str) -> float:
    """Glyphs read beyond the target's length, in lengths of the target."""
    wanted = len(normalise(target))
    return max(0, len(normalise(text)) - wanted) / max(1, wanted)


def graded(text: str, letters: Posteriors, blank: Posteriors, target: str) -> float:
    """Half edit similarity, half soft LCS less the extra glyphs.

    The CTC likelihood of the target is not used: it prefers a blank image to a word with two wrong letters.
    """
    soft = soft_lcs(letters, blank, normalise(target)) - extra_glyphs(text, target)
    return float(np.clip(0.5 * edit_similarity(text, target) + 0.5 * soft, 0.0, 1.0))

"""Compares the text that was read with the target: edit similarity, exact match and a graded score.

Invariant: every score is finite and in [0, 1] for any text, target and posteriors, and `graded` reaches 1
only where `exact_match` holds (tests/unit/test_ocr.py).
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from spotlight.core.errors import PromptError
from spotlight.core.types import Prompt

Posteriors: TypeAlias = NDArray[np.float32]

SCORING_VERSION = 1
"""Raised whenever a rule in this module changes a score."""

DECADES = 2.0
"""Powers of ten below certainty at which a letter's credit reaches 0; a larger value credits noise."""


def normalise(text: str) -> str:
    """Lower-case without spaces: the form in which texts are compared."""
    return text.replace(" ", "").lower()


def target_problem(prompt: Prompt) -> str | None:
    """Why the prompt has no target text; None if it has one."""
    try:
        target_of(prompt)
    except PromptError as error:
        return str(error)
    return None


def target_of(prompt: Prompt) -> str:
    """The target text, normalised: `prompt.target`, else the text in the first double quotes."""
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
    """The fewest insertions, deletions and substitutions that turn one text into the other.

    Myers' bit-parallel form: neighbours in a row of the table differ by -1, 0 or 1, so two bit sets hold a row.
    """
    if not left:
        return len(right)
    places: dict[str, int] = {}
    for index, letter in enumerate(left):
        places[letter] = places.get(letter, 0) | 1 << index
    every, last = (1 << len(left)) - 1, 1 << len(left) - 1
    rising, falling, distance = every, 0, len(left)
    for letter in right:
        same = places.get(letter, 0)
        diagonal = (((same & rising) + rising) ^ rising) | same | falling
        up = falling | ~(diagonal | rising) & every
        down = rising & diagonal
        distance += bool(up & last) - bool(down & last)
        up = up << 1 | 1
        rising = (down << 1 | ~(diagonal | up)) & every
        falling = up & diagonal & every
    return distance


def edit_similarity(text: str, target: str) -> float:
    """Flow-GRPO's OCR score: 1 - distance/length, with distance 0 if the text contains the target.

    Flow-GRPO divides by zero on an empty target; here only an empty text matches it.
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


def soft_lcs(letters: Sequence[Posteriors], blank: Sequence[Posteriors], targets: Sequence[str]) -> NDArray[np.float64]:
    """Share of each target that its posteriors contain in order, each letter credited by its order of magnitude.

    `letters[i][t, k]` is the probability that frame t of reading i shows letter k of its target. Letters are assigned
    to increasing frames so that the sum of clip(1 + log10(p) / DECADES, 0, 1) is greatest. A letter that repeats
    the previous one needs a blank frame before it, because CTC reads an unbroken run as one letter. Readings with the
    same number of frames and letters are computed together.
    """
    scores = np.zeros(len(targets))
    same_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, posteriors in enumerate(letters):
        same_shape[posteriors.shape].append(index)
    for (frames, length), members in same_shape.items():
        if frames and length:
            repeats = np.array([_repeats(targets[index]) for index in members])
            letters_BTK = np.stack([letters[index] for index in members])
            scores[members] = _soft_lcs(letters_BTK, np.stack([blank[index] for index in members]), repeats)
    return scores


def _repeats(target: str) -> list[bool]:
    return [False, *(letter == before for before, letter in itertools.pairwise(target))]


def _soft_lcs(letters_BTK: Posteriors, blank_BT: Posteriors, repeats_BK: NDArray[np.bool_]) -> NDArray[np.float64]:
    rows, frames, length = letters_BTK.shape
    credit_BTK = np.clip(1.0 + np.log10(np.maximum(letters_BTK, 1e-12, dtype=np.float64)) / DECADES, 0.0, 1.0)
    # A separator counts fully once blank is likelier than all other classes together: greedy decoding splits there.
    separator_BT = np.zeros((rows, frames))
    separator_BT[:, 1:] = np.clip(2.0 * blank_BT[:, :-1].astype(np.float64), 0.0, 1.0)
    # best[t] is the greatest credit of the letters so far on the frames before t.
    best = np.zeros((rows, frames + 1))
    for index in range(length):
        repeated = repeats_BK[:, index, None]
        gain = np.where(repeated, credit_BTK[:, :, index] * separator_BT, credit_BTK[:, :, index])
        before = best[:, :-1].copy()
        before[:, 1:] = np.where(repeated, best[:, :-2], best[:, 1:-1])
        best[:, 1:] = np.maximum(best[:, 1:], before + gain)
        best = np.maximum.accumulate(best, axis=1)
    return np.asarray(best[:, -1] / length)


def extra_glyphs(text: str, target: str) -> float:
    """Glyphs read beyond the target's length, in lengths of the target."""
    wanted = len(normalise(target))
    return max(0, len(normalise(text)) - wanted) / max(1, wanted)


def graded(edit: float, soft: float, extra: float) -> float:
    """Half edit similarity, half soft LCS less the extra glyphs.

    The CTC likelihood of the target is not used: it prefers a blank image to a word with two wrong letters.
    """
    return min(max(0.5 * edit + 0.5 * (soft - extra), 0.0), 1.0)

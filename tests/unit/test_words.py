"""The words world: a split that cannot leak, pictures that depend on the seed alone, and the letters' encoder."""

import hashlib

import numpy as np
import pytest

from spotlight.compute.data import words
from spotlight.compute.data.glyphs import FACES, LETTERS, atlas
from spotlight.compute.data.worlds import WORDS as WORLD
from spotlight.compute.models.families import LETTERS as CHARACTERS
from spotlight.compute.models.families import WORDS, WORDS_LARGE
from spotlight.core.errors import InputError, PromptError
from spotlight.core.rng import Purpose, derive_key, generator
from spotlight.core.types import Prompt

TRAIN = {prompt.target for prompt in words.prompts("train")}
TEST = {prompt.target for prompt in words.prompts("test")}


def rng_of(seed: int) -> np.random.Generator:
    return generator(derive_key(Purpose.DATA, seed))


def picture(word: str, seed: int) -> np.ndarray:
    return words.render(words.prompt_for(word), rng_of(seed))


def test_splits_are_disjoint_and_cover_every_word_once():
    listed = words.english()
    assert not TRAIN & TEST
    assert set(listed) == TRAIN | TEST
    assert len(words.prompts("train")) + len(words.prompts("test")) == len(listed) == len(set(listed))
    assert 0.15 < len(TEST) / len(listed) < 0.25


def test_every_listed_word_can_be_drawn_and_encoded():
    for word in words.english():
        assert words.MIN_LETTERS <= len(word) <= words.MAX_LETTERS
        assert set(word) <= set(LETTERS)
        assert words.letters_of(words.prompt_for(word)) == list(word)
    assert CHARACTERS.width >= words.MAX_LETTERS


def test_split_does_not_change():
    """The held-out words are part of every published figure."""
    joined = " ".join(prompt.target for prompt in words.prompts("test"))
    assert [prompt.target for prompt in words.prompts("test")[:3]] == ["often", "mask", "cow"]
    assert hashlib.sha256(joined.encode()).hexdigest()[:32] == "bae1e537dc80527e0cb67bf0d2b52def"
    assert sorted(TEST) != [prompt.target for prompt in words.prompts("test")]


def test_training_streams_never_yield_a_test_word():
    rng = rng_of(0)
    drawn = [words.pretraining_prompt(rng).target for _ in range(6000)]
    made_up = [words.made_up_word(rng) for _ in range(6000)]
    assert not TEST & {*drawn, *made_up}
    assert not TRAIN & set(made_up)
    from_list = sum(word in TRAIN for word in drawn)
    assert 0.45 < from_list / len(drawn) < 0.55
    assert all(words.MIN_LETTERS <= len(word) <= words.MAX_LETTERS for word in made_up)


def test_made_up_words_could_be_test_words_were_they_not_excluded():
    """The exclusion is needed: the syllables do spell words of the held-out split."""
    spelt = {onset + vowel + coda for onset in words.ONSETS for vowel in words.VOWELS for coda in words.CODAS}
    assert spelt & TEST


def test_unknown_split_is_refused_with_a_suggestion():
    with pytest.raises(InputError, match="did you mean 'train'"):
        words.prompts("trian")


def test_render_of_a_fixed_seed_keeps_its_golden_digest():
    drawn = np.stack([picture(word, seed) for word, seed in (("river", 0), ("fox", 1), ("letters", 2))])
    assert drawn.shape == (3, 32, 96, 3)
    assert drawn.dtype == np.uint8
    assert hashlib.sha256(drawn.tobytes()).hexdigest()[:32] == "8f9fed23f9a7b5964f2d8a25c0c6905c"


def test_render_follows_the_seed_and_the_word():
    assert np.array_equal(picture("river", 3), picture("river", 3))
    assert not np.array_equal(picture("river", 3), picture("river", 4))
    assert not np.array_equal(picture("river", 3), picture("rover", 3))


@pytest.mark.parametrize("word", ["o", "elf", "letters"])
def test_render_shows_each_letter_in_its_cell_with_contrast(word):
    """Cell by cell the picture is a blend of two colours by one face's glyph, at most one pixel off the centre."""
    left = (96 - 12 * len(word)) // 2
    for seed in range(12):
        drawn = picture(word, seed).astype(np.float64)
        paper = drawn[0, 0]
        painted = np.abs(drawn - paper).max(-1) > 30
        columns = np.flatnonzero(painted.any(0))
        assert columns.min() >= left - 1
        assert columns.max() <= left + 12 * len(word)
        for position in range(len(word)):
            cell = painted[:, left + 12 * position + 1 : left + 12 * position + 11]
            assert cell.sum() > 8


@pytest.mark.parametrize("target", [None, "", "eightish", "Ab", "naïve", "a b"])
def test_word_that_cannot_be_drawn_is_refused(target):
    with pytest.raises(PromptError, match="cannot be drawn"):
        words.render(Prompt(text="anything", target=target), rng_of(0))


def test_atlas_holds_every_letter_in_every_face():
    cells = atlas()
    assert cells.shape == (len(FACES), 26, 32, 12)
    assert (cells.reshape(len(FACES), 26, -1).max(-1) > 200).all()
    assert len({cell.tobytes() for face in cells for cell in face}) == len(FACES) * 26


def test_world_takes_the_same_held_out_words_every_time():
    taken = WORLD.held_out(50)
    assert taken == WORLD.held_out(60)[:50]
    assert {prompt.target for prompt in taken} <= TEST
    assert len(set(taken)) == 50


@pytest.mark.parametrize("text", ["river", 'the word "river', 'the word ""', 'two "words" and "more"', ""])
def test_prompt_without_one_quoted_word_is_refused(text):
    with pytest.raises(PromptError, match="no word between two double quotes"):
        CHARACTERS.encode(Prompt(text=text))


@pytest.mark.parametrize("spec", [WORDS, WORDS_LARGE], ids=lambda spec: spec.family)
def test_specs_allow_every_sequence_parallel_degree_that_divides_twelve(spec):
    image_tokens = (spec.size.height // spec.patch) * (spec.size.width // spec.patch)
    assert image_tokens % 12 == 0
    assert spec.text.width % 12 == 0
    assert sum(spec.rope_axes) == spec.head_dim

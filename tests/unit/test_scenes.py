"""Synthetic scenes: the prompt lists and their split, and pictures that show exactly what the prompt describes."""

import itertools
from collections import Counter

import msgspec
import numpy as np
import pytest
from scipy import ndimage

from spotlight.compute.data import scenes
from spotlight.core.errors import InputError, PromptError
from spotlight.core.types import Clause, Prompt, SceneSpec

EVERY = scenes.prompts("train") + scenes.prompts("test")
BY_TEXT = {prompt.text: prompt for prompt in EVERY}
PINNED = [
    "a photo of a square",
    "a photo of a square and a triangle",
    "a photo of a square and a cross",
    "a photo of a triangle and a square",
    "a photo of a cross and a square",
    "a photo of two circles",
    "a photo of four circles",
    "a photo of three squares",
]


def of_task(task: str) -> list[Prompt]:
    return [prompt for prompt in EVERY if prompt.scene.tag == task]


def test_every_prompt_is_enumerated_once():
    assert Counter(p.scene.tag for p in EVERY) == {
        "single_object": 4,
        "two_object": 12,
        "counting": 12,
        "colors": 32,
        "position": 48,
        "color_attr": 12 * 56,
    }
    assert len(BY_TEXT) == len(EVERY)


def test_test_split_has_its_share_of_every_task():
    held_out = Counter(p.scene.tag for p in scenes.prompts("test"))
    assert held_out["single_object"] == 1
    for task in scenes.Task:
        if task is not scenes.Task.SINGLE_OBJECT:
            assert held_out[task] >= 3
            assert 0.1 < held_out[task] / len(of_task(task)) < 0.35


def test_no_scene_of_the_test_split_is_in_the_train_split_under_another_wording():
    def meaning(prompt: Prompt) -> object:
        clauses = prompt.scene.include
        if prompt.scene.tag == "position":
            subject, (relation, _) = clauses[1].class_name, clauses[1].position
            first, second = clauses[0].class_name, subject
            return {
                "left of": (second, "x", first),
                "right of": (first, "x", second),
                "above": (second, "y", first),
                "below": (first, "y", second),
            }[relation]
        return frozenset((c.class_name, c.count, c.color) for c in clauses)

    train = {(p.scene.tag, meaning(p)) for p in scenes.prompts("train")}
    assert not train & {(p.scene.tag, meaning(p)) for p in scenes.prompts("test")}


def test_split_does_not_change():
    """The held-out prompts are part of every published figure."""
    small = [p.text for p in scenes.prompts("test") if p.scene.tag in ("single_object", "two_object", "counting")]
    assert small == PINNED
    assert scenes.prompts("test") == scenes.prompts("test")


@pytest.mark.parametrize("split", ["tests", "validation"])
def test_unknown_split_is_named(split):
    with pytest.raises(InputError, match=f"'{split}'.*test"):
        scenes.prompts(split)


@pytest.mark.parametrize(
    ("text", "scene"),
    [
        ("a photo of a circle", {"tag": "single_object", "include": [{"class": "circle", "count": 1}]}),
        (
            "a photo of a circle and a square",
            {"tag": "two_object", "include": [{"class": "circle", "count": 1}, {"class": "square", "count": 1}]},
        ),
        (
            "a photo of three crosses",
            {
                "tag": "counting",
                "include": [{"class": "cross", "count": 3}],
                "exclude": [{"class": "cross", "count": 4}],
            },
        ),
        (
            "a photo of an orange circle",
            {"tag": "colors", "include": [{"class": "circle", "count": 1, "color": "orange"}]},
        ),
        (
            "a photo of a circle left of a square",
            {
                "tag": "position",
                "include": [
                    {"class": "square", "count": 1},
                    {"class": "circle", "count": 1, "position": ["left of", 0]},
                ],
            },
        ),
        (
            "a photo of a red circle and a blue square",
            {
                "tag": "color_attr",
                "include": [
                    {"class": "circle", "count": 1, "color": "red"},
                    {"class": "square", "count": 1, "color": "blue"},
                ],
            },
        ),
    ],
)
def test_metadata_round_trips_in_genevals_own_keys(text, scene):
    prompt = BY_TEXT[text]
    encoded = msgspec.json.encode(prompt.scene)
    assert msgspec.json.decode(encoded) == scene
    assert msgspec.json.decode(encoded, type=SceneSpec) == prompt.scene


def test_vocabulary_is_exactly_the_words_of_the_prompts():
    assert set(scenes.VOCABULARY.tokens) == set(itertools.chain(*(p.text.split() for p in EVERY)))
    assert list(scenes.VOCABULARY.tokens) == sorted(set(scenes.VOCABULARY.tokens))


def blobs(image: np.ndarray) -> tuple[np.ndarray, int]:
    """Connected regions that differ from the corner pixel, which no object reaches."""
    return ndimage.label((np.abs(image.astype(int) - image[0, 0]).max(axis=-1)) > 12)


@pytest.mark.parametrize("task", list(scenes.Task))
def test_pictures_hold_the_wanted_number_of_separate_objects_inside_the_canvas(task):
    rng = np.random.default_rng(11)
    for prompt in of_task(task)[:: max(1, len(of_task(task)) // 24)]:
        image = scenes.render(prompt, rng)
        assert image.shape == (48, 48, 3)
        assert image.dtype == np.uint8
        labels, number = blobs(image)
        assert number == sum(clause.count for clause in prompt.scene.include)
        border = np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]])
        assert not border.any()


def test_a_given_colour_is_drawn_and_an_open_one_varies():
    red = scenes.render(BY_TEXT["a photo of a red square"], np.random.default_rng(0))
    assert (red == scenes.PALETTE["red"]).all(axis=-1).sum() > 50
    values = {
        name
        for seed in range(40)
        for name, rgb in scenes.PALETTE.items()
        if (scenes.render(BY_TEXT["a photo of a square"], np.random.default_rng(seed)) == rgb).all(-1).sum() > 50
    }
    assert len(values) >= 6


@pytest.mark.parametrize("relation", scenes.RELATIONS)
def test_positions_are_clear(relation):
    """The subject is found by its colour: exactly two colours are asked for, so no detector is needed."""
    scene = SceneSpec(
        tag="position",
        include=(
            Clause(class_name="square", count=1, color="blue"),
            Clause(class_name="circle", count=1, color="red", position=(relation, 0)),
        ),
    )
    for seed in range(40):
        image = scenes.render(Prompt(text="", scene=scene), np.random.default_rng(seed))
        red, blue = (np.argwhere((image == scenes.PALETTE[name]).all(axis=-1)).mean(axis=0) for name in ("red", "blue"))
        dy, dx = red - blue
        wanted, other = {
            "left of": (-dx, dy),
            "right of": (dx, dy),
            "above": (-dy, dx),
            "below": (dy, dx),
        }[relation]
        assert wanted > 9
        assert abs(other) < 0.6 * wanted


def test_render_depends_on_the_seed_alone():
    prompt = BY_TEXT["a photo of four triangles"]
    first = scenes.render(prompt, np.random.default_rng(5))
    scenes.render(BY_TEXT["a photo of a circle"], np.random.default_rng(6))
    assert (first == scenes.render(prompt, np.random.default_rng(5))).all()
    assert (first != scenes.render(prompt, np.random.default_rng(7))).any()


def test_edges_are_anti_aliased():
    image = scenes.render(BY_TEXT["a photo of a red circle"], np.random.default_rng(0)).astype(int)
    flat = [np.abs(image - value).max(axis=-1) <= 2 for value in (image[0, 0], scenes.PALETTE["red"])]
    assert (~flat[0] & ~flat[1]).sum() > 8


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        (None, "no scene metadata"),
        (SceneSpec(tag="single_object", include=(Clause(class_name="cirle", count=1),)), "did you mean 'circle'"),
        (
            SceneSpec(tag="colors", include=(Clause(class_name="circle", count=1, color="gren"),)),
            "did you mean 'green'",
        ),
        (SceneSpec(tag="counting", include=(Clause(class_name="circle", count=40),)), "40 objects"),
    ],
)
def test_scene_that_cannot_be_drawn_is_refused_in_one_sentence(scene, words):
    with pytest.raises(PromptError, match=words):
        scenes.render(Prompt(text="a photo of a thing", scene=scene), np.random.default_rng(0))

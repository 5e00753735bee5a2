"""The order of prompts is a pure function of seed and position."""

from collections import Counter

import pytest

from spotlight.compute.data import scenes
from spotlight.compute.data.order import PromptOrder
from spotlight.compute.data.worlds import SCENES, WORDS, world
from spotlight.core.errors import InputError
from spotlight.core.types import Clause, Prompt, SceneSpec

PLAIN = [Prompt(text=f"prompt {number}") for number in range(7)]


def tagged(tag: str, count: int) -> list[Prompt]:
    scene = SceneSpec(tag=tag, include=(Clause(class_name="dog", count=1),))
    return [Prompt(text=f"{tag} {number}", scene=scene) for number in range(count)]


def test_order_of_one_task_holds_each_prompt_once_per_epoch():
    order = PromptOrder(PLAIN, run_seed=1)
    epochs = [order.take(7 * epoch, 7) for epoch in range(4)]
    assert all(set(epoch) == set(PLAIN) for epoch in epochs)
    assert len({tuple(prompt.text for prompt in epoch) for epoch in epochs}) == 4


def test_order_of_uneven_tasks_has_each_task_equally_often():
    order = PromptOrder([*tagged("few", 2), *tagged("many", 10), *tagged("some", 5)], run_seed=0)
    taken = order.take(0, 60)
    assert Counter(prompt.scene.tag for prompt in taken) == {"few": 20, "many": 20, "some": 20}
    for start in range(0, 57):
        assert len({prompt.scene.tag for prompt in taken[start : start + 3]}) == 3
    many = [prompt.text for prompt in taken if prompt.scene.tag == "many"]
    assert len(set(many[:10])) == len(set(many[10:])) == 10
    few = [prompt.text for prompt in taken if prompt.scene.tag == "few"]
    assert all(set(few[i : i + 2]) == {"few 0", "few 1"} for i in range(0, 20, 2))


def test_order_is_a_pure_function_of_position():
    mixed = [*tagged("few", 2), *tagged("many", 10)]
    order = PromptOrder(mixed, run_seed=5)
    whole = order.take(0, 50)
    for start, count in ((49, 1), (0, 3), (17, 20), (30, 0)):
        assert PromptOrder(mixed, run_seed=5).take(start, count) == order.take(start, count) == whole[start:][:count]


def test_order_follows_the_run_seed():
    orders = {tuple(p.text for p in PromptOrder(PLAIN, seed).take(0, 7)) for seed in range(10)}
    assert len(orders) > 8


def test_order_does_not_change():
    """Resume starts from a position, so the order of an unfinished run must not drift between releases."""
    assert [prompt.text[-1] for prompt in PromptOrder(PLAIN, 0).take(0, 14)] == list("10436250413256")


def test_order_of_no_prompts_is_refused():
    with pytest.raises(InputError, match="the prompt set is empty"):
        PromptOrder([], run_seed=0)


def test_held_out_scenes_come_in_equal_numbers_of_each_task():
    taken = Counter(prompt.scene.tag for prompt in SCENES.held_out(60))
    assert set(taken) == {task.value for task in scenes.Task}
    assert set(taken.values()) == {10}


def test_unknown_world_is_refused_with_a_suggestion():
    assert world("words-large") is WORDS
    with pytest.raises(InputError, match="did you mean 'words'"):
        world("wrds")

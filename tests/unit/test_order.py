"""The order of prompts is a pure function of seed and position; prompt files load or say which line is wrong."""

import json
from collections import Counter

import pytest

from spotlight.compute.data import scenes
from spotlight.compute.data.order import PromptOrder
from spotlight.compute.data.prompts import load_prompts
from spotlight.compute.data.worlds import SCENES, WORDS, world
from spotlight.core.errors import InputError, PromptError
from spotlight.core.types import Clause, Prompt, SceneSpec

PLAIN = [Prompt(text=f"prompt {number}") for number in range(7)]
GENEVAL = {
    "tag": "position",
    "include": [{"class": "dog", "count": 1}, {"class": "cat", "count": 1, "position": ["left of", 0]}],
    "prompt": "a photo of a cat left of a dog",
}


def tagged(tag: str, count: int) -> list[Prompt]:
    scene = SceneSpec(tag=tag, include=(Clause(class_name="dog", count=1),))
    return [Prompt(text=f"{tag} {number}", scene=scene) for number in range(count)]


def test_order_of_one_task_holds_each_prompt_once_per_epoch():
    order = PromptOrder(PLAIN, run_seed=1)
    epochs = [order.take(7 * epoch, 7) for epoch in range(4)]
    assert all(set(epoch) == set(PLAIN) for epoch in epochs)
    assert len({tuple(prompt.text for prompt in epoch) for epoch in epochs}) == 4


def test_order_of_uneven_tasks_gives_each_task_equal_turns():
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


# --- prompt files ---


def test_split_name_loads_the_split_of_the_world():
    assert load_prompts("test", SCENES) == scenes.prompts("test")
    with pytest.raises(InputError, match="no split"):
        load_prompts("tst", SCENES)


def test_text_file_loads_one_prompt_per_line_with_its_quoted_target(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text('  a sign that says "café"\n\nno word here\ntwo "words" are "none"\n', encoding="utf-8")
    assert load_prompts(str(file), WORDS) == [
        Prompt(text='a sign that says "café"', target="café"),
        Prompt(text="no word here"),
        Prompt(text='two "words" are "none"'),
    ]


def test_geneval_file_loads_its_scenes(tmp_path):
    file = tmp_path / "evaluation_metadata.jsonl"
    counting = {**GENEVAL, "tag": "counting", "exclude": [{"class": "dog", "count": 2}], "prompt": "one dog"}
    file.write_text(f"{json.dumps(GENEVAL)}\n\n{json.dumps(counting)}\n")
    first, second = load_prompts(str(file), SCENES)
    assert first.text == "a photo of a cat left of a dog"
    assert first.scene == SceneSpec(
        tag="position",
        include=(
            Clause(class_name="dog", count=1),
            Clause(class_name="cat", count=1, position=("left of", 0)),
        ),
    )
    assert second.scene.exclude == (Clause(class_name="dog", count=2),)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("not json", id="not-json"),
        pytest.param('["a list"]', id="list"),
        pytest.param("7", id="number"),
        pytest.param(json.dumps({key: GENEVAL[key] for key in ("include", "prompt")}), id="no-tag"),
        pytest.param(json.dumps({key: GENEVAL[key] for key in ("tag", "prompt")}), id="no-include"),
        pytest.param(json.dumps({key: GENEVAL[key] for key in ("tag", "include")}), id="no-prompt"),
        pytest.param(json.dumps({**GENEVAL, "prompt": 5}), id="prompt-number"),
        pytest.param(json.dumps({**GENEVAL, "tag": None}), id="tag-null"),
        pytest.param(json.dumps({**GENEVAL, "include": [{"count": 1}]}), id="no-class"),
        pytest.param(json.dumps({**GENEVAL, "include": [{"class": "dog", "count": "one"}]}), id="count-text"),
        pytest.param(json.dumps({**GENEVAL, "exclude": "dog"}), id="exclude-text"),
    ],
)
def test_geneval_file_with_a_bad_line_is_refused_by_its_place(tmp_path, line):
    file = tmp_path / "bad.jsonl"
    file.write_text(f"{json.dumps(GENEVAL)}\n\n{line}\n")
    with pytest.raises(PromptError, match=r"bad\.jsonl:3 is not GenEval metadata"):
        load_prompts(str(file), SCENES)


def test_prompt_file_that_is_missing_empty_or_not_text_is_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load_prompts(str(tmp_path / "absent.txt"), WORDS)
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(PromptError, match="holds no prompt"):
        load_prompts(str(tmp_path / "empty.txt"), WORDS)
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(PromptError, match="not UTF-8"):
        load_prompts(str(tmp_path / "latin.txt"), WORDS)

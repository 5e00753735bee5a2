"""Prompt files: read whole, or refused with every line that is wrong."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from spotlight.compute.data import scenes
from spotlight.compute.data.config import DataConfig
from spotlight.compute.data.prompts import load_prompts, prompt_sets, read_prompts, run_prompts
from spotlight.compute.data.worlds import SCENES, WORDS
from spotlight.core.errors import InputError, PromptError
from spotlight.core.types import Clause, Prompt, SceneSpec

GENEVAL = {
    "tag": "position",
    "include": [{"class": "dog", "count": 1}, {"class": "cat", "count": 1, "position": ["left of", 0]}],
    "prompt": "a photo of a cat left of a dog",
}


def written(path: Path, *lines: object) -> str:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines), "utf-8")
    return str(path)


def test_split_name_loads_the_split_of_the_world():
    assert load_prompts("test", SCENES) == scenes.prompts("test")
    with pytest.raises(InputError, match="no split"):
        load_prompts("tst", SCENES)


def test_text_file_loads_one_prompt_per_line_with_its_quoted_target(tmp_path):
    file = written(tmp_path / "p.txt", '  a sign that says "café"', "", "no word here", 'two "words" are "none"')
    assert load_prompts(file, WORDS) == [
        Prompt(text='a sign that says "café"', target="café"),
        Prompt(text="no word here"),
        Prompt(text='two "words" are "none"'),
    ]


def test_json_lines_load_plain_prompts_beside_scenes(tmp_path):
    counting = {**GENEVAL, "tag": "counting", "exclude": [{"class": "dog", "count": 2}], "prompt": "one dog"}
    plain = {"prompt": "a shop with a\u2028sign", "target": "open"}
    file = written(
        tmp_path / "p.jsonl", GENEVAL, "", counting, json.dumps(plain, ensure_ascii=False), {"prompt": 'a "hat"'}
    )
    position, counted, *others = load_prompts(file, SCENES)
    assert position.scene == SceneSpec(
        tag="position",
        include=(Clause(class_name="dog", count=1), Clause(class_name="cat", count=1, position=("left of", 0))),
    )
    assert counted.scene.exclude == (Clause(class_name="dog", count=2),)
    assert others == [Prompt(text="a shop with a\u2028sign", target="open"), Prompt(text='a "hat"', target="hat")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("not json", "JSON is malformed"),
        (["a list"], "Expected `object`, got `array`"),
        ("7", "Expected `object`, got `int`"),
        ({key: GENEVAL[key] for key in ("include", "prompt")}, "missing required field `tag`"),
        ({key: GENEVAL[key] for key in ("tag", "prompt")}, "missing required field `include`"),
        ({key: GENEVAL[key] for key in ("tag", "include")}, "missing required field `prompt`"),
        ({**GENEVAL, "prompt": 5}, "Expected `str`"),
        ({**GENEVAL, "include": [{"count": 1}]}, "missing required field `class`"),
        ({**GENEVAL, "include": [{"class": "dog", "count": 1, "colour": "red"}]}, "unknown field `colour`"),
        ({**GENEVAL, "exclude": "dog"}, "Expected `array`"),
        ({"prompt": "a hat", "targt": "hat"}, "unknown field `targt`"),
        ({"prompt": "a hat", "target": 3}, "Expected `str | null`"),
        ({"prompt": "  "}, "an empty prompt or target"),
        ({"prompt": "a hat", "target": ""}, "an empty prompt or target"),
        ({"prompt": "a cat", "target": "dog"}, "the text of line 1 with another target or scene"),
    ],
)
def test_bad_line_is_refused_by_its_number_and_reason(tmp_path, line, reason):
    file = written(tmp_path / "bad.jsonl", {"prompt": "a cat", "target": "cat"}, "", line)
    with pytest.raises(PromptError) as refused:
        load_prompts(file, SCENES)
    assert f"{file} has 1 bad of 2 lines: line 3 (" in str(refused.value)
    assert reason in str(refused.value)


def test_file_with_many_bad_lines_is_refused_with_all_of_them_the_first_ten_spelt_out(tmp_path):
    lines = [{"prompt": f"number {number}", "text": "?"} if number % 2 else {"prompt": "x"} for number in range(30)]
    with pytest.raises(PromptError) as refused:
        load_prompts(written(tmp_path / "bad.jsonl", *lines), WORDS)
    message = str(refused.value)
    assert "15 bad of 30 lines" in message
    assert [number for number in range(1, 31) if f"line {number} (" in message] == list(range(2, 21, 2))
    assert "5 more" in message


def test_prompt_file_that_is_missing_empty_or_not_text_is_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load_prompts(str(tmp_path / "absent.txt"), WORDS)
    with pytest.raises(PromptError, match="holds no prompt"):
        load_prompts(written(tmp_path / "empty.txt", "", " "), WORDS)
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(PromptError, match="not UTF-8"):
        load_prompts(str(tmp_path / "latin.txt"), WORDS)
    with pytest.raises(InputError, match=r"is not a \.txt, \.jsonl or \.parquet file"):
        load_prompts(written(tmp_path / "prompts.csv", "a hat"), WORDS)


def test_prompt_has_its_line_and_repeated_ones_are_kept_and_counted(tmp_path):
    prompts = read_prompts(written(tmp_path / "p.txt", "a hat", "", "a cat", "a hat"), WORDS)
    assert [prompts.place(index) for index in range(3)] == ["line 1", "line 3", "line 4"]
    assert len(prompts.prompts) == 3
    assert prompts.repeated == 1


def test_held_out_prompts_of_a_file_come_again_where_an_evaluation_wants_more(tmp_path):
    data = DataConfig(held_out=written(tmp_path / "held.txt", 'the word "hat"', 'the word "cat"'))
    prompts = run_prompts(data, WORDS)
    drawn = [prompt.target for prompt in prompts.evaluated(6)]
    assert [set(drawn[start : start + 2]) for start in (0, 2, 4)] == [{"hat", "cat"}] * 3
    assert prompts.training == tuple(WORDS.prompts("train"))


def test_held_out_prompts_of_the_family_are_those_of_every_other_evaluation():
    assert run_prompts(DataConfig(), WORDS).evaluated(40) == WORDS.held_out(40)
    assert run_prompts(DataConfig(), WORDS).shared(40) == []


def test_held_out_prompts_that_are_trained_on_are_found(tmp_path):
    mine = written(tmp_path / "mine.txt", 'the word "hat"', 'the word "cat"')
    held_out = written(tmp_path / "held_out.txt", 'the word "cat"', 'the word "dog"')
    prompts = run_prompts(DataConfig(prompts=mine, held_out=held_out), WORDS)
    assert [prompt.target for prompt in prompts.shared(8)] == ["cat"]


def test_text_with_one_target_to_train_on_and_another_held_out_is_refused(tmp_path):
    mine = written(tmp_path / "mine.jsonl", {"prompt": "a hat", "target": "hat"})
    held_out = written(tmp_path / "held_out.jsonl", {"prompt": "a cat"}, {"prompt": "a hat", "target": "cap"})
    with pytest.raises(
        PromptError, match=r"'a hat' \(line 2 of .*held_out.jsonl\) has another target or scene in .*mine"
    ):
        run_prompts(DataConfig(prompts=mine, held_out=held_out), WORDS)


def test_share_holds_out_about_that_part_of_a_file_and_keeps_the_line_numbers(tmp_path):
    file = written(tmp_path / "p.txt", *(f"prompt {number}" for number in range(1, 1001)))
    training, held_out = prompt_sets(DataConfig(prompts=file, held_out=0.1), None)
    assert 60 < len(held_out.prompts) < 140
    assert len(training.prompts) + len(held_out.prompts) == 1000
    for prompts in (training, held_out):
        assert [prompts.place(index) for index in range(9)] == [
            prompt.text.replace("prompt", "line") for prompt in prompts.prompts[:9]
        ]


@pytest.mark.parametrize(("share", "empty"), [(1e-9, "held out"), (1 - 1e-9, "to train on")])
def test_share_that_leaves_a_set_empty_is_refused_with_the_numbers(tmp_path, share, empty):
    file = written(tmp_path / "p.txt", "a hat", "a cat", "a hat")
    with pytest.raises(PromptError, match=f"of the 2 different prompts of .*p.txt that leaves none {empty}"):
        run_prompts(DataConfig(prompts=file, held_out=share), None)


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, True])
def test_share_outside_0_to_1_is_refused(share):
    with pytest.raises(ValidationError, match="a share is between 0 and 1"):
        DataConfig(held_out=share)

"""Prompts in parquet files and datasets: read by columns, or refused with every bad row."""

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import spotlight

from spotlight.compute.data.prompts import load_prompts, read_prompts
from spotlight.compute.data.worlds import WORDS
from spotlight.core.errors import EnvironmentProblem, InputError, PromptError
from spotlight.core.types import Prompt

COLUMNS = {"prompt": ['the word "hat"', "a cat", "a dog"], "target": [None, "cat", None]}
PROMPTS = [Prompt(text='the word "hat"', target="hat"), Prompt(text="a cat", target="cat"), Prompt(text="a dog")]


def written(path: Path, **columns: list) -> str:
    # Imported where it is used, as datasets is: every process that collects the tests would load both.
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return str(path)


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch):
    """The working folder stands in for the hub: datasets reads owner/name there first."""
    import datasets

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def saved(folder: Path, **columns: list) -> str:
    import datasets

    datasets.Dataset.from_dict(columns).save_to_disk(folder)
    return str(folder)


@pytest.mark.parametrize(
    "source",
    [
        lambda folder: written(folder / "p.parquet", **COLUMNS),
        lambda folder: saved(folder / "saved", **COLUMNS, id=[1, 2, 3]),
        lambda folder: written(folder / "me" / "words" / "train.parquet", **COLUMNS, id=[1, 2, 3]) and "hf:me/words",
        lambda folder: written(folder / "me" / "words" / "test.parquet", **COLUMNS) and "hf:me/words:test",
        lambda folder: written(folder / "me" / "words" / "test.parquet", **COLUMNS) and "hf:me/words",
    ],
    ids=["parquet", "saved", "hub", "hub-split", "hub-only-split"],
)
def test_table_gives_its_prompts_with_quoted_and_named_targets_and_rows_from_0(tmp_path, source):
    found = read_prompts(source(tmp_path), None)
    assert list(found.prompts) == PROMPTS
    assert [found.place(index) for index in range(3)] == ["row 0", "row 1", "row 2"]


def test_table_without_targets_is_read(tmp_path):
    assert load_prompts(written(tmp_path / "p.parquet", prompt=["a cat"]), None) == [Prompt(text="a cat")]


@pytest.mark.parametrize(("make", "sort"), [(written, "bad.parquet"), (saved, "bad")], ids=["parquet", "saved"])
def test_bad_rows_are_refused_by_their_numbers_and_reasons(tmp_path, make, sort):
    source = make(tmp_path / sort, prompt=["a cat", " ", "a dog", None, "a cat"], target=["x", None, "dog", None, "y"])
    with pytest.raises(PromptError) as refused:
        load_prompts(source, None)
    message = str(refused.value)
    assert f"{source} has 3 bad of 5 rows: row 1 (an empty prompt or target), row 3 (" in message
    assert "row 4 (the text of row 0 with another target or scene)" in message


def test_rows_of_numbers_are_refused(tmp_path):
    with pytest.raises(PromptError, match=r"2 bad of 2 rows: row 0 \(Expected `str`, got `int`"):
        load_prompts(written(tmp_path / "p.parquet", prompt=[1, 2]), None)


def test_other_columns_are_refused_with_all_columns_named(tmp_path):
    with pytest.raises(PromptError, match=r"has the columns caption, id, but .* there is no prompt"):
        load_prompts(saved(tmp_path / "saved", caption=["a cat"], id=[1]), None)
    with pytest.raises(PromptError, match=r"has the columns prompt, targt, but .* targt would be ignored"):
        load_prompts(written(tmp_path / "p.parquet", prompt=["a cat"], targt=["cat"]), None)


def test_table_that_is_missing_empty_or_damaged_is_refused(tmp_path):
    import pyarrow

    with pytest.raises(InputError, match="does not exist"):
        load_prompts("absent.parquet", WORDS)
    (tmp_path / "text.parquet").write_text("a cat")
    with pytest.raises(PromptError, match="cannot be read as parquet"):
        load_prompts("text.parquet", WORDS)
    with pytest.raises(PromptError, match="holds no prompt"):
        load_prompts(written(tmp_path / "empty.parquet", prompt=pyarrow.array([], pyarrow.string())), WORDS)
    Path(saved(tmp_path / "saved", prompt=["a cat"]), "data-00000-of-00001.arrow").unlink()
    with pytest.raises(PromptError, match="files are missing or damaged"):
        load_prompts("saved", WORDS)


def test_dataset_of_several_splits_needs_a_name_and_says_which(tmp_path):
    import datasets

    rows = datasets.Dataset.from_dict({"prompt": ["a cat"]})
    datasets.DatasetDict({"first": rows, "second": rows}).save_to_disk(tmp_path / "both")
    with pytest.raises(InputError, match=r"the splits first, second, .* such as both/first"):
        load_prompts("both", WORDS)
    assert load_prompts("both/second", WORDS) == [Prompt(text="a cat")]
    for split in ("test", "validation"):
        written(tmp_path / "me" / "words" / f"{split}.parquet", prompt=["a cat"])
    with pytest.raises(InputError, match=r"the splits .* and no train"):
        load_prompts("hf:me/words", None)
    with pytest.raises(InputError, match=r"hf:me/words:tset cannot be loaded .*tset"):
        load_prompts("hf:me/words:tset", None)


@pytest.mark.parametrize("source", ["hf:", "hf:words", "hf:../words", "hf:me/words:", "hf:/etc/words"])
def test_name_that_is_no_hub_id_is_refused(source):
    with pytest.raises(InputError, match="the form is hf:owner/name"):
        load_prompts(source, WORDS)


def test_hub_that_cannot_be_reached_is_a_problem_of_the_environment(monkeypatch):
    import datasets

    def unreachable(*_, **__):
        raise ConnectionError("Couldn't reach 'me/words' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(EnvironmentProblem, match="the hub cannot be reached"):
        load_prompts("hf:me/words", None)


@pytest.mark.parametrize(("source", "package"), [("p.parquet", "pyarrow"), ("hf:me/words", "datasets")])
def test_missing_library_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch, source, package):
    (tmp_path / "p.parquet").touch()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EnvironmentProblem, match=rf"{package} is not installed.*spotlight-rl\[data\]"):
        load_prompts(source, WORDS)


def test_reading_a_dataset_loads_no_torch(tmp_path):
    source = saved(tmp_path / "saved", **COLUMNS)
    program = (
        "import sys; from spotlight.compute.data.prompts import load_prompts; "
        "before = {'datasets', 'pyarrow'} & set(sys.modules); "
        f"load_prompts({source!r}, None); print(before, 'torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set() False"


def test_training_starts_from_a_parquet_file_and_a_share_of_it(tmp_path):
    words = written(tmp_path / "p.parquet", prompt=[f'the word "{word}"' for word in ("hat", "cat", "dog", "sun")])
    outcome = spotlight(
        "train", "words-nft", "--data.prompts", words, "--data.held_out", "0.5", "--reward.name", "jpeg", "--dry-run"
    )
    assert outcome.code == 0, outcome.err
    assert "3 training and 1 held-out prompts" in outcome.err

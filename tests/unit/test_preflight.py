"""Checks before a run starts: a problem of its inputs or its machine is one sentence, and nothing is written."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from command_line import spotlight

from spotlight.compute.models import families
from spotlight.compute.train import checkpoint
from spotlight.compute.train.trainer import Trainer
from spotlight.config import load_config
from spotlight.core.errors import EnvironmentProblem, InputError, PromptError, RewardError
from spotlight.folder import CHECKPOINTS_KEPT
from spotlight.preflight import PlannedRun, checks_of, preflight
from spotlight.preflight.inputs import check_prompts, check_prompts_and_reward
from spotlight.preflight.this_machine import (
    check_disk,
    check_folder,
    check_gang_port,
    check_sockets,
    copies_kept,
    disk_bytes,
)

REWARDS = """
import math

def right(images, prompts):
    return [float(image.mean()) for image in images]

def nan(images, prompts):
    return [math.nan for _ in images]

def too_few(images, prompts):
    return [1.0] * (len(images) - 1)

def broken():
    raise KeyError("the key of the far judge")

class Picky:
    name, version = "picky", "1"
    def problem_with(self, prompt):
        return None if len(prompt.text) % 2 else f"{prompt.text!r} has an even number of letters."
    def score(self, images, prompts):
        return [1.0 for _ in images]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with rewards in it; tracebacks are written beside it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("logs")))
    monkeypatch.chdir(tmp_path)
    # The forecast of a dry run, a simulation, is the subject of test_plan.py.
    monkeypatch.setattr("spotlight.surface.fleets.OWN_PROFILES", {})
    (tmp_path / "preflight_rewards.py").write_text(REWARDS)
    return tmp_path


def subject(*settings: str) -> PlannedRun:
    return PlannedRun.new(load_config("words-nft", settings), "words-nft")


def remarks(check, checked: PlannedRun) -> list[str]:
    return list(check(checked))


# --- reward ---


@pytest.mark.parametrize(
    ("reward", "mode", "parts"),
    [
        ("preflight_rewardd:right", [], ["cannot be imported", "No module named 'preflight_rewardd'", "reward.folder"]),
        ("preflight_rewards:nan", ["--dry-run"], ["returned nan for image 0", "finite number"]),
        ("preflight_rewards:too_few", [], ["a list of 5 numbers for 6 images", "one number per image"]),
        (
            "preflight_rewards:broken",
            ["--dry-run"],
            ["raised KeyError", "preflight_rewards.py line 14", "the whole traceback is in"],
        ),
    ],
)
def test_reward_that_cannot_score_is_one_sentence_before_anything_is_written(here, reward, mode, parts):
    outcome = spotlight("train", "words-nft", "--reward.name", reward, *mode)
    assert outcome.code == 2
    sentence = outcome.err.strip().splitlines()[-1]
    assert all(part in sentence for part in parts), sentence
    # Python may keep the bytecode of the module.
    assert {path.name for path in here.iterdir()} <= {"preflight_rewards.py", "__pycache__"}


def test_traceback_of_a_reward_is_in_the_file_that_the_error_names(here):
    outcome = spotlight("train", "words-nft", "--reward.name", "preflight_rewards:broken", "--dry-run")
    log = Path(outcome.err.strip().rstrip(".").rpartition(" ")[2])
    assert "the key of the far judge" in log.read_text()
    assert "in broken" in log.read_text()


def test_reward_that_checks_prompts_gets_all_of_them(here):
    (here / "mine.txt").write_text("".join(f'the word "{"x" * length}"\n' for length in (1, 2, 3, 4)))
    settings = ("data.prompts=mine.txt", "reward.name=preflight_rewards:Picky")
    with pytest.raises(PromptError) as refused:
        remarks(check_prompts_and_reward, subject(*settings))
    assert "2 of the 4 prompts of mine.txt cannot be used by the reward 'preflight_rewards:Picky'" in str(refused.value)
    assert "line 2:" not in str(refused.value)
    assert "line 1: 'the word \"x\"' has an even number of letters; line 3: " in str(refused.value)


def test_second_judge_is_checked_with_held_out_prompts_and_only_where_there_is_one(here):
    with pytest.raises(RewardError, match="'preflight_rewards:nan' returned nan for image 0"):
        remarks(check_prompts_and_reward, subject("reward.name=jpeg", "reward.judge=preflight_rewards:nan"))
    (judged,) = remarks(check_prompts_and_reward, subject("reward.name=jpeg", "reward.judge=preflight_rewards:right"))
    (plain,) = remarks(check_prompts_and_reward, subject("reward.name=jpeg"))
    assert ", judge preflight_rewards:right (source" in judged
    assert ", judge " not in plain


# --- prompts ---


def test_plain_words_without_a_target_are_refused_with_their_lines_in_train_and_dry_run(here):
    (here / "mine.txt").write_text('the word "river"\n\n' + "".join(f"a river {number}\n" for number in range(20)))
    before = sorted(here.iterdir())
    for mode in ([], ["--dry-run"]):
        outcome = spotlight("train", "words-nft", "--data.prompts", "mine.txt", *mode)
        assert outcome.code == 2
        sentence = outcome.err.strip().splitlines()[-1]
        assert "20 of the 21 prompts of mine.txt cannot be used by the model words: line 3: the prompt 'a river 0'" in (
            sentence
        )
        assert "no word between two double quotes" in sentence
        assert "line 12, 10 more" in sentence
    assert sorted(here.iterdir()) == before


def test_held_out_prompts_are_checked_too(here):
    (here / "held.jsonl").write_text('{"prompt": "the word \\"toolongforit\\""}\n')
    with pytest.raises(PromptError, match=r"1 of the 1 prompts of held.jsonl .* line 1: .* has 12 tokens"):
        remarks(check_prompts, subject("data.held_out=held.jsonl"))


def test_prompts_that_ocr_cannot_read_and_scenes_that_geneval_cannot_find_are_refused(here):
    (here / "scene.jsonl").write_text('{"prompt": "a photo of a circle"}\n')
    scenes = PlannedRun.new(load_config("scenes-nft", ["data.prompts=scene.jsonl"]), "scenes-nft")
    assert remarks(check_prompts, scenes) == []
    with pytest.raises(PromptError, match=r"scene.jsonl cannot be used by the reward 'geneval': line 1: .*no scene"):
        remarks(check_prompts_and_reward, scenes)


def test_prompts_that_repeat_or_are_held_out_as_well_are_reported_and_allowed(here):
    (here / "mine.txt").write_text('the word "river"\nthe word "lake"\nthe word "river"\n')
    found = remarks(check_prompts, subject("data.prompts=mine.txt", "data.held_out=mine.txt"))
    assert any("1 of the 3 prompts of mine.txt repeat an earlier one" in remark for remark in found)
    assert any("2 of the 2 held-out prompts are also trained on" in remark for remark in found)
    assert remarks(check_prompts, subject()) == []


def test_every_shipped_recipe_has_prompts_that_its_model_can_take():
    for recipe in ("words-nft", "words-large-nft", "scenes-nft"):
        assert remarks(check_prompts, PlannedRun.new(load_config(recipe), recipe)) == []


# --- machine ---


def test_run_folder_that_cannot_be_made_is_an_environment_error(here):
    with pytest.raises(EnvironmentProblem, match=r"/proc/spotlight/words-nft-1 cannot be written.*set output.folder"):
        remarks(check_folder, subject("output.folder=/proc/spotlight"))
    remarks(check_folder, subject("output.folder=new/folder"))
    assert not (here / "new").exists()


def test_run_folder_that_exists_is_refused_before_anything_slow(here):
    (here / "runs/mine").mkdir(parents=True)
    with pytest.raises(InputError, match="exists, and a run is never overwritten"):
        subject("output.name=mine")


def test_sockets_whose_path_would_be_too_long_are_refused():
    """A character of a name may take four bytes, and the kernel counts bytes."""
    remarks(check_sockets, subject(f"output.name={'a' * 40}"))
    with pytest.raises(InputError, match=r"bytes, but Linux takes 107; choose a shorter output.name"):
        remarks(check_sockets, subject(f"output.name={'🙂' * 40}"))


def test_folder_without_unix_sockets_is_an_environment_error(monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(EnvironmentProblem, match=r"no unix socket can be made in .*Operation not supported"):
        remarks(check_sockets, subject())


def test_limit_on_open_files_is_raised_if_permitted_and_else_refused():
    """In a process for each case, because a limit that was lowered cannot be raised again."""
    code = """
import os, resource, sys
from spotlight.config import load_config
from spotlight.core.errors import EnvironmentProblem
from spotlight.preflight.planned_run import PlannedRun
from spotlight.preflight.this_machine import check_open_files
for case in sys.argv[1:]:
    if os.fork():
        os.wait()
        continue
    soft, hard, spot = map(int, case.split())
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        list(check_open_files(PlannedRun.new(load_config("words-nft", [f"cluster.spot={spot}"]), "words-nft")))
    except EnvironmentProblem as problem:
        print(problem)
    else:
        print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    break
"""
    command = [sys.executable, "-c", code, "300 4000 2", "300 4000 200", "300 400 200"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    kept, raised, refused = done.stdout.splitlines()
    assert kept == "300"
    assert int(raised) > 300
    assert "1 reserved and 200 spot nodes of 1 slots" in refused
    assert "the limit is 400; raise it with `ulimit -n" in refused


def test_disk_that_is_too_small_is_refused_with_numbers_and_one_that_is_hardly_enough_is_reported(monkeypatch):
    checked = subject()
    needed = sum(disk_bytes(checked).values())

    def free(size: float) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=int(size)))

    free(3 * needed)
    assert remarks(check_disk, checked) == []
    free(1.5 * needed)
    assert "little more than the run needs" in remarks(check_disk, checked)[0]
    free(0.5 * needed)
    with pytest.raises(
        EnvironmentProblem, match=r"needs about 0\.\d\d GB .*checkpoints 0\.\d\d GB.* are free.*; free 0"
    ):
        remarks(check_disk, checked)


@pytest.mark.parametrize(
    "settings",
    [
        ["algorithm.kl_weight=0"],
        ["algorithm.kl_weight=0.1"],
        ["pipeline.asynchrony=true"],
        ["train.lora={rank: 4}"],
    ],
)
def test_estimate_of_a_checkpoint_is_what_a_checkpoint_takes(here, settings):
    """Equal for full fine-tuning, but for names; an upper bound for adapters, because some matrices have none."""
    checked = subject("eval.prompts=4", *settings)
    config = checked.config
    trainer = Trainer(families.load("words"), config.train, config.algorithm, 0, config.pipeline.asynchrony)
    for parameter in trainer.sets.theta.values():
        trainer.optimizer.state[parameter] = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
    taken = sum(tensor.nbytes for tensor in checkpoint.snapshot(trainer, "base").state.values())
    estimated = disk_bytes(checked)["checkpoints"] / (CHECKPOINTS_KEPT + 1)
    assert taken <= estimated * 1.01
    assert estimated <= taken * (1.01 if config.train.lora is None else 2.0)
    assert copies_kept(config) == 2 + 1 + len(trainer.sets.names)


# --- which checks ---


def test_paced_run_has_no_model_and_no_reward_to_check():
    paced = subject("cluster.pace=cpu-words", "reward.name=nowhere:reward")
    labels = [check.label for check in checks_of(paced)]
    assert labels == [check.label for check in checks_of(subject())][: len(labels)]
    preflight(paced, lambda line: None)


def test_run_without_reward_processes_is_refused(here):
    outcome = spotlight("train", "words-nft", "--reward.processes", "0", "--dry-run")
    assert outcome.code == 2
    assert "reward.processes is 0" in outcome.err


def test_dry_run_of_a_sound_run_reports_its_checks_and_prints_the_settings_alone(here):
    outcome = spotlight("train", "words-nft", "--reward.name", "preflight_rewards:right", "--dry-run")
    assert outcome.code == 0, outcome.err
    settings = json.loads(outcome.out)
    assert settings["reward"]["folder"] == os.getcwd()
    assert (
        "preflight: checked: 901 training and 210 held-out prompts, reward preflight_rewards:right (source"
        in outcome.err
    )


def test_port_of_the_ranks_that_is_taken_is_refused_before_anything_starts() -> None:
    ranks = ("cluster.slots=2", "cluster.gang=2")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        subject = PlannedRun.new(load_config("words-nft", [*ranks, f"cluster.gang_port={port}"]), "words-nft")
        with pytest.raises(EnvironmentProblem, match=f"cluster.gang_port is {port}, but that port of 127.0.0.1 cannot"):
            list(check_gang_port(subject))
    list(check_gang_port(subject))

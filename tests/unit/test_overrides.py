"""Settings on the command line: several after one --set, one after each, and dotted flags."""

import json

import pytest
from command_line import spotlight

from spotlight.surface.cli.overrides import one_value_each


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("--set a=1 b.c=2 --json", "--set a=1 --set b.c=2 --json"),
        ("--set a=1 --set b=2 c=3", "--set a=1 --set b=2 --set c=3"),
        ("--set=a=1 b=2", "--set=a=1 --set b=2"),
        ("words --set a=1 words2 b=2", "words --set a=1 words2 b=2"),
        ("--train.lr 1 --set a=x=y b=[1,2]", "--train.lr 1 --set a=x=y --set b=[1,2]"),
        ("--set a=1 runs/x=1.yaml", "--set a=1 runs/x=1.yaml"),
        ("a=1 b=2", "a=1 b=2"),
        ("--set", "--set"),
    ],
)
def test_settings_after_one_flag_get_a_flag_each(given, read):
    assert one_value_each(given.split()) == read.split()


def test_train_takes_several_settings_with_and_without_a_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The forecast of a dry run, a simulation, is the subject of test_plan.py.
    monkeypatch.setattr("spotlight.surface.fleets.OWN_PROFILES", {})
    for recipe in (["words-nft"], []):
        outcome = spotlight("train", *recipe, "--set", "train.lr=5e-5", "seed=4", "reward.name=jpeg", "--dry-run")
        assert outcome.code == 0, outcome.err
        settings = json.loads(outcome.out)
        assert (settings["train"]["lr"], settings["seed"], settings["reward"]["name"]) == (5e-5, 4, "jpeg")


@pytest.mark.parametrize("verb", ["train", "sim", "compare", "plan"])
def test_every_verb_with_settings_takes_several(tmp_path, monkeypatch, verb):
    """The second setting is misspelt, so that a verb that parsed it otherwise would not name it."""
    monkeypatch.chdir(tmp_path)
    profile = [] if verb == "train" else ["--profile", "h200-qwen-image-512"]
    outcome = spotlight(verb, "words-large-nft", *profile, "--set", "seed=1", "train.lrr=1")
    assert outcome.code == 2
    assert "the override 'train.lrr=1' sets 'train.lrr', which does not exist: did you mean 'lr'?" in outcome.err


def test_resume_takes_several(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The forecast of a dry run, a simulation, is the subject of test_plan.py.
    monkeypatch.setattr("spotlight.surface.fleets.OWN_PROFILES", {})
    run = tmp_path / "runs/mine"
    run.mkdir(parents=True)
    (run / "config.json").write_text(spotlight("train", "words-nft", "--reward.name", "jpeg", "--dry-run").out)
    outcome = spotlight("resume", "mine", "--set", "iterations=9", "train.lr=1")
    assert outcome.code == 2
    assert "train.lr (0.0001 -> 1.0)" in outcome.err
    assert "iterations" not in outcome.err.partition(";")[0]

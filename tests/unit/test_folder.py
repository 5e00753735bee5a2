"""A run's folder: named once, found by name, never resumed with other settings."""

from pathlib import Path

import pytest

from spotlight.config import load_config
from spotlight.core.errors import ConfigError, InputError
from spotlight.folder import OutputConfig, RunFolder, check_unchanged


def test_new_runs_of_one_recipe_are_numbered_and_a_given_name_is_never_overwritten(tmp_path: Path) -> None:
    output = OutputConfig(folder=str(tmp_path))
    names = [RunFolder.create(output, "demo").name for _ in range(2)]
    assert names == ["demo-1", "demo-2"]
    named = OutputConfig(folder=str(tmp_path), name="mine")
    RunFolder.create(named, "demo")
    with pytest.raises(InputError, match="never overwritten; resume it"):
        RunFolder.create(named, "demo")


def test_unknown_run_is_refused_with_the_closest_name(tmp_path: Path) -> None:
    folder = RunFolder.create(OutputConfig(folder=str(tmp_path)), "demo")
    folder.write_config({})
    assert RunFolder.find("demo-1", str(tmp_path)).path == folder.path
    with pytest.raises(InputError, match="no run 'demo-7': did you mean 'demo-1'"):
        RunFolder.find("demo-7", str(tmp_path))
    with pytest.raises(InputError, match="no runs under"):
        RunFolder.find("demo-1", str(tmp_path / "elsewhere"))


def test_resume_with_changed_settings_names_every_changed_key() -> None:
    before = load_config("words-nft").model_dump(mode="json")
    now = load_config("words-nft", ["train.lr=0.5", "rollout.prompts=4"]).model_dump(mode="json")
    with pytest.raises(ConfigError) as refused:
        check_unchanged(before, now)
    assert "rollout.prompts (8 -> 4)" in str(refused.value)
    assert "train.lr (0.0001 -> 0.5)" in str(refused.value)


def test_resume_may_change_length_budget_machines_and_market() -> None:
    before = load_config("words-nft").model_dump(mode="json")
    changes = ["iterations=99", "budget.max_hours=1", "cluster.spot=2", "market.trace=demo"]
    now = load_config("words-nft", changes).model_dump(mode="json")
    assert now != before
    assert check_unchanged(before, now) is None


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (2, 4, 6):
        (folder.checkpoints / f"step_{step:06d}").mkdir(parents=True)
    folder.keep_newest_checkpoints()
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["step_000004", "step_000006"]


def test_deterministic_run_may_not_change_what_chooses_its_kernels() -> None:
    before = load_config("words-nft", ["deterministic=true"]).model_dump(mode="json")
    with pytest.raises(ConfigError, match=r"cluster.rows \(8 -> 16\)"):
        check_unchanged(before, {**before, "cluster": {**before["cluster"], "rows": 16}})

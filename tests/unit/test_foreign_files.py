"""A folder, a weights file or a checkpoint from another party: whatever its bytes are, no verb runs its code."""

import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import spotlight
from engine_stories import BASE_DIGEST
from made_run import LORA, STEP, MadeRun, made_run
from planted import bomb, saved_bomb
from test_run_commands import recorded_run  # noqa: F401  a fixture
from test_trainer import tiny_trainer

from spotlight.compute.train import checkpoint
from spotlight.config import RunConfig
from spotlight.core.clock import RealClock
from spotlight.core.errors import WeightsError
from spotlight.core.events import Checkpointed
from spotlight.folder import RunFolder
from spotlight.run_log import RunLog

BOMBS = pytest.mark.parametrize("armed", [bomb, saved_bomb])


@pytest.fixture
def marker(tmp_path) -> Path:
    return tmp_path / "marker"


@BOMBS
def test_bombs_of_these_tests_are_live(marker, armed, tmp_path):
    """The control: without it the other tests could pass by chance."""
    (tmp_path / "planted").write_bytes(armed(marker))
    if armed is bomb:
        pickle.loads((tmp_path / "planted").read_bytes())
    else:
        torch.load(tmp_path / "planted", weights_only=False)
    assert marker.exists()


# --- checkpoints ---


def test_checkpoint_in_the_pickled_format_is_refused_unopened_and_the_sentence_says_what_to_do(marker, tmp_path):
    step = tmp_path / "runs" / "theirs" / "checkpoints" / "step_000002"
    step.mkdir(parents=True)
    (step / ".metadata").write_bytes(bomb(marker))
    (step / "__0_0.distcp").write_bytes(saved_bomb(marker))
    with pytest.raises(WeightsError, match="is a pickle, and a pickle can run any code when it is opened") as refused:
        checkpoint.restore(tiny_trainer(), step)
    assert f"`spotlight train RECIPE --model.name {tmp_path / 'runs' / 'theirs'}`." in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not marker.exists()


@BOMBS
@pytest.mark.parametrize("name", ["checkpoint.json", "00000.safetensors"])
def test_checkpoint_with_a_pickle_instead_of_one_of_its_files_is_refused_unopened(marker, armed, name, tmp_path):
    checkpoint.save(tiny_trainer(), tmp_path / "step_2", BASE_DIGEST)
    (tmp_path / "step_2" / name).write_bytes(armed(marker))
    with pytest.raises(WeightsError, match="cannot be read"):
        checkpoint.restore(tiny_trainer(), tmp_path / "step_2")
    assert not marker.exists()


def test_pickle_beside_a_checkpoint_is_not_opened(marker, tmp_path):
    checkpoint.save(tiny_trainer(), tmp_path / "step_2", BASE_DIGEST)
    for name in (".metadata", "__0_0.distcp", "00001.safetensors"):
        (tmp_path / "step_2" / name).write_bytes(bomb(marker))
    checkpoint.restore(tiny_trainer(), tmp_path / "step_2")
    assert not marker.exists()


# --- verbs ---


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> MadeRun:
    """A run with adapters, so that its settings are read for their base."""
    made = made_run(tmp_path_factory.mktemp("made") / "theirs", *LORA)
    shutil.rmtree(made.folder.journal)
    config = RunConfig.model_validate(made.folder.read_config())
    run_log = RunLog.begin(config, "words-nft", made.folder, RealClock())
    run_log.emit(Checkpointed(step=2, path=STEP))
    run_log.close()
    return made


@pytest.fixture
def foreign_run(made, tmp_path, monkeypatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    return RunFolder(Path(shutil.copytree(made.folder.path, tmp_path / "runs" / "theirs")))


@BOMBS
@pytest.mark.parametrize(
    ("place", "verbs"),
    [
        ("weights/average-1.safetensors", [("evaluate", "theirs"), ("evaluate", "runs/theirs/{place}")]),
        ("base.safetensors", [("evaluate", "theirs"), ("evaluate", f"runs/theirs/{STEP}"), ("resume", "theirs")]),
        ("config.json", [("evaluate", "theirs"), ("resume", "theirs")]),
        (f"{STEP}/checkpoint.json", [("evaluate", f"runs/theirs/{STEP}"), ("resume", "theirs")]),
        (f"{STEP}/00000.safetensors", [("evaluate", f"runs/theirs/{STEP}")]),
    ],
)  # fmt: skip
def test_verb_that_needs_a_file_refuses_a_pickle_in_its_place_and_does_not_open_it(
    foreign_run, marker, armed, place, verbs
):
    (foreign_run.path / place).write_bytes(armed(marker))
    for verb, name in verbs:
        outcome = spotlight(verb, name.format(place=place))
        assert outcome.code == 2, outcome
        remarks = [line for line in outcome.err.splitlines() if not line.startswith("preflight: ")]
        assert len(remarks) == 1, outcome.err
        assert remarks[0].startswith("spotlight: ")
    assert not marker.exists()


def test_resume_of_a_run_whose_checkpoint_is_pickled_is_refused_before_any_machine_starts(foreign_run, marker):
    (foreign_run.path / STEP / "checkpoint.json").unlink()
    (foreign_run.path / STEP / ".metadata").write_bytes(bomb(marker))
    for arguments in (("resume", "theirs"), ("evaluate", f"runs/theirs/{STEP}")):
        outcome = spotlight(*arguments)
        assert outcome.code == 2
        assert "start a new run from the weights that this one published" in outcome.err
    assert not (foreign_run.path / "logs").exists()
    assert not marker.exists()


@pytest.mark.parametrize("inside", ["", "weights"])
def test_resume_from_inside_the_folder_is_refused_because_modules_are_imported_from_there(
    foreign_run, inside, monkeypatch
):
    monkeypatch.chdir(foreign_run.path / inside)
    outcome = spotlight("resume", foreign_run.path)
    assert outcome.code == 2
    assert f"is inside the run {foreign_run.path}" in outcome.err
    assert "change to a folder of your own" in outcome.err


@pytest.mark.slow
def test_evaluate_from_inside_the_folder_imports_none_of_its_modules(foreign_run, marker):
    """Runs in an interpreter of its own, as for a user, with a module that reward processes import first."""
    for module in ("multiprocessing", "spotlight", "json", "numpy"):
        (foreign_run.path / f"{module}.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    command = [Path(sys.executable).with_name("spotlight"), "evaluate", ".", "--count", "1", "--steps", "1"]
    options = ["--reward", "jpeg", "--no-judge", "--processes", "1"]
    outcome = subprocess.run([*command, *options], cwd=foreign_run.path, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    assert not marker.exists()


@BOMBS
def test_status_report_and_audit_open_no_pickle_of_the_folder(recorded_run, marker, armed):  # noqa: F811
    """The pickles replace optional snapshots and files that only other verbs read."""
    others = ("weights/average-1.safetensors", f"{STEP}/.metadata", "payloads/000000/0000-0.safetensors")
    for place in (*others, "images/000000/000.png", "journal/snapshot-000000000002.msgpack", "incarnations.json"):
        (recorded_run.path / place).parent.mkdir(parents=True, exist_ok=True)
        (recorded_run.path / place).write_bytes(armed(marker))
    for verb in ("status", "report", "audit"):
        assert spotlight(verb, recorded_run.name).code in (0, 1), "1 is a finding of the audit"
    assert recorded_run.report.is_file()
    assert not marker.exists()


@BOMBS
@pytest.mark.parametrize("verb", ["status", "report", "audit", "resume"])
def test_journal_that_is_a_pickle_is_refused_unopened(recorded_run, marker, armed, verb):  # noqa: F811
    (segment,) = recorded_run.journal.glob("segment-*.log")
    segment.write_bytes(armed(marker))
    outcome = spotlight(verb, recorded_run.name)
    assert outcome.code == 2
    assert "is damaged" in outcome.err
    assert not marker.exists()


# --- links ---


@pytest.mark.parametrize(
    "place", ["weights", "checkpoints", "payloads", "config.json", "weights/average-1.safetensors"]
)
def test_resume_of_a_folder_with_links_in_it_is_refused_and_leaves_their_targets_unchanged(
    foreign_run, tmp_path, place
):
    outside = tmp_path / "outside"
    linked = foreign_run.path / place
    if linked.exists():
        shutil.move(linked, outside)
    else:
        outside.mkdir()
    precious = outside / "precious.safetensors" if outside.is_dir() else outside
    if outside.is_dir():
        precious.write_bytes(b"mine")
    before = precious.read_bytes()
    linked.symlink_to(outside)
    outcome = spotlight("resume", "theirs", "--set", "iterations=9")
    assert outcome.code == 2
    assert f"is a link to {outside}" in outcome.err
    assert precious.read_bytes() == before


def test_report_writes_through_no_link_that_lies_in_the_folder(recorded_run, tmp_path):  # noqa: F811
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    for name in (".report.html.part", "report.html"):
        (recorded_run.path / name).unlink(missing_ok=True)
        (recorded_run.path / name).symlink_to(mine)
    assert spotlight("report", recorded_run.name).code == 0
    assert mine.read_text() == "mine"
    assert not recorded_run.report.is_symlink()


# --- a run that another process owns ---


def test_resume_of_a_run_that_another_process_works_on_is_refused_and_leaves_its_settings_alone(foreign_run):
    before = foreign_run.config.read_bytes()
    hold = (
        "import sys; from pathlib import Path; from spotlight.core.journal import Journal\n"
        "with Journal.open(Path(sys.argv[1]), lambda: 1e6): print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, foreign_run.journal], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        outcome = spotlight("resume", "theirs", "--set", "iterations=50")
        holder.communicate("\n")
    assert outcome.code == 2
    assert "another process" in outcome.err
    assert foreign_run.config.read_bytes() == before

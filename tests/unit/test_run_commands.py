"""`spotlight train`, `resume`, `status`, `audit`, `report`, `drain` before any machine starts."""

import json
import math
from pathlib import Path

import msgspec
import pytest
from command_line import spotlight
from story_journal import story

from spotlight.compute.data.prompts import run_prompts
from spotlight.compute.data.worlds import world
from spotlight.config import load_config
from spotlight.core.events import Evaluated, Record
from spotlight.core.journal import Journal, read
from spotlight.core.segments import pack_frame
from spotlight.folder import OutputConfig, RunFolder

OWN_PRICES = """name,provider,instance,gpu,gpus,on_demand_per_hour,spot_per_hour,date,source
{name},lab,rack,H100,1,10,10,2026-11,the lab's own
"""


@pytest.fixture
def recorded_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """The folder of a recorded run."""
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create(OutputConfig(), "words-nft")
    config = load_config("words-nft")
    folder.write_config(config.model_dump(mode="json"))
    folder.write_prompts(run_prompts(config.data, world(config.model.name)))
    now = 0.0
    with Journal.create(folder.journal, lambda: now) as journal:
        for record in story():
            now = record.at
            journal.append(record.event)
    return folder


def test_train_dry_run_prints_the_settings_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = spotlight("train", "--iterations", "3", "--train.lr=5e-5", "--dry-run")
    assert shown.code == 0, shown.err
    settings = json.loads(shown.out)
    assert (settings["iterations"], settings["train"]["lr"]) == (3, 5e-5)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "words-nft", "--train.lrr", "1"], "'train.lrr', which does not exist: did you mean 'lr'?"),
        (["train", "words-nft", "--fast"], "'--fast' is not an option here"),
        (["train", "words-nft", "--train.lr"], "'--train.lr' has no value"),
        (["resume", "nothing"], "there is no run 'nothing'"),
        (["status", "words-nft-2"], "did you mean 'words-nft-1'?"),
        (["resume", "words-nft-1", "--set", "train.lr=1"], "train.lr (0.0001 -> 1.0)"),
        (["train", "words-nft", "--prices", "none.csv"], "the price table none.csv does not exist"),
        (["train", "words-nft", "--market.spot_price", "aws-p5"], "no row 'aws-p5'"),
        (["train", "words-nft", "--cluster.gang", "2"], "cluster.gang is 2 but the run has 1 reserved slots"),
        (
            ["train", "words-nft", "--cluster.gang", "2", "--cluster.slots", "2", "--train.parallel", "sharded"],
            "train.parallel is sharded but pipeline.tag is on",
        ),
        (
            ["train", "words-nft", "--cluster.gang", "2", "--cluster.reserved", "2", "--train.sequence_ranks", "2"],
            "ranks that split a sequence stay on one node",
        ),
        (["train", "words-nft", "--model.compile", "true", "--deterministic", "true"], "depend on its batch sizes"),
        (["train", "words-nft", "--explore.precision", "fp8"], "fp8 but all weights are trained"),
        (
            ["train", "words-nft", "--explore.precision", "fp8", "--train.lora.rank", "4"],
            "fp8 but the model is not compiled",
        ),
        (["status", "words-nft-1", "--prices", "own.csv"], "the price table 'own' has no row 'aws-p5-h100'"),
        (["report", "words-nft-1", "--prices", "own.csv"], "the price table 'own' has no row 'aws-p5-h100'"),
        (["resume", "words-nft-1", "--prices", "own.csv"], "the price table 'own' has no row 'aws-p5-h100'"),
        (["drain", "words-nft-1"], "is not running on this machine"),
        (["drill", "words-nft-1"], "is not running on this machine"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2_and_changes_nothing(
    recorded_run: RunFolder, arguments: list[str], sentence: str
) -> None:
    Path("own.csv").write_text(OWN_PRICES.format(name="lab-gpu"))
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    outcome = spotlight(*arguments)
    assert outcome.code == 2
    assert sentence in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_own_price_table_prices_status_and_report(recorded_run: RunFolder) -> None:
    Path("own.csv").write_text(OWN_PRICES.format(name="aws-p5-h100"))
    shipped, own = (
        json.loads(spotlight("status", recorded_run.name, "--json", *prices).out)["cost"]
        for prices in ((), ("--prices", "own.csv"))
    )
    assert (shipped["priced_as_if"], own["priced_as_if"]) == ("list-2026-08", "own")
    hours = sum(sum(seconds.values()) for seconds in own["seconds"].values()) / 3600
    assert own["dollars"] == pytest.approx(10 * hours) != 0
    assert sum(own["cents"].values()) == round(own["dollars"] * 100)
    assert spotlight("report", recorded_run.name, "--prices", "own.csv").code == 0
    assert "Price list own, 2026-11" in recorded_run.report.read_text()


def test_damaged_record_in_the_middle_is_named_and_nothing_is_changed(recorded_run: RunFolder) -> None:
    (segment,) = recorded_run.journal.glob("segment-*.log")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    for verb in ("audit", "resume"):
        outcome = spotlight(verb, recorded_run.name)
        assert outcome.code == 2
        assert "is damaged" in outcome.err
        assert "no file was changed" in outcome.err
    assert segment.read_bytes() == content


@pytest.mark.parametrize("at", [math.inf, math.nan])
@pytest.mark.parametrize("arguments", [["status", "--json"], ["status"], ["report", "--json"], ["audit"], ["resume"]])
def test_journal_with_a_time_that_is_no_time_is_refused_with_one_sentence(
    recorded_run: RunFolder, arguments: list[str], at: float
) -> None:
    (segment,) = recorded_run.journal.glob("segment-*.log")
    last = Record(len(list(read(recorded_run.journal))), at, Evaluated(iteration=9, scores={}))
    with segment.open("ab") as file:
        file.write(pack_frame(msgspec.msgpack.encode(last)))
    outcome = spotlight(arguments[0], recorded_run.name, *arguments[1:])
    assert (outcome.code, outcome.out) == (2, "")
    assert f"its time is {at}" in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_status_report_and_audit_read_the_same_journal(recorded_run: RunFolder) -> None:
    status = spotlight("status", recorded_run.name, "--json")
    assert status.code == 0, status.err
    assert json.loads(status.out)
    assert spotlight("report", recorded_run.name).code == 0
    assert recorded_run.report.read_text().startswith("<!doctype html>")
    outcome = json.loads(spotlight("report", recorded_run.name, "--json").out)
    assert outcome["report"] == str(recorded_run.report)
    assert outcome["idle_share"] == pytest.approx(json.loads(status.out)["idle_share"])
    done = [one["iteration"] for one in outcome["iterations"] if one["end"] is not None]
    assert done == [one["iteration"] for one in json.loads(status.out)["iterations"]]
    audited = spotlight("audit", recorded_run.name, "--json")
    assert json.loads(audited.out)["clean"] is (audited.code == 0)


def with_reward(run: RunFolder, name: str, folder: Path) -> None:
    settings = run.read_config()
    settings["reward"] |= {"name": name, "folder": str(folder)}
    run.write_config(settings)


def test_resume_of_a_finished_run_does_not_need_its_reward(recorded_run: RunFolder) -> None:
    with_reward(recorded_run, "gone:reward", Path.cwd())
    assert "No module named 'gone'" in spotlight("resume", recorded_run.name).err
    assert "gone" not in spotlight("resume", recorded_run.name, "--set", "iterations=5").err


def test_resume_runs_no_code_that_only_the_run_folder_names(recorded_run: RunFolder, tmp_path_factory) -> None:
    """Neither from another folder nor from inside the run folder, whatever its settings are."""
    theirs = tmp_path_factory.mktemp("theirs")
    for folder in (theirs, recorded_run.path):
        (folder / "planted_reward.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n\ndef f(a, b): return [0.0]\n")
        with_reward(recorded_run, "planted_reward:f", folder)
        outcome = spotlight("resume", recorded_run.name)
        assert outcome.code == 2
        assert f"imported from {folder}, which is not the working folder" in outcome.err
        assert f"--set reward.folder={folder}." in outcome.err
        assert not (folder / "ran").exists()
    outcome = spotlight("resume", recorded_run.name, "--set", f"reward.folder={recorded_run.path}")
    assert "in the run folder, and no code is run from there" in outcome.err
    assert not (recorded_run.path / "ran").exists()
    spotlight("resume", recorded_run.name, "--set", f"reward.folder={theirs}")
    assert (theirs / "ran").exists()


def test_resume_with_fewer_iterations_than_are_done_is_refused(recorded_run: RunFolder) -> None:
    done = len(json.loads(spotlight("status", recorded_run.name, "--json").out)["iterations"])
    outcome = spotlight("resume", recorded_run.name, "--set", f"iterations={done - 1}")
    assert outcome.code == 2
    assert f"but the run has done {done}, which cannot be undone" in outcome.err

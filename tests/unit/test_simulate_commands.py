"""`spotlight sim` and `spotlight compare` as users call them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spotlight.core.errors import ConfigError, InputError
from spotlight.core.events import Planned, StepCommitted
from spotlight.core.journal import read
from spotlight.folder import RunFolder
from spotlight.surface.cli.main import app

SMALL = [
    *("--iterations", "2", "--rollout.prompts", "4", "--rollout.group_size", "4", "--eval.every", "1"),
    *("--eval.prompts", "4", "--explore.seeds", "8", "--explore.steps", "3"),
]
PROFILE = ["--profile", "h200-qwen-image-512"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def called(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refused(kind: type[Exception], words: str, *arguments: str) -> None:
    with pytest.raises(kind, match=words):
        CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert not list(Path().glob("runs/*")), "nothing may be written for input that is refused"


def test_sim_leaves_a_run_folder_with_a_clean_audit_and_a_report():
    printed = called("sim", "words-large-nft+spotlight", *PROFILE, "--trace", "calm", *SMALL)
    assert "audit: Clean" in printed
    assert Path("runs/sim-words-large-nft+spotlight-1/report.html").is_file()


def test_audit_allows_samples_one_version_old_with_asynchrony_and_only_then():
    printed = called("sim", "words-large-nft+pipelined", *PROFILE, *SMALL)
    assert "audit: Clean" in printed
    run = Path("runs/sim-words-large-nft+pipelined-1")
    assert "Samples one version old" in run.joinpath("report.html").read_text()
    settings = json.loads(run.joinpath("config.json").read_text())
    settings["pipeline"]["asynchrony"] = False
    run.joinpath("config.json").write_text(json.dumps(settings))
    audited = CliRunner().invoke(app, ["audit", str(run)], catch_exceptions=False)
    assert audited.exit_code == 1
    assert "1 versions behind" in audited.output


def test_sim_as_json_has_outcome_and_status():
    printed = json.loads(called("sim", "words-large-nft+reserved-only", *PROFILE, "--json", *SMALL))
    assert printed["outcome"]["iterations"] == 2
    assert printed["status"]["cost"]["dollars"] > 0


@pytest.mark.parametrize(("setup", "slots", "updates"), [("reserved-explore", 4, 2), ("on-demand-explore", 12, 0)])
def test_exploring_setup_without_spot_previews_after_or_beside_training(setup, slots, updates):
    status = json.loads(called("sim", f"words-large-nft+{setup}", *PROFILE, "--json", *SMALL))["status"]
    assert [slot["slot_class"] for slot in status["slots"]] == ["reserved"] * slots
    assert [one["finished"] for one in status["explorations"]] == [32]
    events = [record.event for record in read(RunFolder(Path(f"runs/sim-words-large-nft+{setup}-1")).journal)]
    planned = next(number for number, event in enumerate(events) if isinstance(event, Planned))
    assert sum(isinstance(event, StepCommitted) for event in events[:planned]) == updates


def test_sim_of_a_mixed_fleet_shows_zone_and_kind_of_every_machine():
    fleet = "[{kind: h200, zone: a}, {kind: l40s, zone: b, speed: 0.5}]"
    recipe = ("sim", "words-large-nft+disaggregated-serial", *PROFILE, *SMALL)
    status = json.loads(called(*recipe, "--json", "--cluster.spot", "3", "--cluster.fleet", fleet))["status"]
    spot = [slot for slot in status["slots"] if slot["slot_class"] == "spot"]
    assert [(slot["zone"], slot["kind"]) for slot in spot] == [("a", "h200"), ("b", "l40s"), ("a", "h200")]


def test_sim_refuses_what_it_cannot_simulate_before_anything_is_written(tmp_path):
    recipe = ("sim", "words-large-nft+reserved-only")
    refused(ConfigError, "cluster.gang is 3", *recipe, *PROFILE, "--cluster.gang", "3")
    refused(ConfigError, "no trace 'clam'", "sim", "words-large-nft+spotlight", *PROFILE, "--trace", "clam")
    refused(InputError, "no numerics 'unreal'", *recipe, *PROFILE, "--numerics", "unreal")
    refused(InputError, "are not kept in", *recipe, *PROFILE, "--remember", str(tmp_path / "numbers"))
    profile = json.loads(Path(__file__).parents[2].joinpath("src/spotlight/assets/profiles/cpu-words.json").read_text())
    del profile["operations"]["denoise_step"]
    Path("partial.json").write_text(json.dumps(profile))
    refused(ConfigError, "has no denoise_step", *recipe, "--profile", "partial.json")


def test_sim_refuses_a_trace_with_a_negative_count():
    Path("counts.csv").write_text("t_s,n\n0,4\n600,-1\n")
    refused(ConfigError, "-1", "sim", "words-large-nft+spotlight", *PROFILE, "--trace", "counts.csv")


def compare(*arguments: str) -> str:
    return called("compare", "words-large-nft", "--recipes", "reserved-only,spotlight-fixed", *arguments, *SMALL)


def test_compare_shows_every_setup_draws_the_curves_and_runs_nothing_twice():
    first = compare("--seeds", "1", "--out", "out")
    assert "spotlight-fixed" in first
    assert Path("out/compare.png").is_file()
    journals = {path: path.stat().st_mtime_ns for path in Path("out").glob("*/journal/*")}
    assert compare("--seeds", "1", "--out", "out") == first
    assert {path: path.stat().st_mtime_ns for path in Path("out").glob("*/journal/*")} == journals


def test_compare_does_not_reuse_runs_with_other_numbers():
    compare("--seeds", "1", "--out", "out")
    with pytest.raises(InputError, match="other settings"):
        compare("--seeds", "1", "--out", "out", "--learning", "scenes-nft")


def test_compare_refuses_setups_that_learn_something_else_and_an_empty_list():
    Path("mine.yaml").write_text("train: {lr: 3.0e-5}\n")
    arguments = ("compare", "words-large-nft", "--out", "runs/x", *SMALL)
    refused(InputError, "differ in what is learned", *arguments, "--recipes", "reserved-only,mine.yaml")
    refused(InputError, "no setup to compare", *arguments, "--recipes", ",")
    refused(InputError, "not a finite number", *arguments, "--target", "nan")

"""`spotlight export` of a tiny family, its model card, and the folders that it refuses."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from command_line import spotlight
from made_run import LORA, MadeRun, made_run
from recorded_run import record

from spotlight import __version__
from spotlight.compute.models import families
from spotlight.config import load_config
from spotlight.control.market.prices import PriceTable
from spotlight.core.events import Evaluated, Record
from spotlight.folder import RunFolder
from spotlight.surface.model_card import CardFacts, draw_curve, model_card
from spotlight.surface.projections import RunView, ScoreInterval


@pytest.fixture(scope="module", params=[(), LORA], ids=["all weights", "lora"])
def made(request, tmp_path_factory) -> MadeRun:
    run = made_run(tmp_path_factory.mktemp("runs") / "first", *request.param)
    record(run.folder.path)
    return run


@pytest.fixture
def run(made, tmp_path) -> MadeRun:
    path = Path(shutil.copytree(made.folder.path, tmp_path / "mine"))
    return MadeRun(RunFolder(path), made.trainer)


def exported(*arguments: str | Path) -> str:
    outcome = spotlight("export", *arguments)
    assert outcome.code == 0, outcome.err
    return outcome.out


def card_facts(base: str) -> CardFacts:
    return CardFacts(
        run="mine", base=base, family="scenes", real=None, weights="ema", version=1, lora=None, files=(),
        settings=load_config("scenes-nft").model_dump(mode="json"), changes=(),
    )  # fmt: skip


def refused(*arguments: str | Path) -> str:
    outcome = spotlight("export", *arguments)
    assert outcome.code == 2, outcome
    return outcome.err


def test_weights_file_holds_the_chosen_set_and_is_a_model_of_its_own(run, tmp_path):
    assert "weights.safetensors" in exported(run.folder.path, "--to", tmp_path / "ema")
    last = json.loads(exported(run.folder.path, "--weights", "last", "--to", tmp_path / "last", "--json"))
    assert (last["folder"], last["weights"], last["version"]) == (str(tmp_path / "last"), "last", 1)
    found = {which: families.read_weights(str(tmp_path / which / "weights.safetensors")) for which in ("ema", "last")}
    assert found["ema"].digest == families.read_weights(str(run.average)).digest
    assert found["last"].digest == families.read_weights(str(run.behaviour)).digest
    assert found["ema"].digest != found["last"].digest


def test_card_has_base_recipe_changes_reward_curve_cost_and_version(run):
    exported(run.folder.path)
    folder = run.folder.path / "export"
    card = (folder / "README.md").read_text()
    assert "base_model: words" in card
    assert "| recipe | `words-nft` |" in card
    assert f"| Spotlight | {__version__} |" in card
    assert ("- `train.lora`: " in card) == (run.trainer.train_config.lora is not None)
    assert re.search(r"\| cost \| \$0\.[1-9]\d*, priced as if", card)
    assert "| reward | ocr_graded |" in card
    assert "| GPU-hours |" in card
    assert "| iterations trained | exact match | 95 % interval |" in card
    assert "| 0 | 0." in card
    assert "spotlight train RECIPE --model.name weights.safetensors" in card
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert str(run.folder.path) not in card


@pytest.mark.parametrize("base", ["words", "owner/name", "a: b #c", 'x"\n---', "[y]", "- z"])
def test_front_matter_of_a_card_is_yaml_whatever_the_base_is_called(base):
    card = model_card(card_facts(base), RunView(), PriceTable.load())
    assert yaml.safe_load(card.split("\n---\n")[0])["base_model"] == base


def test_curve_of_a_score_with_any_name_is_drawn(tmp_path):
    interval = ScoreInterval(value=0.5, low=0.4, high=0.6)
    draw_curve("$\\frac$ \u202e\n", [(0, interval)], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_card_keeps_the_spelling_of_a_score():
    scored = Evaluated(iteration=0, scores={"geneval": (0.5, 0.4, 0.6)})
    card = model_card(card_facts("scenes"), RunView.of([Record(0, 0.0, scored)]), PriceTable.load())
    assert "Held-out GenEval score is 0.50 so far." in card


def test_earlier_export_is_replaced_with_force_alone_and_other_folders_never(run, tmp_path):
    target = tmp_path / "out"
    exported(run.folder.path, "--to", target)
    (target / "weights.safetensors").write_bytes(b"changed")
    assert "add --force" in refused(run.folder.path, "--to", target)
    assert (target / "weights.safetensors").read_bytes() == b"changed"
    exported(run.folder.path, "--to", target, "--force")
    assert (target / "weights.safetensors").read_bytes() != b"changed"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out"]
    other = tmp_path / "photos"
    other.mkdir()
    (other / "cat.png").write_bytes(b"cat")
    assert "is not an export" in refused(run.folder.path, "--to", other, "--force")
    assert (other / "cat.png").read_bytes() == b"cat"


def test_run_without_such_weights_is_refused_and_nothing_is_written(run, tmp_path):
    run.average.unlink()
    assert "has published no averaged weights yet" in refused(run.folder.path, "--to", tmp_path / "out")
    run.behaviour.unlink()
    assert "no rolled-out weights yet" in refused(run.folder.path, "--weights", "last", "--to", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]


def test_damaged_weights_unknown_runs_and_options_that_do_not_fit_are_refused(run, tmp_path):
    assert "there is no run 'mien'" in refused("mien")
    assert "add --merged, or leave it out" in refused(run.folder.path, "--complete")
    content = bytearray(run.average.read_bytes())
    content[-1] ^= 1
    run.average.write_bytes(content)
    assert "was altered" in refused(run.folder.path)
    assert not (run.folder.path / "export").exists()

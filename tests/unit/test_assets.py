"""The two distributions: `asset` finds every shipped file, and files that are not the expected ones are seen."""

import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from spotlight.assets import APART, altered, asset, assets_root, digests
from spotlight.compute.rewards.ocr import detector, recogniser
from spotlight.core.errors import EnvironmentProblem
from spotlight.preflight.machine_state import Health, MachineFacts, examine

ROOT = Path(__file__).parents[2]


def examined(**facts) -> tuple[Health, str, str]:
    """State, finding and remedy of the assets, as `spotlight doctor` has them."""
    (line,) = (line for line in examine(MachineFacts(**facts)) if line.subject == "assets")
    return line.state, line.found, line.mend


def test_the_list_of_digests_has_every_file_of_the_assets_and_the_checkout_has_their_content():
    shipped = [path for folder in APART for path in (assets_root() / folder).iterdir()]
    data = {f"{path.parent.name}/{path.name}" for path in shipped if path.name not in ("README.md", ".gitattributes")}
    assert data == set(digests())
    assert altered(assets_root()) == []
    assert examined()[0] is Health.OK


def test_the_ocr_code_and_the_list_agree_on_the_digests():
    models = (recogniser.PPOCR_V6_TINY, recogniser.EN_PPOCR_V4)
    used = [file for model in models for file in (model.weights, model.alphabet)] + [detector.PPOCR_V6_TINY_DET]
    assert {f"ocr/{file.name}": file.sha256 for file in used} == {
        name: digest for name, digest in digests().items() if name.startswith("ocr/")
    }


def test_an_altered_and_an_absent_file_are_problems_with_their_names(tmp_path):
    for name in digests():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(asset(name), tmp_path / name)
    content = (tmp_path / "words/words.txt").read_bytes()
    (tmp_path / "words/words.txt").write_bytes(content.replace(b"a", b"b", 1))
    (tmp_path / "weights/scenes.safetensors").unlink()
    assert altered(tmp_path) == ["weights/scenes.safetensors", "words/words.txt"]
    state, found, mend = examined(assets=lambda: tmp_path)
    assert state is Health.PROBLEM
    assert "weights/scenes.safetensors, words/words.txt" in found
    assert mend.startswith("Reinstall spotlight-rl-assets")


def test_without_the_assets_a_model_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "spotlight_assets", None)
    assert asset("recipes/demo.yaml").is_file()
    with pytest.raises(
        EnvironmentProblem, match=r"spotlight-rl-assets is not installed .* weights and OCR models .* reinstall"
    ):
        asset("weights/words.safetensors")
    assert examined()[0] is Health.PROBLEM


def test_the_code_takes_the_assets_of_its_own_tree():
    code, assets = (tomllib.loads((ROOT / path).read_text()) for path in ("pyproject.toml", "assets/pyproject.toml"))
    (wanted,) = (line for line in code["project"]["dependencies"] if line.startswith(assets["project"]["name"]))
    import spotlight_assets

    first, second = (int(part) for part in spotlight_assets.__version__.split(".")[:2])
    assert wanted == f"{assets['project']['name']}>={first}.{second},<{first + 1}"
    for name in assets["project"]["license-files"]:
        assert list((ROOT / "assets").glob(name)), name

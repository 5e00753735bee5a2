"""The command line starts without heavy imports, and its small verbs work."""

import json
import subprocess
import sys

import pytest
from command_line import spotlight

from spotlight import __version__
from spotlight.compute.rewards import registry

HEAVY = (
    "torch", "ray", "diffusers", "transformers", "peft", "numpy", "pydantic", "onnxruntime", "jinja2", "starlette",
    "uvicorn",
)  # fmt: skip


def fresh_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout


def test_help_loads_nothing_heavy():
    loaded = fresh_python(
        "import sys\nfrom spotlight.surface.cli.main import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        f"print('LOADED', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert "evaluate" in loaded
    assert loaded.splitlines()[-1] == "LOADED []"


@pytest.mark.parametrize(
    "module",
    [
        "spotlight.config",
        "spotlight.control.advantage",
        "spotlight.compute.data.worlds",
        "spotlight.compute.rewards.reward_pool",
        "spotlight.compute.pretrain.config",
    ],
)
def test_light_modules_do_not_load_torch(module):
    assert fresh_python(f"import sys, {module}; print('torch' in sys.modules)").strip() == "False"


def test_plan_simulates_without_torch():
    loaded = fresh_python(
        "import sys\nfrom spotlight.surface.cli.main import app\n"
        "settings = ['--set', 'iterations=1', 'rollout.prompts=2', 'rollout.group_size=2', 'eval.prompts=2']\n"
        "try: app(['plan', 'words-nft', '--spot', '1', *settings])\nexcept SystemExit: pass\n"
        "print('LOADED', [name for name in ('torch', 'ray', 'diffusers', 'onnxruntime') if name in sys.modules])"
    )
    assert "iteration, s" in loaded
    assert loaded.splitlines()[-1] == "LOADED []"


def test_version():
    outcome = spotlight("--version")
    assert (outcome.code, outcome.out.strip()) == (0, __version__)


def test_rewards_lists_every_name_with_its_meaning_and_version():
    outcome = spotlight("rewards", "--json")
    found = json.loads(outcome.out)
    assert outcome.code == 0
    assert set(registry.BUILT_IN) <= set(found)
    assert found["jpeg"]["version"] == registry.create("jpeg").version
    assert len({reward["description"] for reward in found.values() if reward["description"]}) == len(found)
    plain = spotlight("rewards").out
    for name, reward in found.items():
        fact = f"version {reward['version']}" if "version" in reward else f"options {reward['options']}"
        assert f"{name:16} {reward['description']}\n{'':16} {fact}\n" in plain
    assert found["rubric_endpoint"]["options"] == "url, model, rubric"


def test_rewards_describes_a_function_of_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "described_reward.py").write_text(
        'def bright(images, prompts):\n    """Mean of all pixels.\n\n    More."""\n    return [1.0] * len(images)\n'
    )
    found = json.loads(spotlight("rewards", "described_reward:bright", "--json").out)
    assert found["described_reward:bright"]["description"] == "Mean of all pixels."
    assert spotlight("rewards", "described_reward:brihgt").code == 2


def test_an_unknown_option_is_a_user_error():
    assert spotlight("evaluate", "words", "--stepps", "3").code == 2


def test_debug_shows_the_trace(monkeypatch):
    monkeypatch.setenv("SPOTLIGHT_DEBUG", "1")
    with pytest.raises(Exception, match="no reward 'jpg'"):
        spotlight("evaluate", "words", "--reward", "jpg")

"""`spotlight evaluate`: equal inputs give equal figures, and its output can be piped."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from command_line import spotlight, write_random_weights
from PIL import Image
from tiny_qwen_image import save_tiny_model

from spotlight.compute.data.worlds import world
from spotlight.compute.models import sources
from spotlight.compute.models.loaded import load_checkpoint
from spotlight.compute.rewards.protocol import Scores
from spotlight.compute.scores import Estimate, Evaluation, estimate, picture_grid
from spotlight.compute.weights import files
from spotlight.core.errors import InputError
from spotlight.surface.cli.evaluate import DEFAULT_COUNT, prompts_to_draw

QUICK = ("--count", "6", "--steps", "2", "--processes", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("weights")
    for family in ("words", "scenes"):
        write_random_weights(path / f"{family}.safetensors", family)
    return path


def evaluated(checkpoint: Path, *arguments: str | Path) -> dict:
    outcome = spotlight("evaluate", checkpoint, *arguments, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("\n") == 1
    return json.loads(outcome.out)


def test_words_figures_repeat_and_follow_the_schema(folder, tmp_path):
    weights = folder / "words.safetensors"
    first = evaluated(weights, *QUICK, "--grid", tmp_path / "a.png")
    again = evaluated(weights, *QUICK, "--grid", tmp_path / "b.png")
    assert first == again
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    about = {name: value for name, value in first.items() if name not in ("figures", "rewards")}
    assert about == {
        "checkpoint": str(weights),
        "weights": str(weights),
        "digest": files.read(weights).digest,
        "family": "words",
        "prompts": "test",
        "size": "32x96",
        "count": 6,
        "steps": 2,
        "guidance": 1.0,
        "seed": 20_000,
    }
    assert set(first["rewards"]) == {"ocr_graded", "ocr_judge"}
    assert set(first["figures"]) == {"reward", "edit", "exact", "graded", "judge"}
    assert all(set(figure) == {"value", "low", "high"} for figure in first["figures"].values())
    assert all(figure["low"] <= figure["value"] <= figure["high"] for figure in first["figures"].values())
    assert Image.open(tmp_path / "a.png").size == (2 * (6 * (96 + 2) + 2), 2 * (32 + 2 + 2))


def test_steps_guidance_and_prompts_matter(folder, tmp_path):
    (tmp_path / "mine.txt").write_text('the word "river"\nthe word "stone"\n')
    quick = ("--reward", "jpeg", "--no-judge", "--processes", "1", "--prompts", tmp_path / "mine.txt")
    variants = [("--steps", "1"), ("--steps", "3"), ("--steps", "3", "--guidance", "2.5")]
    results = [
        evaluated(folder / "words.safetensors", *quick, *variant, "--grid", tmp_path / f"{number}.png")
        for number, variant in enumerate(variants)
    ]
    assert [result["count"] for result in results] == [2, 2, 2]
    assert all(set(result["figures"]) == {"reward"} for result in results)
    assert len({(tmp_path / f"{number}.png").read_bytes() for number in range(3)}) == 3


def test_scenes_report_every_task_and_the_overall(folder):
    figures = evaluated(folder / "scenes.safetensors", "--count", "12", "--steps", "1", "--processes", "1")["figures"]
    tasks = {"single_object", "two_object", "counting", "colors", "position", "color_attr"}
    assert set(figures) == {"reward", "graded", "strict", *tasks, "geneval", "judge"}
    assert figures["geneval"]["value"] == pytest.approx(np.mean([figures[task]["value"] for task in tasks]))


def test_the_table_shows_every_figure(folder):
    outcome = spotlight("evaluate", folder / "words.safetensors", "--count", "2", "--steps", "1", "--processes", "1")
    assert outcome.code == 0
    assert all(part in outcome.out for part in ("reward (ocr_graded)", "exact", "judge (ocr_judge)", "95 % interval"))
    assert "2 pictures of test, 1 steps" in outcome.out


def test_splits_are_balanced_by_task_and_files_are_taken_as_they_are(tmp_path):
    scenes = world("scenes")
    drawn = prompts_to_draw("test", scenes, None)
    assert len(drawn) == DEFAULT_COUNT
    assert drawn == scenes.held_out(DEFAULT_COUNT)
    assert set(Counter(prompt.scene.tag for prompt in drawn).values()) == {DEFAULT_COUNT // 6}
    (tmp_path / "mine.txt").write_text('the word "b"\n\nthe word "a"\n')
    mine = prompts_to_draw(str(tmp_path / "mine.txt"), world("words"), None)
    assert [prompt.target for prompt in mine] == ["b", "a"]


def test_intervals():
    graded = estimate(np.array([0.1, 0.2, 0.3, 0.4]))
    half = 1.96 * np.std([0.1, 0.2, 0.3, 0.4], ddof=1) / 2
    assert (graded.low, graded.value, graded.high) == pytest.approx((0.25 - half, 0.25, 0.25 + half))
    # Wilson's interval, n = 10 with 8 passes and n = 24 with none.
    assert vars(estimate(np.array([1.0] * 8 + [0.0] * 2))) == pytest.approx(
        {"value": 0.8, "low": 0.4901625, "high": 0.9433178}, abs=1e-5
    )
    assert vars(estimate(np.zeros(24))) == pytest.approx({"value": 0.0, "low": 0.0, "high": 0.1379765}, abs=1e-5)


def test_intervals_of_prompts_that_have_several_pictures():
    """Two prompts of two pictures: leaving either out moves the mean by 0.1, so its variance is 0.01, not 0.0067."""
    graded = estimate(np.array([0.1, 0.3, 0.3, 0.5]), ["a", "a", "b", "b"])
    # Student's quantiles of 1 and 3 degrees of freedom: 12.706 and 3.182.
    half = 1.96 * 12.7062 / 3.18245 * 0.1
    assert (graded.low, graded.value, graded.high) == pytest.approx((0.3 - half, 0.3, 0.3 + half), rel=1e-4)
    # Wilson's with n = 3: 24 pictures of 3 prompts that all fail, or of which 1 prompt passes, count as 3.
    prompts = [prompt for prompt in "abc" for _ in range(8)]
    assert vars(estimate(np.zeros(24), prompts)) == pytest.approx(
        {"value": 0.0, "low": 0.0, "high": 0.5614970}, abs=1e-5
    )
    passed = np.array([1.0] * 8 + [0.0] * 16)
    assert vars(estimate(passed, prompts)) == pytest.approx(vars(estimate(np.array([1.0, 0.0, 0.0]))), abs=1e-5)
    # One prompt has no spread between prompts: it counts as one picture of its mean.
    alone = estimate(np.array([0.2, 0.4]), ["a", "a"])
    assert (alone.low, alone.high) == pytest.approx((0.3 - 1.96 * np.sqrt(0.02), 0.3 + 1.96 * np.sqrt(0.02)))


def test_figures_are_clustered_by_prompt_in_every_task():
    tasks = ("colors", "counting")
    known = [[p for p in world("scenes").prompts("test") if p.scene.tag == tag][:3] for tag in tasks]
    prompts = [prompt for of_task in known for prompt in of_task for _ in range(8)]
    strict = np.array([float(place % 8 < 2 * (place // 8)) for place in range(len(prompts))])
    scores = Scores(total=strict / 2, components={"strict": strict})
    clustered = Evaluation(prompts=tuple(prompts), images=[], scores=(scores, scores)).figures()
    tagged = {tag: [place for place, prompt in enumerate(prompts) if prompt.scene.tag == tag] for tag in tasks}
    by_picture = {tag: estimate(strict[places]) for tag, places in tagged.items()}
    by_picture |= {"reward": estimate(strict / 2), "judge": estimate(strict / 2), "strict": estimate(strict)}
    for name, figure in by_picture.items():
        assert clustered[name].value == figure.value
        assert clustered[name].high - clustered[name].low > 1.3 * (figure.high - figure.low), name
    half = max(by_picture[tag].high - by_picture[tag].low for tag in tasks) / 2
    assert clustered["geneval"].high - clustered["geneval"].low > 2 * half


def test_overall_weighs_tasks_equally_and_its_interval_is_narrower():
    prompts = [next(p for p in world("scenes").prompts("test") if p.scene.tag == tag) for tag in ("colors", "counting")]
    strict = np.array([1.0, 1.0, 1.0, 0.0])
    scored = Evaluation(
        prompts=(prompts[0], prompts[0], prompts[0], prompts[1]),
        images=[],
        scores=(Scores(total=strict / 2, components={"strict": strict}),),
    )
    figures = scored.figures()
    assert (figures["colors"].value, figures["counting"].value) == (1.0, 0.0)
    assert figures["geneval"].value == scored.strict == 0.5
    assert figures["reward"].value == pytest.approx(0.375)
    widths = {name: figure.high - figure.low for name, figure in figures.items()}
    assert widths["geneval"] < min(1.0, widths["colors"] + widths["counting"])
    assert isinstance(figures["geneval"], Estimate)


def test_grid_holds_every_picture_in_order():
    images = [np.full((4, 6, 3), 10 * i, np.uint8) for i in range(5)]
    sheet = np.asarray(picture_grid(images, columns=2, scale=3))
    assert sheet.shape == (3 * (3 * 6 + 2), 3 * (2 * 8 + 2), 3)
    for index in range(5):
        y, x = 2 + (index // 2) * 6, 2 + (index % 2) * 8
        assert (sheet[3 * y : 3 * (y + 4), 3 * x : 3 * (x + 6)] == 10 * index).all()
    assert (sheet[:6] == 255).all()


def test_qwen_image_from_a_folder_is_evaluated_on_prompts_of_a_file(tmp_path):
    folder = save_tiny_model(tmp_path / "qwen")
    (tmp_path / "mine.txt").write_text('a sign that says "river"\na red boat on a lake\n')
    arguments = ("--reward", "jpeg", "--prompts", tmp_path / "mine.txt", "--size", "32x48", "--steps", "2")
    result = evaluated(folder, *arguments, "--guidance", "4", "--processes", "1", "--grid", tmp_path / "grid.png")
    assert (result["family"], result["size"], result["count"]) == ("qwen-image", "32x48", 2)
    assert set(result["figures"]) == {"reward"}
    assert Image.open(tmp_path / "grid.png").size == (2 * (2 * (48 + 2) + 2), 2 * (32 + 2 + 2))
    for wrong, words in (
        (("--prompts", "test", "--reward", "jpeg"), "no prompt splits"),
        (("--prompts", tmp_path / "mine.txt"), "--reward"),
        (("--prompts", tmp_path / "mine.txt", "--reward", "jpeg", "--size", "30x48"), "30x48"),
        (("--prompts", tmp_path / "mine.txt", "--reward", "jpeg", "--size", "large"), "HEIGHTxWIDTH"),
    ):
        outcome = spotlight("evaluate", folder, *wrong)
        assert outcome.code == 2
        assert words in outcome.err


@pytest.mark.parametrize("name", ["wrods", "./nowhere/words", "tests/words"])
def test_name_that_is_no_checkpoint_is_refused_without_a_request_to_the_hub(name, monkeypatch):
    monkeypatch.setattr(sources, "hub_folder", lambda *rest: pytest.fail("asked the hub"))
    monkeypatch.chdir(Path(__file__).parents[2])
    with pytest.raises(InputError, match="neither a weights file nor a model family"):
        load_checkpoint(name, "cpu")


def test_checkpoint_with_an_owner_in_its_name_is_searched_on_the_hub(monkeypatch, tmp_path):
    fetched = save_tiny_model(tmp_path / "fetched")
    monkeypatch.setattr(sources, "hub_folder", {"Qwen/Qwen-Image": fetched}.__getitem__)
    monkeypatch.chdir(tmp_path)
    assert load_checkpoint("Qwen/Qwen-Image", "cpu").source.path == fetched

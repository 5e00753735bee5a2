"""GenEval: the protocol on hand-made detections, the scene detector on drawn scenes, the rewards on top."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from spotlight.compute.data import scenes
from spotlight.compute.rewards.geneval import rule as protocol
from spotlight.compute.rewards.geneval.color_naming import GENEVAL_PALETTE, PaletteNamer
from spotlight.compute.rewards.geneval.detection import UNKNOWN, Box, Detection, Thresholds
from spotlight.compute.rewards.geneval.geneval_rewards import geneval, geneval_strict
from spotlight.compute.rewards.geneval.scene_detector import SceneDetector
from spotlight.core.errors import PromptError, RewardError
from spotlight.core.types import Clause, Prompt, SceneSpec

PROMPTS = scenes.prompts("train") + scenes.prompts("test")
BY_TEXT = {prompt.text: prompt for prompt in PROMPTS}
THRESHOLDS = Thresholds()
DETECTOR = SceneDetector()
SCENES_PER_TASK = 25
replace = msgspec.structs.replace


def thing(name: str, x: float = 0, y: float = 0, *, sure: float = 0.95, side: float = 10, color: str = "red"):
    box = Box(x - side / 2, y - side / 2, x + side / 2, y + side / 2)
    return Detection(class_name=name, confidence=sure, box=box, colors={color: 0.8, "grey": 0.2})


def scene(*include: Clause, tag: str = "two_object", exclude: tuple[Clause, ...] = ()) -> SceneSpec:
    return SceneSpec(tag=tag, include=include, exclude=exclude)


def passes(detections: list[Detection], spec: SceneSpec) -> bool:
    return protocol.strict(detections, spec, THRESHOLDS)


DOG, CAT = Clause(class_name="dog", count=1), Clause(class_name="cat", count=1)
CIRCLE = Clause(class_name="circle", count=1)
THREE_DOGS = scene(replace(DOG, count=3), tag="counting", exclude=(replace(DOG, count=4),))
CAT_LEFT_OF_DOG = scene(DOG, replace(CAT, position=("left of", 0)), tag="position")


class TestProtocol:
    def test_all_include_clauses_must_hold(self):
        assert passes([thing("dog"), thing("cat")], scene(DOG, CAT))
        assert not passes([thing("dog")], scene(DOG, CAT))
        assert passes([thing("dog"), thing("cat"), thing("cow")], scene(DOG, CAT))

    @pytest.mark.parametrize(("sure", "tag", "right"), [(0.3, "x", False), (0.31, "x", True)])
    def test_threshold_is_exclusive(self, sure, tag, right):
        assert passes([thing("dog", sure=sure)], scene(DOG, tag=tag)) is right

    def test_counting_has_its_own_threshold_from_the_detector(self):
        dogs = [thing("dog", sure=0.5)] * 3
        assert not passes(dogs, THREE_DOGS)
        assert protocol.strict(dogs, THREE_DOGS, Thresholds(counting=0.3))
        assert passes([*dogs, thing("dog"), thing("dog"), thing("dog")], THREE_DOGS)

    @pytest.mark.parametrize(("number", "right"), [(2, False), (3, True), (4, False)])
    def test_exclude_bounds_the_count(self, number, right):
        assert passes([thing("dog")] * number, THREE_DOGS) is right

    def test_without_exclude_more_is_right(self):
        assert passes([thing("dog")] * 5, scene(replace(DOG, count=3)))

    def test_at_most_sixteen_objects_of_a_class_are_seen(self):
        dogs = [thing("dog")] * 20
        assert passes(dogs, scene(DOG, exclude=(replace(DOG, count=17),)))
        assert not passes(dogs, scene(DOG, exclude=(replace(DOG, count=16),)))
        assert not passes(dogs, scene(replace(DOG, count=17)))

    def test_colour_is_asked_of_the_most_confident_objects_only(self):
        red_dog = scene(replace(DOG, color="red"))
        assert passes([thing("dog", sure=0.6, color="blue"), thing("dog", sure=0.7)], red_dog)
        assert not passes([thing("dog", sure=0.7, color="blue"), thing("dog", sure=0.6)], red_dog)
        assert not passes(
            [thing("dog"), thing("dog", sure=0.8, color="blue"), thing("dog", sure=0.7)],
            scene(replace(DOG, count=2, color="red")),
        )

    @pytest.mark.parametrize(
        ("dx", "dy", "names"),
        [
            (-30, 0, {"left of"}),
            (30, 0, {"right of"}),
            (0, -30, {"above"}),
            (0, 30, {"below"}),
            (30, 30, {"right of", "below"}),
            (30, 60, {"below"}),
            # Sides of 10 make a dead zone of 2 on each axis.
            (1.9, -1.9, set()),
            (2.0, 0, set()),
            (3.9, 0, set()),
            (4.1, 0, {"right of"}),
            (0, 4.1, {"below"}),
        ],
    )
    def test_relations(self, dx, dy, names):
        assert protocol.relations(thing("cat", 50 + dx, 50 + dy), thing("dog", 50, 50)) == names

    def test_dead_zone_grows_with_both_boxes(self):
        far = thing("cat", 60, 50)
        assert protocol.relations(far, thing("dog", 50, 50, side=35)) == {"right of"}
        assert protocol.relations(far, thing("dog", 50, 50, side=45)) == set()

    def test_position_compares_with_the_referenced_clause(self):
        left, middle, right = (thing(name, x) for name, x in (("dog", 0), ("cat", 40), ("cow", 80)))
        cow = Clause(class_name="cow", count=1)
        for reference, holds in ((0, True), (1, False)):
            cat = replace(CAT, position=("right of", reference))
            assert passes([left, middle, right], scene(DOG, cow, cat)) is holds

    def test_position_fails_without_a_matching_reference(self):
        cat = replace(CAT, position=("left of", 0))
        objects = [thing("cat", 0), thing("dog", 40, color="blue")]
        assert passes(objects, scene(DOG, cat))
        assert not passes(objects, scene(replace(DOG, color="red"), cat))

    def test_position_must_hold_for_every_pair(self):
        two_cats = scene(DOG, replace(CAT, count=2, position=("left of", 0)))
        dog = thing("dog", 50)
        assert passes([dog, thing("cat", 10), thing("cat", 20)], two_cats)
        assert not passes([dog, thing("cat", 10), thing("cat", 90)], two_cats)

    @pytest.mark.parametrize("score", [protocol.strict, protocol.graded])
    @pytest.mark.parametrize("count", [0, -2])
    @pytest.mark.parametrize("place", ["include", "exclude"])
    def test_clause_with_a_count_below_one_is_refused_in_one_sentence(self, score, count, place):
        none = replace(CAT, count=count)
        spec = scene(DOG, none) if place == "include" else scene(DOG, exclude=(none,))
        with pytest.raises(PromptError, match=rf"{count} of 'cat'.* at least 1") as caught:
            score([thing("dog"), thing("cat")], spec, THRESHOLDS)
        assert ". " not in str(caught.value)

    @pytest.mark.parametrize("score", [protocol.strict, protocol.graded])
    @pytest.mark.parametrize(
        ("position", "words"), [(("left of", 1), "list the reference"), (("left off", 0), "did you mean")]
    )
    def test_impossible_positions_are_refused(self, score, position, words):
        with pytest.raises(PromptError, match=words):
            score([thing("dog"), thing("cat")], scene(DOG, replace(CAT, position=position)), THRESHOLDS)
        with pytest.raises(PromptError, match=words):
            score([], scene(DOG, replace(CAT, position=position)), THRESHOLDS)


class TestGraded:
    def value(self, detections: list[Detection], spec: SceneSpec) -> float:
        return protocol.graded(detections, spec, THRESHOLDS)

    def test_position_is_ordered_from_nothing_to_right(self):
        dog = thing("dog", 50, 50)
        pictures = [[], [dog], *([dog, thing("cat", *at)] for at in ((90, 50), (50, 90), (35, 75), (10, 50)))]
        values = [self.value(picture, CAT_LEFT_OF_DOG) for picture in pictures]
        assert values == sorted(set(values))
        assert values[0] == 0
        assert values[2] < 0.25
        assert values[-1] > 0.9

    def test_right_colour_beats_wrong_beats_none(self):
        red = scene(replace(DOG, color="red"))
        right, wrong = self.value([thing("dog")], red), self.value([thing("dog", color="blue")], red)
        assert right > wrong + 0.3 > 0.3 + self.value([], red)

    def test_strays_cost_and_surely_unwanted_ones_cost_more(self):
        alone = self.value([thing("dog")], scene(DOG))
        faint = self.value([thing("dog"), thing("cow", sure=0.4)], scene(DOG))
        clear = self.value([thing("dog"), thing("cow")], scene(DOG))
        second = self.value([thing("dog"), thing("dog", 40)], scene(DOG))
        blob = self.value([thing("dog"), thing(UNKNOWN)], scene(DOG))
        assert alone > faint > clear > 0.7
        assert max(second, blob) < faint

    def test_rises_with_confidence(self):
        values = [self.value([thing("dog", sure=p)], scene(DOG)) for p in (0.05, 0.2, 0.6, 0.99)]
        assert values == sorted(set(values))


def minimally_wrong(prompt: Prompt, rng: np.random.Generator) -> Prompt:
    """A prompt for the picture that is wrong in one thing only."""
    first, *rest = prompt.scene.include
    tag = prompt.scene.tag
    used = {clause.class_name for clause in prompt.scene.include}
    if tag in ("single_object", "two_object"):
        first = replace(first, class_name=rng.choice([s for s in scenes.SHAPES if s not in used]))
    elif tag == "counting":
        first = replace(first, count=first.count + int(rng.choice([-1, 1])))
    elif tag == "colors":
        first = replace(first, color=rng.choice([c for c in scenes.PALETTE if c != first.color]))
    elif tag == "position":
        opposite = dict(zip(scenes.RELATIONS, ("right of", "left of", "below", "above"), strict=True))
        rest = [replace(rest[0], position=(opposite[rest[0].position[0]], 0))]
    else:
        first, rest = replace(first, color=rest[0].color), [replace(rest[0], color=first.color)]
    return replace(prompt, scene=replace(prompt.scene, include=(first, *rest)))


def drawn(
    task: str, picture_of: Callable[[Prompt, np.random.Generator], Prompt], seed: int = 3
) -> tuple[list[np.ndarray], list[Prompt]]:
    """Pictures with the prompts they are judged by."""
    rng = np.random.default_rng(seed)
    pool = [prompt for prompt in PROMPTS if prompt.scene.tag == task]
    asked = [pool[int(rng.integers(len(pool)))] for _ in range(SCENES_PER_TASK)]
    return [scenes.render(picture_of(prompt, rng), rng) for prompt in asked], asked


def itself(prompt: Prompt, rng: np.random.Generator) -> Prompt:
    return prompt


@pytest.mark.parametrize("task", list(scenes.Task))
class TestSceneDetector:
    def test_right_scenes_pass_and_minimally_wrong_ones_fail(self, task):
        right = geneval_strict().score(*drawn(task, itself))
        wrong = geneval_strict().score(*drawn(task, minimally_wrong))
        assert right.total.mean() >= 0.97
        assert wrong.total.mean() <= 0.03
        assert right.components["graded"].min() > wrong.components["graded"].max()

    def test_survives_noise(self, task):
        images, asked = drawn(task, itself)
        rng = np.random.default_rng(0)
        noisy = [np.clip(i + rng.normal(0, 20, i.shape), 0, 255).astype(np.uint8) for i in images]
        assert geneval_strict().score(noisy, asked).total.mean() >= 0.9

    def test_graded_falls_along_the_flow_interpolant(self, task):
        images, asked = drawn(task, itself)
        rng = np.random.default_rng(1)
        noise = [rng.normal(size=image.shape) for image in images]
        means = []
        for t in (0.0, 0.2, 0.3, 0.4, 0.6):
            mixed = [(1 - t) * (i / 127.5 - 1) + t * n for i, n in zip(images, noise, strict=True)]
            pixels = [np.rint(np.clip((m + 1) * 127.5, 0, 255)).astype(np.uint8) for m in mixed]
            means.append(geneval().score(pixels, asked).total.mean())
        assert means == sorted(means, reverse=True)
        assert means[0] > 0.95
        assert means[-1] < 0.1


def test_graded_count_peaks_at_the_wanted_number():
    wanted = BY_TEXT["a photo of three squares"]
    curve = []
    for number in range(1, 7):
        clause = Clause(class_name="square", count=number)
        picture = Prompt(text="", scene=SceneSpec(tag="counting", include=(clause,)))
        images = [scenes.render(picture, np.random.default_rng(seed)) for seed in range(6)]
        curve.append(geneval().score(images, [wanted] * 6).total.mean())
    assert curve[:3] == sorted(curve[:3])
    assert curve[2:] == sorted(curve[2:], reverse=True)
    assert curve[2] > 0.95
    assert max(curve[1], curve[3]) < 0.8


def placed(*objects: tuple[str, str, float, float], background: int = 240) -> np.ndarray:
    shapes = tuple(scenes.Placed(shape, scenes.PALETTE[color], x, y, 6.5) for shape, color, x, y in objects)
    return scenes.draw(shapes, (background,) * 3)


def sure_of(image: np.ndarray) -> list[Detection]:
    return [d for d in DETECTOR.detect([image])[0] if d.confidence > DETECTOR.thresholds.default]


def test_boxes_and_colours_are_where_the_objects_are():
    (found,) = sure_of(placed(("square", "purple", 15.0, 30.0)))
    assert (found.class_name, found.color) == ("square", "purple")
    assert found.box.center == pytest.approx((15.0, 30.0), abs=0.6)
    assert found.box.extent == pytest.approx((11.7, 11.7), abs=1.0)


def test_touching_shapes_of_different_colours_are_two_objects():
    found = sure_of(placed(("square", "red", 15.0, 24.0), ("circle", "blue", 27.0, 24.0)))
    assert {(d.class_name, d.color) for d in found} == {("square", "red"), ("circle", "blue")}


def test_a_rim_is_not_a_colour():
    for color in scenes.PALETTE:
        assert [d.color for d in sure_of(placed(("cross", color, 24.3, 23.6)))] == [color]


def test_an_ambiguous_blob_is_never_two_objects():
    """Otherwise one blob between circle and square would satisfy "a circle and a square"."""
    fine = np.abs((np.arange(192) + 0.5) / 4 - 24)
    seen = set()
    for exponent in (2.0, 3.5, 4.25, 4.5, 4.625, 5.0, 9.0):
        inside = fine[:, None] ** exponent + fine[None, :] ** exponent < 7.0**exponent
        alpha = inside.reshape(48, 4, 48, 4).mean(axis=(1, 3))[..., None]
        (only,) = sure_of(np.rint(240 + alpha * (np.array(scenes.PALETTE["red"]) - 240)).astype(np.uint8))
        seen.add(only.class_name)
    assert seen == {"circle", "square"}


def test_a_blob_that_is_no_shape_is_unknown_and_a_blank_picture_is_empty():
    image = np.full((48, 48, 3), 240, dtype=np.uint8)
    assert DETECTOR.detect([image]) == [()]
    image[22:26, 4:44] = (218, 28, 36)
    assert [d.class_name for d in sure_of(image)] == [UNKNOWN]


def test_washed_out_shapes_score_less():
    image = placed(("circle", "green", 24.0, 24.0)).astype(float)
    values = [
        geneval().score([(240 + k * (image - 240)).astype(np.uint8)], [BY_TEXT["a photo of a circle"]]).total[0]
        for k in (1.0, 0.4, 0.25, 0.1)
    ]
    assert values == sorted(values, reverse=True)
    assert values[0] > 0.95
    assert values[2] < 0.6


class TestReward:
    def test_totals_are_the_named_component_one_per_image(self):
        images, asked = drawn("two_object", minimally_wrong)
        graded, strict = geneval().score(images, asked), geneval_strict().score(images, asked)
        assert (geneval().name, geneval_strict().name) == ("geneval", "geneval_strict")
        assert geneval().version != geneval_strict().version
        assert graded.total.shape == (len(images),)
        assert (graded.total == strict.components["graded"]).all()
        assert (strict.total == graded.components["strict"]).all()
        assert graded.total.mean() > strict.total.mean()

    def test_each_image_is_judged_by_its_own_prompt(self):
        asked = [BY_TEXT["a photo of a circle"], BY_TEXT["a photo of a cross"]]
        images = [scenes.render(prompt, np.random.default_rng(2)) for prompt in asked]
        assert geneval_strict().score(images, asked).total.tolist() == [1, 1]
        assert geneval_strict().score(images, asked[::-1]).total.tolist() == [0, 0]

    @pytest.mark.parametrize(
        ("prompt", "words"),
        [
            (Prompt(text="a cat"), "'a cat' has no scene metadata"),
            (
                Prompt(text="a photo of a cros", scene=scene(Clause(class_name="cros", count=1))),
                "did you mean 'cross'",
            ),
            (
                Prompt(text="no cros", scene=scene(CIRCLE, exclude=(Clause(class_name="cros", count=1),))),
                "'no cros' names 'cros'.*did you mean 'cross'",
            ),
            (Prompt(text="no circle", scene=scene(replace(CIRCLE, count=0))), "0 of 'circle'"),
        ],
    )
    def test_prompts_it_cannot_judge_are_refused_before_pictures_are_looked_at(self, prompt, words, monkeypatch):
        monkeypatch.setattr(SceneDetector, "detect", lambda self, images: pytest.fail("looked at a picture"))
        with pytest.raises(PromptError, match=words):
            geneval().score([np.zeros((48, 48, 3), dtype=np.uint8)], [prompt])

    def test_numbers_of_images_and_prompts_must_agree(self):
        with pytest.raises(RewardError, match="1 images for 0 prompts"):
            geneval().score([np.zeros((48, 48, 3), dtype=np.uint8)], [])


@pytest.mark.parametrize(("name", "value"), list(GENEVAL_PALETTE.items()))
def test_palette_namer_reads_the_middle_of_a_crop(name, value):
    crop = np.full((12, 12, 3), 128, dtype=np.uint8)
    crop[2:10, 2:10] = value
    colors = PaletteNamer(GENEVAL_PALETTE)(crop)
    assert max(colors, key=colors.get) == name
    assert sum(colors.values()) == pytest.approx(1)


def test_palette_namer_version_follows_palette_and_softness():
    palette = dict(GENEVAL_PALETTE)
    same, other = PaletteNamer(palette), PaletteNamer({**palette, "red": (214, 30, 35)})
    assert PaletteNamer(GENEVAL_PALETTE).version == same.version
    assert len({same.version, other.version, PaletteNamer(palette, softness=6.0).version}) == 3

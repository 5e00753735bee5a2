"""The OCR rewards rank images of rendered words as a reader would, and refuse what they cannot score."""

import functools
import itertools
import shutil
from pathlib import Path

import matplotlib
import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.compute.rewards.ocr import text
from spotlight.compute.rewards.ocr.detector import TextBox, TextDetector, boxes_from_map, reading_order
from spotlight.compute.rewards.ocr.lines import fit_line
from spotlight.compute.rewards.ocr.ocr_rewards import OcrGraded, OcrJudge, ocr, ocr_exact, ocr_graded, ocr_judge
from spotlight.compute.rewards.ocr.recogniser import EN_PPOCR_V4, PPOCR_V6_TINY, Reading, Recogniser, join
from spotlight.compute.rewards.ocr.weights import ASSETS
from spotlight.core.errors import PromptError, RewardError, WeightsError
from spotlight.core.types import Prompt

FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
WORDS = ["planet", "bridge", "yellow", "coffee", "window", "garden", "silver", "hello"]
WORDS += ["summer", "castle", "orange", "bottle"]
REPLACEMENTS = "zxqvkj"
SOUP = "abcdefghijklmnopqrstuvwxyz"


def draw(word, height=32, width=96, font="DejaVuSans-Bold.ttf", size=22):
    face = PIL.ImageFont.truetype(str(FONTS / font), size)
    while face.getlength(word) > width - 6:
        size -= 1
        face = PIL.ImageFont.truetype(str(FONTS / font), size)
    picture = PIL.Image.new("RGB", (width, height), "white")
    PIL.ImageDraw.Draw(picture).text((width / 2, height / 2), word, fill="black", font=face, anchor="mm")
    return np.array(picture)


def misspell(word, count):
    fresh = [letter for letter in REPLACEMENTS if letter not in word]
    return "".join(fresh[i % len(fresh)] if i < count else letter for i, letter in enumerate(word))


def half_erased(word):
    image = draw(word)
    image[:, 48:] = 255
    return image


def blank(height=32, width=96, level=255):
    return np.full((height, width, 3), level, np.uint8)


def noisy(image, t, rng):
    mixed = (1 - t) * (image / 127.5 - 1) + t * rng.normal(size=image.shape)
    return np.clip((mixed + 1) * 127.5, 0, 255).round().astype(np.uint8)


def ask(word):
    return Prompt(text=f'a sign that says "{word}"')


@functools.cache
def graded():
    return ocr_graded()


@functools.cache
def judge():
    return ocr_judge()


def means(make, reward=None):
    scores = (reward or graded()).score([make(word) for word in WORDS], [ask(word) for word in WORDS])
    return {name: float(values.mean()) for name, values in scores.components.items()}


# Text rules


@pytest.mark.parametrize(
    ("read", "wanted", "expected"),
    [
        ("Hello", "hello", 1.0),
        ("h e l l o", "hel lo", 1.0),
        ("say hello there", "hello", 1.0),
        ("helo", "hello", 0.8),
        ("hxllo", "hello", 0.8),
        ("", "hello", 0.0),
        ("something else entirely", "cat", 0.0),
        ("", "", 1.0),
        ("anything", "", 0.0),
    ],
)
def test_edit_similarity_follows_flow_grpo(read, wanted, expected):
    assert text.edit_similarity(read, wanted) == pytest.approx(expected)


def test_exact_match_has_no_substring_rule():
    assert text.exact_match(" HeL lo", "hello") == 1.0
    assert text.exact_match("hello!", "hello") == 0.0
    assert text.edit_similarity("hello!", "hello") == 1.0


@functools.cache
def slow_distance(left, right):
    if not left or not right:
        return len(left) + len(right)
    return min(
        slow_distance(left[1:], right) + 1,
        slow_distance(left, right[1:]) + 1,
        slow_distance(left[1:], right[1:]) + (left[0] != right[0]),
    )


@given(st.text("abé", max_size=7), st.text("abé", max_size=7))
def test_levenshtein_equals_the_recursive_definition(left, right):
    assert text.levenshtein(left, right) == slow_distance(left, right)


def test_target_is_the_field_or_the_first_quoted_text():
    assert text.target_of(Prompt(text='x "quoted"', target="Real One")) == "realone"
    assert text.target_of(Prompt(text='a "Red Cat" and a "dog"')) == "redcat"


@pytest.mark.parametrize("prompt", [Prompt(text="no text"), Prompt(text='one " quote'), Prompt(text='""')])
def test_prompt_without_target_is_refused(prompt):
    with pytest.raises(PromptError, match=r"names no text to read.*put the text in double quotes"):
        graded().score([blank()], [prompt])


def frames(shown, wanted):
    """Certain posteriors: one frame per character of `shown`, where '-' is blank."""
    letters = np.array([[float(seen == letter) for letter in wanted] for seen in shown], np.float32)
    return letters, np.array([float(seen == "-") for seen in shown], np.float32)


def soft_lcs(letters, blank, target):
    """The soft LCS of one reading."""
    return text.soft_lcs([letters], [blank], [target])[0]


@pytest.mark.parametrize(
    ("shown", "wanted", "expected"),
    [
        ("cat", "cat", 1.0),
        ("-c-aa-t", "cat", 1.0),
        ("tac", "cat", 1 / 3),
        ("ball", "ball", 3 / 4),
        ("bal-l", "ball", 1.0),
        ("---", "cat", 0.0),
        ("c", "cat", 1 / 3),
    ],
)
def test_soft_lcs_of_certain_posteriors(shown, wanted, expected):
    assert soft_lcs(*frames(shown, wanted), wanted) == pytest.approx(expected)


@pytest.mark.parametrize(("probability", "credit"), [(1.0, 1.0), (0.1, 0.5), (0.01, 0.0), (0.0, 0.0)])
def test_soft_lcs_credits_the_order_of_magnitude(probability, credit):
    letters = np.full((1, 1), probability, np.float32)
    assert soft_lcs(letters, np.zeros(1, np.float32), "a") == pytest.approx(credit, abs=1e-6)


@given(st.text("ab-", max_size=8), st.text("ab", min_size=1, max_size=4))
def test_graded_is_bounded_and_is_one_only_for_the_target(shown, wanted):
    read = "".join(seen for i, seen in enumerate(shown) if seen != "-" and (i == 0 or shown[i - 1] != seen))
    letters, separators = frames(shown, wanted) if shown else (np.zeros((0, len(wanted))), np.zeros(0))
    soft = soft_lcs(letters, separators, wanted)
    score = text.graded(text.edit_similarity(read, wanted), soft, text.extra_glyphs(read, wanted))
    assert 0.0 <= score <= 1.0
    assert (score == 1.0) == (read == wanted)


def test_joined_readings_do_not_merge_letters_across_lines():
    line = Reading("l", np.ones((1, 2), np.float32), np.zeros(1, np.float32))
    both = join([line, line], 2)
    assert both.text == "ll"
    assert soft_lcs(both.letters, both.blank, "ll") == pytest.approx(1.0)
    assert soft_lcs(join([], 2).letters, join([], 2).blank, "ll") == 0.0


# Scores of images


def test_scores_fall_with_each_wrong_letter():
    rows = [means(lambda word, n=n: draw(misspell(word, n))) for n in (0, 1, 3, 6)]
    for name in ("edit", "graded"):
        column = [row[name] for row in rows]
        assert column[0] > 0.99
        assert column[3] < 0.15
        assert all(better > worse + 0.1 for better, worse in itertools.pairwise(column)), column
    assert [row["exact"] for row in rows] == [1.0, 0.0, 0.0, 0.0]


def test_each_reward_trains_on_its_own_component():
    images = [draw("planet"), draw("planets"), draw("plxnet")]
    prompts = [ask("planet")] * 3
    edit, exact, soft = (make().score(images, prompts).total for make in (ocr, ocr_exact, ocr_graded))
    np.testing.assert_allclose(edit, [1, 1, 5 / 6])
    np.testing.assert_array_equal(exact, [1, 0, 0])
    assert soft[0] > soft[1] > soft[2]


def ctc_log_likelihood(reading, target):
    """log P(target) by the CTC forward recursion, per letter."""
    states = [None]
    for index in range(len(target)):
        states += [index, None]
    alpha = np.zeros(len(states))
    for frame, empty in enumerate(reading.blank):
        emit = np.array([empty if s is None else reading.letters[frame, s] for s in states], np.float64)
        if frame == 0:
            alpha = np.concatenate((emit[:2], np.zeros(len(states) - 2)))
            continue
        step = alpha.copy()
        step[1:] += alpha[:-1]
        for i in range(3, len(states), 2):
            if target[states[i]] != target[states[i - 2]]:
                step[i] += alpha[i - 2]
        alpha = step * emit
    return float(np.log(alpha[-2:].sum() + 1e-300)) / len(target)


def test_blank_ranks_below_partial_words_where_ctc_likelihood_ranks_it_above():
    empty, half = means(lambda word: blank()), means(half_erased)
    two_wrong = means(lambda word: draw(misspell(word, 2)))
    assert empty["graded"] + 0.3 < half["graded"]
    assert empty["graded"] + 0.3 < two_wrong["graded"]

    recogniser = Recogniser(PPOCR_V6_TINY)

    def likelihood(make):
        readings = recogniser.read([make(word) for word in WORDS], WORDS)
        return np.mean([ctc_log_likelihood(*pair) for pair in zip(readings, WORDS, strict=True)])

    assert likelihood(draw) > -0.1
    assert likelihood(lambda word: blank()) > likelihood(half_erased)
    assert likelihood(lambda word: blank()) > likelihood(lambda word: draw(misspell(word, 2)))


def test_graded_falls_along_the_flow_interpolant_and_separates_where_edit_is_flat():
    noise = [np.random.default_rng(seed) for seed in range(6)]
    times = (0, 0.3, 0.5, 0.7, 0.85, 1)
    column = []
    for t, rng in zip(times, noise, strict=True):
        column.append(means(lambda word, t=t, rng=rng: noisy(draw(word), t, rng))["graded"])
    assert all(cleaner > noisier for cleaner, noisier in itertools.pairwise(column)), column
    assert column[0] > 0.99
    assert column[-1] < 0.05

    rng = np.random.default_rng(7)
    images = [noisy(draw("planet"), 0.75, rng) for _ in range(24)]
    scores = graded().score(images, [ask("planet")] * 24)
    distinct = {name: len(np.unique(values.round(6))) for name, values in scores.components.items()}
    assert distinct["graded"] > 2 * distinct["edit"]


def test_extra_text_is_punished_by_graded_only():
    soup = means(lambda word: draw(SOUP, width=400))
    doubled = means(lambda word: draw(word + word, width=160))
    assert soup["graded"] < 0.15
    assert doubled["edit"] == 1.0
    assert doubled["graded"] < 0.6


def test_case_does_not_matter():
    scores = graded().score([draw("PLANET"), draw("Planet")], [ask("planet"), ask("PLANET")])
    np.testing.assert_allclose(scores.total, 1.0, atol=0.02)


# Images


def test_judge_reads_clean_words_with_other_weights():
    row = means(draw, judge())
    assert row["exact"] == 1.0
    assert means(lambda word: draw(misspell(word, 1)), judge())["exact"] == 0.0
    assert judge().version != graded().version
    assert OcrJudge.config is EN_PPOCR_V4 is not OcrGraded.config


@pytest.mark.parametrize("reward", [graded, judge])
def test_large_image_is_read_through_detection(reward):
    image = blank(256, 256)
    image[180:212, 20:116] = draw("castle")
    scores = reward().score([image], [ask("castle")])
    assert scores.components["exact"][0] == 1.0
    assert scores.total[0] > 0.95


def test_lines_of_a_large_image_are_read_in_order():
    image = blank(256, 400)
    image[152:184, 10:106], image[150:182, 290:386] = draw("silver"), draw("window")
    image[40:72, 200:296] = draw("hello")
    assert len(TextDetector().find(image)) == 3
    scores = graded().score([image], [ask("hello silver window")])
    assert scores.components["exact"][0] == 1.0
    assert scores.total[0] > 0.95


def test_line_is_48_pixels_high_in_blue_green_red_order():
    red = blank(32, 96)
    red[:, :, 1:] = 0
    line = fit_line(red)
    assert line.shape == (3, 48, 144)
    np.testing.assert_allclose(line[:, 5, 5], [-1, -1, 1])


@pytest.mark.parametrize(("height", "searched"), [(64, False), (65, True)])
def test_only_images_taller_than_a_line_are_searched(monkeypatch, height, searched):
    calls = []
    monkeypatch.setattr(TextDetector, "find", lambda self, image: calls.append(image) or [])
    graded().score([draw("hello", height, 192)], [ask("hello")])
    assert bool(calls) == searched


def test_boxes_come_row_by_row_and_are_grown_back():
    order = [TextBox(0, 50, 10, 60, 1.0), TextBox(2, 70, 12, 80, 1.0), TextBox(30, 0, 40, 10, 1.0)]
    assert reading_order([order[2], order[1], order[0]]) == order
    probability = np.zeros((64, 64), np.float32)
    probability[20:30, 10:50] = 0.9
    probability[50:60, 10:50] = 0.3
    (box,) = boxes_from_map(probability, 128, 64)
    assert box.top < 40
    assert box.bottom > 60
    assert box.left < 10
    assert box.right > 50
    assert box.bottom <= 128


def test_score_does_not_depend_on_the_batch():
    rng = np.random.default_rng(3)
    images = [noisy(draw(word), 0.6, rng) for word in WORDS] * 2
    images += [draw("hello", 24, 72), draw("bridge", 128, 256), draw("summer", 48, 200), blank(200, 200)]
    prompts = [ask(word) for word in WORDS * 2] + [ask(w) for w in ("hello", "bridge", "summer", "any")]
    together = graded().score(images, prompts).total
    assert len(np.unique(together)) > 12
    for index in (0, 5, 23, 24, 25, 26, 27):
        alone = graded().score([images[index]], [prompts[index]]).total
        np.testing.assert_allclose(alone[0], together[index], atol=1e-6)


@pytest.mark.parametrize("reward", [graded, judge])
def test_scores_are_finite_for_degenerate_images(reward):
    rng = np.random.default_rng(0)
    images = [blank(level=0), blank(level=128), blank(1, 1), blank(1, 300), blank(300, 1), blank(80, 80)]
    images += [rng.integers(0, 256, (100, 100, 3), np.uint8), draw("hello")]
    prompts = [ask(word) for word in ("a", "日本", "é", "hello", "aa", "x" * 80, "hello", "hello")]
    scores = reward().score(images, prompts)
    for values in scores.components.values():
        assert values.shape == (8,)
        assert np.isfinite(values).all()
        assert ((values >= 0) & (values <= 1)).all()
    assert scores.total[-1] > 0.95
    assert reward().score([], []).total.shape == (0,)


def test_wrong_input_is_named():
    with pytest.raises(RewardError, match="1 images and 2 prompts"):
        graded().score([blank()], [ask("a"), ask("b")])
    with pytest.raises(RewardError, match=r"Image 1 has shape \(32, 96\)"):
        graded().score([blank(), blank()[:, :, 0]], [ask("a"), ask("b")])
    with pytest.raises(RewardError, match="float64"):
        graded().score([blank() / 255], [ask("a")])


# Weights


def copy_with(folder, name, change):
    shutil.copytree(ASSETS, folder, dirs_exist_ok=True)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(change(content))
    return folder


@pytest.mark.parametrize("name", [PPOCR_V6_TINY.weights.name, PPOCR_V6_TINY.alphabet.name])
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda content: content[:-1], "bytes, not"),
        (lambda content: content[:100] + bytes([content[100] ^ 1]) + content[101:], "sha256"),
    ],
)
def test_cut_or_altered_weights_are_refused(tmp_path, name, change, complaint):
    folder = copy_with(tmp_path, name, change)
    with pytest.raises(WeightsError, match=rf"{name} have .*{complaint}.*reinstall"):
        OcrGraded(folder)


def test_missing_weights_are_named(tmp_path):
    with pytest.raises(WeightsError, match=r"en_dict\.txt cannot be read .*reinstall"):
        OcrJudge(tmp_path)

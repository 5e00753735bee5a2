"""Profiles: their values between points, what they refuse, and the figures that are cited."""

import json
from pathlib import Path

import msgspec
import pytest

from spotlight.compute.profiling import cited
from spotlight.control.elastic.efficiency import Efficiency
from spotlight.control.profiles import Operation, Point, Profile, Provenance, Series, Times, derive, profile_names
from spotlight.control.profiles.timings import LIKE
from spotlight.core.errors import ConfigError

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def times(*series: Series) -> Times:
    return Times(interpolation="as the curve says", series=series)


def series(*points: Point, provenance: Provenance = Provenance.MEASURED) -> Series:
    return Series(provenance=provenance, how="By a story.", points=points)


def profile(**operations: Times) -> Profile:
    return Profile(
        name="story", model="words", width=96, height=32, tokens=48, hardware="a desk", date="2026-01-01",
        commit="none", notes="", operations={Operation(name): known for name, known in operations.items()},
    )  # fmt: skip


ALONE = series(Point(1, 1, 1.0, 1.5), Point(4, 1, 2.5, 3.0), Point(8, 1, 6.5, 9.0))
CREW = series(Point(4, 2, 2.0, 2.0), provenance=Provenance.DERIVED)
FILE = profile(denoise_step=times(ALONE, CREW), publish=times(series(Point(1, 1, 3.0, 3.0))))


def read(**changes: object) -> Profile:
    """The sample file with changes, as it is loaded."""
    return Profile.from_json(json.dumps({**msgspec.to_builtins(FILE), **changes}).encode(), "story.json")


def read_points(*points: object) -> Profile:
    decode = {"interpolation": "", "series": [{"provenance": "measured", "how": "", "points": points}]}
    return read(operations={"decode": decode})


@pytest.mark.parametrize(
    ("batch", "seconds"), [(1, 1.0), (2, 1.5), (4, 2.5), (6, 4.5), (8, 6.5), (16, 13.0)], ids=lambda value: str(value)
)
def test_seconds_between_and_beyond_points_follow_the_curve(batch, seconds):
    assert FILE.seconds(Operation.DENOISE_STEP, batch) == pytest.approx(seconds)


def test_p99_has_a_curve_of_its_own():
    assert FILE.p99(Operation.DENOISE_STEP, 6) == pytest.approx(6.0)


def test_a_batch_below_the_first_point_costs_the_same_as_the_first():
    assert FILE.seconds(Operation.DENOISE_STEP, 1, degree=2) == 2.0


def test_a_batch_that_was_slower_than_a_larger_one_is_padded_to_it():
    launch_bound = profile(decode=times(series(Point(1, 1, 0.163, 0.2), Point(4, 1, 0.160, 0.2))))
    assert launch_bound.seconds(Operation.DECODE, 1) == 0.160


def test_no_batch_at_all_is_refused():
    with pytest.raises(ConfigError, match="a batch of 0"):
        FILE.seconds(Operation.DENOISE_STEP, 0)


def test_a_degree_without_points_is_refused_with_those_there_are():
    assert FILE.degrees(Operation.DENOISE_STEP) == [1, 2]
    with pytest.raises(ConfigError, match=r"at degree 4.*\(1, 2\)"):
        FILE.seconds(Operation.DENOISE_STEP, degree=4)


def test_a_missing_operation_is_refused_with_the_remedy():
    assert FILE.degrees(Operation.DECODE) == []
    with pytest.raises(ConfigError, match=r"'story' has no times for decode.*`spotlight profile`"):
        FILE.seconds(Operation.DECODE)


def test_require_names_all_that_a_recipe_misses():
    FILE.require([Operation.PUBLISH, Operation.DENOISE_STEP], "words-nft")
    with pytest.raises(ConfigError, match="'story' has no decode, reward, which the recipe 'words-nft' needs"):
        FILE.require([Operation.REWARD, Operation.PUBLISH, Operation.DECODE], "words-nft")


def test_provenance_is_kept_by_degree():
    assert FILE.provenance(Operation.DENOISE_STEP) is Provenance.MEASURED
    assert FILE.provenance(Operation.DENOISE_STEP, degree=2) is Provenance.DERIVED


def test_a_profile_comes_back_from_its_file(tmp_path):
    path = tmp_path / "story.json"
    path.write_bytes(FILE.to_json())
    assert Profile.load(path) == FILE
    assert Profile.load(str(path)).digest == FILE.digest


def test_the_digest_follows_the_content_and_not_the_layout():
    assert read().digest == FILE.digest
    assert read(notes="another day").digest != FILE.digest


@pytest.mark.parametrize(
    ("points", "problem"),
    [
        ([], "no points"),
        ([{"batch": 1, "degree": 1, "p50": -1.0, "p99": 1.0}], "p50 of -1 s"),
        ([{"batch": 1, "degree": 1, "p50": 1.0, "p99": 0.5}], "below its p50"),
        ([{"batch": 0, "degree": 1, "p50": 1.0, "p99": 1.0}], "is impossible"),
        ([{"batch": 1, "degree": 1, "p50": 1.0}], "p99"),
        ([{"batch": n, "degree": 1, "p50": 1.0, "p99": 1.0} for n in (2, 1)], "out of order"),
        ([{"batch": 1, "degree": 1, "p50": 1.0, "p99": 1.0}] * 2, "twice"),
        ([{"batch": 1, "degree": 1, "p50": 1.0, "p99": 1.0, "mean": 1.0}], "unknown field `mean`"),
    ],
)
def test_impossible_points_are_refused(points, problem):
    with pytest.raises(ConfigError, match=problem):
        read_points(*points)


def test_infinite_seconds_are_refused_in_a_file_and_in_memory():
    for number in ("1e999", "NaN", "Infinity"):
        content = FILE.to_json().replace(b"6.5", number.encode())
        with pytest.raises(ConfigError):
            Profile.from_json(content, "story.json")
    with pytest.raises(ConfigError, match="not a duration"):
        profile(decode=times(series(Point(1, 1, float("nan"), 1.0)))).check("memory")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"colour": "red"}, "unknown field `colour`"),
        ({"operations": {"denoise": {}}}, "denoise"),
        ({"tokens": 0}, "0 tokens"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(changes, problem):
    with pytest.raises(ConfigError, match=problem):
        read(**changes)


def test_a_truncated_file_is_refused():
    with pytest.raises(ConfigError, match=r"story.json cannot be read"):
        Profile.from_json(FILE.to_json()[:200], "story.json")


def test_unknown_names_and_paths_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'h200-qwen-image-512'"):
        Profile.load("h200-qwen-image-51")
    with pytest.raises(ConfigError, match="does not exist"):
        Profile.load(tmp_path / "nowhere.json")


@pytest.mark.parametrize("name", profile_names())
def test_shipped_profiles_have_every_operation(name):
    shipped = Profile.load(name)
    assert shipped.name == name
    of_compiled = set() if name.startswith("h200") else {Operation.FP8_PREVIEW_STEP}
    shipped.require(set(Operation) - LIKE.keys() - of_compiled, "any recipe")


@pytest.mark.parametrize("name", ["h200-qwen-image-512", "h200-qwen-image-1280"])
def test_trainer_on_a_gpu_adopts_its_own_weights_sooner_than_others_fetch_them(name):
    shipped = Profile.load(name)
    assert shipped.seconds(Operation.ADOPT) < shipped.seconds(Operation.NODE_FETCH) / 8
    assert shipped.provenance(Operation.ADOPT) is not Provenance.LITERATURE


@pytest.mark.parametrize("name", ["h200-qwen-image-512", "h200-qwen-image-1280"])
def test_worker_on_a_gpu_takes_part_in_less_than_half_of_a_fetch(name):
    shipped = Profile.load(name)
    assert 0 < shipped.seconds(Operation.STORE_LOAD) < shipped.seconds(Operation.NODE_FETCH) / 2
    assert shipped.node_copy_s + shipped.seconds(Operation.STORE_LOAD) == shipped.seconds(Operation.NODE_FETCH)


def test_worker_fetches_all_by_itself_if_the_profile_does_not_tell_its_part():
    shipped = Profile.load("cpu-words")
    assert Operation.STORE_LOAD not in shipped.operations
    assert (shipped.node_copy_s, shipped.seconds(Operation.STORE_LOAD)) == (0.0, shipped.seconds(Operation.NODE_FETCH))


@pytest.mark.parametrize("name", ["h200-qwen-image-512", "h200-qwen-image-1280"])
def test_checkpoint_costs_a_trainer_on_a_gpu_less_than_its_writing_takes(name):
    shipped = Profile.load(name)
    assert shipped.seconds(Operation.SNAPSHOT) < shipped.seconds(Operation.CHECKPOINT)
    assert shipped.provenance(Operation.SNAPSHOT) is not Provenance.LITERATURE


def test_trainer_fetches_like_other_workers_if_the_profile_has_no_adopt_time():
    shipped = Profile.load("cpu-words")
    assert Operation.ADOPT not in shipped.operations
    assert shipped.seconds(Operation.ADOPT) == shipped.seconds(Operation.NODE_FETCH)


def test_trainer_is_held_until_its_checkpoint_is_on_disk_if_the_profile_has_no_snapshot_time():
    shipped = Profile.load("cpu-words")
    assert Operation.SNAPSHOT not in shipped.operations
    assert shipped.seconds(Operation.SNAPSHOT) == shipped.seconds(Operation.CHECKPOINT)


def test_a_batch_of_larger_pictures_takes_longer_on_the_same_machine():
    small, large = Profile.load("h200-qwen-image-512"), Profile.load("h200-qwen-image-1280")
    for operation in (Operation.DENOISE_STEP, Operation.TRAIN_TIMESTEP, Operation.DECODE):
        assert small.seconds(operation, batch=8) < large.seconds(operation, batch=8)


def test_a_derived_crew_is_quicker_by_the_tabled_speed_up():
    crews = derive.crews([Point(1, 1, 2.0, 4.0)], tokens=6400, degrees=(2, 4))
    assert crews.provenance is Provenance.DERIVED
    for point in crews.points:
        assert (point.p50, point.p99) == pytest.approx(
            (2.0 / Efficiency().speed_up(6400, point.degree), 4.0 / Efficiency().speed_up(6400, point.degree))
        )


def test_a_derived_gang_waits_longer_for_more_ranks_and_more_gradients():
    alone = Point(1, 1, 0.5, 0.5)
    two, eight = derive.gangs(alone, 10**9, degrees=(2, 8)).points
    assert alone.p50 < two.p50 < eight.p50
    assert derive.gangs(alone, 2 * 10**9, degrees=(2,)).points[0].p50 > two.p50


def figures(name: str) -> dict[str, dict[str, float]]:
    return json.loads((RESULTS / f"{name}.json").read_text())["figures"]


def test_cited_figures_are_those_of_their_source():
    regroup, newcomer = figures("regroup"), figures("newcomer")
    assert (regroup["regroup_p50_s"]["value"], regroup["regroup_p99_s"]["value"]) == cited.REGROUP
    assert (regroup["detect_s"]["value"], regroup["detect_p99_s"]["value"]) == cited.DETECT
    assert (regroup["form_s"]["value"], regroup["form_p99_s"]["value"]) == cited.FORM
    assert tuple(newcomer["nccl_form_1_rank_s"][part] for part in ("value", "high")) == cited.NCCL_FORM
    assert tuple(newcomer["from_neighbour_s"][part] for part in ("value", "high")) == cited.NEIGHBOUR
    start = figures("cold-start")["start_read_ahead_s"]
    assert (start["value"], start["high"]) == cited.COLD_START

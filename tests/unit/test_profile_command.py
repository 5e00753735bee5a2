"""`spotlight profile`: what it measures, what it writes, and what it refuses before it begins."""

import sys
from functools import partial

import pytest
import torch
from command_line import spotlight

from spotlight.compute.fast.fast_model import accelerate
from spotlight.compute.profiling import start
from spotlight.compute.profiling import subject as profiled
from spotlight.compute.profiling.on_device import eager_seconds
from spotlight.compute.profiling.operations import MEASURES, LeftOut, measurements
from spotlight.compute.profiling.stopwatch import Stopwatch, point
from spotlight.compute.profiling.subject import QUICK_BATCHES, QwenImageShape, random_qwen_image
from spotlight.control.profiles import Operation, Point, Profile, Provenance
from spotlight.core.errors import EnvironmentProblem, SpotlightError
from spotlight.core.types import Size

SLOW = {Operation.WORKER_START, Operation.REWARD}
"""Operations that start processes that import everything, which takes long; they have tests of their own."""
QUICK = ",".join(sorted(set(Operation) - SLOW))
SMALL_QWEN_IMAGE = QwenImageShape(
    transformer={
        "num_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 16,
        "axes_dims_rope": (4, 6, 6),
    },
    vae={"base_dim": 8, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1},
)  # fmt: skip
WATCH = Stopwatch(device=torch.device("cpu"), repeats=2, patience_s=0.2)


@pytest.fixture(autouse=True)
def _same_threads_afterwards():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_words_are_profiled_and_the_file_is_a_profile(tmp_path):
    path = tmp_path / "desk.json"
    outcome = spotlight("profile", "--model", "words", "--quick", "--only", QUICK, "--out", path, "--json")
    assert outcome.code == 0, outcome.err
    found = Profile.load(path)
    assert found.to_json() == Profile.from_json(outcome.out.encode(), "standard output").to_json()
    assert (found.name, found.model, found.width, found.height, found.tokens) == ("desk", "words", 96, 32, 48)
    found.require(
        set(Operation) - SLOW - {Operation.PREVIEW_STEP, Operation.FP8_PREVIEW_STEP, Operation.ADOPT}, "any recipe"
    )
    assert all(found.seconds(operation) > 0 for operation in found.operations)
    measured = (Operation.DENOISE_STEP, Operation.OPTIMIZER_STEP, Operation.CHECKPOINT, Operation.PUBLISH)
    for operation in (*measured, Operation.SNAPSHOT):
        assert found.provenance(operation) is Provenance.MEASURED
    (snapshot,) = found.operations[Operation.SNAPSHOT].series
    assert "steps of training were longer" in snapshot.how
    assert found.provenance(Operation.DENOISE_STEP, degree=4) is Provenance.DERIVED


def test_the_reward_of_a_world_is_timed_in_a_process_of_its_own(tmp_path):
    path = tmp_path / "desk.json"
    assert spotlight("profile", "--model", "scenes", "--quick", "--only", "reward", "--out", path).code == 0
    assert Profile.load(path).seconds(Operation.REWARD, 4) >= Profile.load(path).seconds(Operation.REWARD, 1) > 0


def test_a_given_profile_fills_in_what_was_not_measured(tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    spotlight("profile", "--quick", "--only", "decode,role_switch,publish", "--out", first)
    spotlight("profile", "--quick", "--only", "decode", "--like", first, "--out", second)
    lender, borrower = Profile.load(first), Profile.load(second)
    assert borrower.operations[Operation.PUBLISH] == lender.operations[Operation.PUBLISH]
    assert borrower.operations[Operation.DECODE] != lender.operations[Operation.DECODE]
    assert "'first'" in borrower.notes


def test_a_given_profile_of_another_machine_fills_in_nothing(tmp_path):
    path = tmp_path / "desk.json"
    shipped = tmp_path / "far.json"
    shipped.write_bytes(Profile.load("h200-qwen-image-512").to_json())
    outcome = spotlight("profile", "--quick", "--only", "decode", "--like", shipped, "--out", path)
    assert outcome.code == 2
    assert "another model's or machine's" in outcome.err
    assert not path.exists()


def test_profile_of_which_nothing_can_be_measured_is_an_error_and_not_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = spotlight("profile", "--quick", "--only", "adopt")
    assert (outcome.code, outcome.out) == (3, "")
    assert "none of the operations (adopt) can be measured here, because on a CPU" in outcome.err
    assert "profile-words.json was not written" in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--only", "denoise"), "did you mean 'denoise_step'?"),
        (("--out", "desk.txt"), "end it in .json"),
        (("--out", "nowhere/desk.json"), "there is no folder nowhere"),
        (("--model", "qwen-image"), "add --random-weights"),
        (("--model", "words", "--random-weights"), "drop --random-weights"),
        (("--model", "wrods"), "did you mean 'words'?"),
        (("--model", "qwen-image", "--random-weights", "--beside", "1"), "drop it"),
    ],
)
def test_impossible_requests_are_refused_before_anything_is_written(arguments, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = spotlight("profile", "--quick", *arguments)
    assert outcome.code == 2
    assert problem in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_qwen_image_of_random_weights_is_profiled_through_the_same_operations():
    subject = random_qwen_image(torch.device("cpu"), Size(64, 96), SMALL_QWEN_IMAGE, QUICK_BATCHES)
    wanted = [operation for operation in Operation if operation is not Operation.WORKER_START]
    outcomes = dict(measurements(subject, WATCH, wanted))
    assert set(outcomes) == set(wanted)
    left_out = [operation for operation, outcome in outcomes.items() if isinstance(outcome, LeftOut)]
    # In float32 previews compute as rollouts do.
    assert left_out == [Operation.PREVIEW_STEP, Operation.FP8_PREVIEW_STEP, Operation.ADOPT]
    assert subject.tokens == 4 * 6
    assert outcomes[Operation.PEER_COPY].series[0].how.startswith("Cited")
    assert "rank 64" in outcomes[Operation.TRAIN_TIMESTEP].series[0].how


@pytest.mark.slow
def test_compiled_model_is_profiled_with_fp8_previews_and_says_so(monkeypatch):
    monkeypatch.setattr(profiled, "accelerate", partial(accelerate, backend="aot_eager"))
    subject = random_qwen_image(torch.device("cpu"), Size(64, 96), SMALL_QWEN_IMAGE, QUICK_BATCHES)
    before = eager_seconds(subject, WATCH)
    assert "denoise_step" in before
    assert "train_timestep" in before
    subject.make_fast(fp8_previews=True)
    wanted = [Operation.DENOISE_STEP, Operation.PREVIEW_STEP, Operation.FP8_PREVIEW_STEP, Operation.TRAIN_TIMESTEP]
    outcomes = dict(measurements(subject, WATCH, wanted))
    # A compiled model rounds adapters in every forward.
    assert isinstance(outcomes.pop(Operation.PREVIEW_STEP), LeftOut)
    how = {operation: outcome.series[0].how for operation, outcome in outcomes.items()}
    assert "compiled with masked attention" in how[Operation.DENOISE_STEP]
    assert "linear layers in fp8" in how[Operation.FP8_PREVIEW_STEP]
    assert "0 of 1 blocks computed again" in how[Operation.TRAIN_TIMESTEP]
    assert outcomes[Operation.DENOISE_STEP].series[1].provenance is Provenance.DERIVED


@pytest.mark.parametrize("operation", [Operation.SNAPSHOT, Operation.CHECKPOINT])
def test_state_that_is_copied_or_saved_has_moments_though_no_step_was_timed_before(operation):
    subject = random_qwen_image(torch.device("cpu"), Size(64, 96), SMALL_QWEN_IMAGE, QUICK_BATCHES)
    dict(measurements(subject, WATCH, [operation]))
    moments = subject.trainer.optimizer.state.values()
    assert sum("exp_avg" in each for each in moments) > len(subject.trainer.sets.theta) / 2


def test_a_worker_that_cannot_be_started_is_left_out_with_its_last_output(monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'no room for the model' >&2\nexit 1\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    subject = profiled.tiny_subject("words", "cpu")
    ((_, outcome),) = measurements(subject, WATCH, [Operation.WORKER_START])
    assert isinstance(outcome, LeftOut)
    assert "no room for the model" in outcome.why


@pytest.mark.parametrize("model", ["words", "qwen-image"])
def test_worker_starts_up_to_its_hello(model, monkeypatch):
    built = []
    monkeypatch.setattr(profiled, "tiny_subject", lambda name, device: built.append((name, device)))
    start.main(model, "cpu")
    assert built == ([("words", "cpu")] if model == "words" else [])


def test_a_worker_cannot_start_without_its_model():
    with pytest.raises(SpotlightError, match="no-such-model"):
        start.main("no-such-model", "cpu")


def test_an_operation_that_fails_on_the_machine_is_left_out_with_the_reason(monkeypatch):
    def full(subject, watch):
        raise EnvironmentProblem("the disk is full; free some.")

    monkeypatch.setitem(MEASURES, Operation.CHECKPOINT, full)
    subject = random_qwen_image(torch.device("cpu"), Size(64, 64), SMALL_QWEN_IMAGE, QUICK_BATCHES)
    outcomes = dict(measurements(subject, WATCH, [Operation.CHECKPOINT, Operation.DECODE]))
    assert outcomes[Operation.CHECKPOINT] == LeftOut("the disk is full; free some.")
    assert not isinstance(outcomes[Operation.DECODE], LeftOut)


def test_a_stopwatch_counts_no_warm_up_and_stops_when_its_patience_ends():
    done = []
    assert len(Stopwatch(device=torch.device("cpu"), repeats=3, patience_s=60).times(lambda: done.append(1))) == 3
    assert len(done) == 4
    assert len(Stopwatch(device=torch.device("cpu"), repeats=3, patience_s=0).times(lambda: None)) == 1


def test_a_stopwatch_repeats_quick_actions_for_its_least_time():
    seconds = Stopwatch(device=torch.device("cpu"), repeats=1, patience_s=0, least_s=0.01).times(lambda: None)
    assert len(seconds) > 1
    assert sum(seconds) >= 0.01


def test_a_point_has_the_median_and_the_longest_of_few_times():
    assert point([3.0, 1.0, 2.0], batch=4) == Point(4, 1, 2.0, 3.0)
    assert point([float(n) for n in range(1, 201)]).p99 == 198.0

"""Cost of training in virtual time: parts of a step, batches over pairs or samples, changes of role."""

import msgspec
import pytest

from spotlight.compute.profiling.pace import Pace, ProfiledPace, TrainingCost, preview_operation
from spotlight.config import load_config
from spotlight.control.explore.config import Precision
from spotlight.control.pipeline.tsp import BatchesOver
from spotlight.control.profiles import Operation, Profile
from spotlight.core import messages as m
from spotlight.core.errors import ConfigError
from spotlight.core.types import Prompt, Sample, Sampling, Size, Version
from spotlight.core.work import Request, Work
from spotlight.sim.simulate import check

PROFILE = Profile.load("h200-qwen-image-512")
PROMPT = Prompt(text="a lantern")
SWITCH_S = PROFILE.seconds(Operation.ROLE_SWITCH)
BATCH = 8


def pace(over: BatchesOver = BatchesOver.PAIRS, **fields: float) -> ProfiledPace:
    cost = TrainingCost(timesteps=2, forwards=0, over=over)
    times = dict.fromkeys(("step_s", "start_s", "load_s", "train_s", "heartbeat_s"), 1.0)
    return ProfiledPace(**times, profile=PROFILE, cost=cost, train_batch=BATCH, **fields)


def order(images: int, **fields: object) -> m.Train:
    sampling = Sampling(steps=4, size=Size(32, 96))
    items = tuple(
        m.TrainItem(
            request=Request(
                work=Work.ROLLOUT,
                iteration=0,
                group=0,
                sample=Sample(prompt=PROMPT.id, seed=seed, sampling=sampling, version=Version(0)),
            ),
            prompt=PROMPT,
            payload="",
            advantage=1.0,
            kept=True,
        )
        for seed in range(images)
    )
    return m.Train(**{"step": 0, "iteration": 0, "items": items, "last": False, **fields})


def batch_s(rows: int) -> float:
    return PROFILE.seconds(Operation.TRAIN_TIMESTEP, rows)


def test_part_costs_its_share_and_the_last_one_the_optimizer_step_too():
    whole, parted = pace(), pace()
    first = parted.train(order(8, samples=16, is_final=False))
    last = parted.train(order(8, samples=16, part=1))
    assert first == pytest.approx(SWITCH_S + 2 * batch_s(BATCH))
    assert last == pytest.approx(2 * batch_s(BATCH) + PROFILE.seconds(Operation.OPTIMIZER_STEP))
    assert first + last == pytest.approx(whole.train(order(16)))


def test_batches_over_samples_are_as_small_as_the_part_and_over_pairs_are_filled():
    seconds = {over: pace(over).train(order(4, samples=16, is_final=False)) - SWITCH_S for over in BatchesOver}
    assert seconds[BatchesOver.PAIRS] == pytest.approx(batch_s(8))
    assert seconds[BatchesOver.SAMPLES] == pytest.approx(2 * batch_s(4))
    large = [pace(over).train(order(64)) for over in BatchesOver]
    assert large[0] == pytest.approx(large[1])


def cost_of(config):
    return TrainingCost.of(config.algorithm, config.rollout, config.train.batches_over)


def test_timesteps_of_an_image_are_limited_by_the_length_of_its_path():
    changes = [["rollout.steps=10", f"algorithm.timesteps_per_sample={count}"] for count in (10, 99)]
    exact, capped = (cost_of(load_config("words-nft", change)) for change in changes)
    assert capped == exact
    assert capped.timesteps == 10


def test_change_of_role_is_charged_once_each_time_it_is_made():
    worker = pace()
    assert worker.roll() == 0.0
    costs = [worker.train(order(8, samples=24, part=part, is_final=False)) for part in range(2)]
    assert costs[0] - costs[1] == pytest.approx(SWITCH_S)
    assert [worker.roll(), worker.roll()] == [SWITCH_S, 0.0]
    last = worker.train(order(8, samples=24, part=2, last=True))
    assert last == pytest.approx(SWITCH_S + 2 * batch_s(BATCH) + PROFILE.seconds(Operation.OPTIMIZER_STEP))
    assert worker.roll() == SWITCH_S


def test_worker_that_does_not_roll_out_between_two_iterations_changes_no_role():
    worker = pace()
    worker.train(order(8, last=True))
    again = worker.train(order(8, last=True))
    assert again == pytest.approx(2 * batch_s(BATCH) + PROFILE.seconds(Operation.OPTIMIZER_STEP))


def test_slower_slot_takes_proportionally_longer_for_all_that_it_computes():
    plain, slow = pace(), pace(slowness=2.0)
    assert slow.step(4, 4, 1) == pytest.approx(2 * plain.step(4, 4, 1))
    assert slow.decode(4) == pytest.approx(2 * plain.decode(4))


def test_images_are_those_of_the_profile_whatever_size_the_samples_have():
    profiled = pace()
    profiled.profile = Profile.load("h200-qwen-image-1280")
    assert profiled.image(Size(32, 96)) == (Size(1280, 1280), 6400)
    assert Pace(1.0, 1.0, 1.0, 1.0, 1.0).image(Size(32, 96)) == (Size(32, 96), 48)


def test_source_that_was_not_measured_costs_as_much_as_the_store():
    assert (pace().adopt(), pace().copy()) == (1.0, 1.0)
    assert (pace(adopt_s=0.25).adopt(), pace(copy_s=0.5).copy()) == (0.25, 0.5)


def test_checkpoint_holds_its_trainer_for_the_snapshot_or_if_that_was_not_measured_for_all_of_it():
    operations = PROFILE.operations | {Operation.SNAPSHOT: PROFILE.operations[Operation.ADOPT]}
    quick, held = pace(), pace()
    quick.profile = msgspec.structs.replace(PROFILE, operations=operations)
    without = {name: times for name, times in PROFILE.operations.items() if name is not Operation.SNAPSHOT}
    held.profile = msgspec.structs.replace(PROFILE, operations=without)
    in_all = PROFILE.seconds(Operation.CHECKPOINT)
    assert (quick.save(), quick.snapshot()) == (in_all, PROFILE.seconds(Operation.ADOPT))
    assert quick.write() == pytest.approx(in_all - PROFILE.seconds(Operation.ADOPT))
    assert (held.snapshot(), held.write()) == (in_all, 0.0)


def with_previews(**seconds: float) -> Profile:
    """The profile without steps of previews, but for these, of any number of rows."""
    step = PROFILE.operations[Operation.DENOISE_STEP]
    kept = {op: times for op, times in PROFILE.operations.items() if "preview" not in op.value}
    points = {name: tuple(msgspec.structs.replace(p, p50=s, p99=s) for p in step.points) for name, s in seconds.items()}
    series = {name: (msgspec.structs.replace(step.series[0], points=made),) for name, made in points.items()}
    added = {Operation(name): msgspec.structs.replace(step, series=made) for name, made in series.items()}
    return msgspec.structs.replace(PROFILE, operations=kept | added)


@pytest.mark.parametrize(("precision", "seconds"), [(Precision.EXACT, 0.5), (Precision.FP8, 0.25)])
def test_previews_are_charged_in_the_arithmetic_that_the_recipe_chooses(precision, seconds):
    profile = with_previews(preview_step=0.5, fp8_preview_step=0.25)
    previews = preview_operation(profile, precision)
    charged = pace(previews=previews)
    charged.profile = profile
    assert charged.step(8, 8, 1, is_exact=False) == seconds
    assert charged.step(8, 8, 1) == PROFILE.seconds(Operation.DENOISE_STEP, 8)


def test_exact_previews_are_steps_of_rollouts_and_fp8_ones_are_refused_if_no_preview_was_timed():
    profile = with_previews()
    assert preview_operation(profile, Precision.EXACT) is Operation.DENOISE_STEP
    config = load_config("words-nft", ["explore.enabled=on", "explore.precision=fp8"])
    with pytest.raises(ConfigError, match="has no fp8_preview_step"):
        check(config, profile, "words-nft")

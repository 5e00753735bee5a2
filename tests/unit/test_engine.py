"""The engine: a sample's bits do not depend on the samples in its forwards nor on the worker that began it."""

import random

import msgspec
import numpy as np
import pytest
import torch
from engine_stories import (
    BASE_DIGEST,
    admit,
    bits,
    engine,
    finish,
    ids,
    made_alone,
    steps_of,
    take_steps,
    wanted,
)
from tiny_models import PROMPTS, SIZE, SPEC, rolled_out, tiny_adapter, tiny_sampling

from spotlight.compute.evaluation import generate, to_images
from spotlight.compute.models.adapter import ConditionBatch
from spotlight.compute.models.pixels import PixelAdapter
from spotlight.compute.rollout.engine import Engine, decode_images
from spotlight.compute.rollout.sealed import SealError
from spotlight.compute.scores import EVALUATION_SEED
from spotlight.compute.weights.digest import fingerprint
from spotlight.compute.weights.resident import Resident
from spotlight.compute.weights.store import NodeStore
from spotlight.core.errors import ConfigError, Diverged, PromptError, SizeError, WeightsError
from spotlight.core.types import Prompt, SamplerKind, Size, Version, Window
from spotlight.core.work import Policy, Request, WeightsId, Work

FLOW = SamplerKind.FLOW_SDE


def mixed(count: int = 8, guidance: float = 1.0) -> list[Request]:
    """Requests of all prompts, samplers and step counts, some with windows."""
    requests = []
    for index in range(count):
        kind = sorted(SamplerKind)[index % 5]
        window = Window(index % 3, 2) if kind.draws_noise else Window(0, 0)
        sampling = tiny_sampling(kind, window, steps=5 + index % 3, guidance=guidance)
        requests.append(wanted(index, sampling, PROMPTS[index % 3]))
    return requests


# --- numerics ---


@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize("kind", sorted(SamplerKind))
def test_samples_of_the_engine_are_those_of_roll_out_to_the_last_bit(kind, guidance):
    windows = [Window(index % 3, 2) if kind.draws_noise else Window(0, 0) for index in range(8)]
    requests = [
        wanted(index, tiny_sampling(kind, window, guidance=guidance), PROMPTS[index % 4])
        for index, window in enumerate(windows)
    ]
    by = engine(rows=8)
    admit(by, *requests)
    done, made = finish(by), rolled_out(tiny_adapter(), [request.sample for request in requests])
    for row, request in enumerate(requests):
        payload = done[request.id].payload
        assert torch.equal(payload.x0_SC, made.x0_BSC[row])
        assert torch.equal(payload.path_KSC, made.path_BKSC[row])
        assert torch.equal(payload.mean_KSC, made.mean_BKSC[row])
        assert torch.equal(payload.log_prob_K, made.log_prob_BK[row])
    assert made.path_BKSC.shape[1] == (3 if kind.draws_noise else 0)


@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize("rows", [4, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (8, 12))])
def test_padded_sample_with_any_neighbours_at_any_steps_keeps_its_bits(rows, guidance):
    """Samples of all kinds come and go at random boundaries, so each meets others at other steps in another row."""
    requests = mixed(12, guidance)
    expected = {request.id: bits(made_alone(request, rows)) for request in requests}
    for seed in range(3):
        chance, by, done = random.Random(seed), engine(rows=rows), {}
        waiting = chance.sample(requests, len(requests))
        while waiting or by.free_rows < by.rows:
            for _ in range(min(by.free_rows, chance.randrange(3), len(waiting))):
                admit(by, waiting.pop())
            done |= {finished.request.id: bits(finished) for finished in by.step().finished}
        assert done == expected


def test_unpadded_samples_agree_closely():
    requests = mixed(5)
    by = engine(rows=5, padded=False)
    admit(by, *requests)
    done = finish(by)
    for request in requests:
        expected = made_alone(request)
        torch.testing.assert_close(done[request.id].payload.x0_SC, expected.payload.x0_SC, rtol=0, atol=1e-5)


def test_sample_beside_a_longer_text_keeps_its_bits():
    """Some families pad texts to the longest of a batch, and the width of the text moves last bits."""

    class Narrow(PixelAdapter):
        def collate(self, conditionings):
            full = super().collate(conditionings)
            longest = max(len(conditioning.embeds) for conditioning in conditionings)
            return ConditionBatch(full.embeds[:, :longest], full.mask[:, :longest])

    adapter = Narrow(SPEC, tiny_adapter().transformer)
    short, long = (wanted(0, prompt=prompt) for prompt in (PROMPTS[0], PROMPTS[3]))
    by = engine(adapter)
    admit(by, short, long)
    assert bits(finish(by)[short.id]) == bits(made_alone(short, adapter=adapter))


def test_rows_of_a_padded_engine_are_rounded_up_to_a_multiple_of_four():
    assert [engine(rows=rows).free_rows for rows in (1, 4, 6)] == [4, 4, 8]
    assert engine(rows=6, padded=False).free_rows == 6


def test_evaluation_draws_the_pictures_of_evaluate():
    adapter, sampling = tiny_adapter(), tiny_sampling()
    requests = [
        wanted(seed, sampling, prompt, work=Work.EVALUATION) for seed, prompt in zip(range(4), PROMPTS, strict=True)
    ]
    by = engine(adapter, rows=4)
    admit(by, *requests)
    done = finish(by)
    images = decode_images(adapter, [done[request.id] for request in requests])
    expected = generate(adapter, PROMPTS, sampling, EVALUATION_SEED, range(4), batch=4)
    assert all(np.array_equal(image, other) for image, other in zip(images, expected, strict=True))


def test_decoded_images_are_those_of_the_latents_in_order():
    adapter, requests = tiny_adapter(), mixed(3)
    finished = [made_alone(request) for request in requests]
    images = decode_images(adapter, finished)
    for image, done in zip(images, finished, strict=True):
        assert image.shape == (SIZE.height, SIZE.width, 3)
        assert np.array_equal(image, to_images(adapter.decode(done.payload.x0_SC[None], SIZE))[0])


# --- boundaries ---


def test_samples_at_different_steps_share_a_forward():
    early, late = wanted(0), wanted(1, tiny_sampling(FLOW, Window(1, 2), steps=7))
    by = engine()
    admit(by, early)
    take_steps(by, 2)
    admit(by, late)
    boundary = by.step()
    assert (boundary.rows, boundary.work) == (2, Work.ROLLOUT)
    assert steps_of(by) == {early.id: 3, late.id: 1}


def test_rollouts_are_stepped_before_previews_that_came_first():
    preview, rollout = (wanted(0, tiny_sampling(guidance=2.0), work=Work.PREVIEW), wanted(1))
    by = engine()
    admit(by, preview)
    by.step()
    admit(by, rollout)
    works = [by.step().work for _ in range(6)]
    assert works == [Work.ROLLOUT] * 5 + [Work.PREVIEW]


def test_previews_fill_the_forwards_of_rollouts_of_their_bucket():
    preview, rollout = wanted(0, tiny_sampling(steps=3), work=Work.PREVIEW), wanted(1)
    by = engine()
    admit(by, preview, rollout)
    take_steps(by, 2)
    boundary = by.step()
    assert (boundary.work, boundary.rows) == (Work.ROLLOUT, 2)
    assert [finished.request.id for finished in boundary.finished] == [preview.id]


def test_previews_of_both_solvers_share_their_forwards():
    previews = [
        wanted(seed, tiny_sampling(kind, steps=4), work=Work.PREVIEW)
        for seed, kind in enumerate([SamplerKind.ODE, SamplerKind.ODE2] * 2)
    ]
    by = engine()
    admit(by, *previews)
    assert [by.step().rows for _ in range(3)] == [4, 4, 4]
    done = {finished.request.id: bits(finished) for finished in by.step().finished}
    assert done == {preview.id: bits(made_alone(preview)) for preview in previews}


def test_step_without_samples_does_nothing():
    boundary = engine().step()
    assert (boundary.work, boundary.rows, boundary.finished, boundary.commits) == (None, 0, (), ())


@pytest.mark.parametrize("kind", [SamplerKind.ODE, SamplerKind.ODE2, FLOW])
def test_sample_withdrawn_at_any_boundary_and_resumed_elsewhere_keeps_its_bits(kind):
    """The window of the SDE lies at steps 2 and 3, so there are flights before, inside and after it."""
    request = wanted(3, tiny_sampling(kind, Window(2, 2) if kind is FLOW else Window(0, 0), steps=6), PROMPTS[2])
    expected = bits(made_alone(request))
    for boundary in range(1, 6):
        first, second = engine(), engine()
        admit(first, wanted(8), request)
        take_steps(first, boundary)
        handed = first.withdraw(request.id)
        assert handed.step == boundary
        assert steps_of(first).keys() <= {wanted(8).id}
        admit(second, wanted(9, tiny_sampling(steps=9)))
        second.step()
        admit(second, request, attempt=2, flight=handed.flight)
        done = finish(second)[request.id]
        assert bits(done) == expected
        assert (done.steps, done.attempt) == (6 - boundary, 2)


def test_commits_fall_due_every_k_steps_of_an_attempt_and_never_at_the_end():
    request = wanted(0, tiny_sampling(steps=6))
    by = engine()
    admit(by, request, commit_every=2)
    boundaries = [by.step() for _ in range(6)]
    assert [[commit.step for commit in boundary.commits] for boundary in boundaries] == [[], [2], [], [4], [], []]
    last = boundaries[3].commits[0]
    again = engine()
    admit(again, request, attempt=2, commit_every=2, flight=last.flight)
    assert bits(finish(again)[request.id]) == bits(boundaries[5].finished[0])


def test_requested_commit_delays_the_next_one():
    request = wanted(0, tiny_sampling(steps=6))
    by = engine()
    admit(by, request, commit_every=3)
    take_steps(by, 2)
    (committed,) = by.commit([request.id])
    assert (committed.step, committed.attempt) == (2, 1)
    assert [[commit.step for commit in by.step().commits] for _ in range(4)] == [[], [], [5], []]


def test_commit_of_samples_that_are_gone_or_took_no_step_gives_none():
    fresh = wanted(0)
    by = engine()
    admit(by, fresh)
    assert by.commit([fresh.id, wanted(77).id]) == []


def test_sample_withdrawn_before_its_first_step_has_no_flight():
    request = wanted(0)
    by = engine()
    admit(by, request, attempt=4)
    handed = by.withdraw(request.id)
    assert (handed.step, handed.attempt, handed.flight) == (0, 4, None)
    assert by.withdraw(request.id) is None
    assert by.free_rows == 8


def test_discarded_previews_leave_the_rollouts():
    previews = [wanted(seed, work=Work.PREVIEW) for seed in range(3)]
    rollout = wanted(9)
    by = engine()
    admit(by, previews[0], rollout, *previews[1:])
    assert by.discard(Work.PREVIEW) == ids(previews)
    assert by.discard(Work.PREVIEW) == []
    assert bits(finish(by)[rollout.id]) == bits(made_alone(rollout))


def test_fence_drops_the_attempt_it_names_and_no_newer_one():
    request = wanted(0)
    by = engine()
    admit(by, request, attempt=2)
    assert not by.fence(request.id, 1)
    assert steps_of(by) == {request.id: 0}
    assert by.fence(request.id, 2)
    assert by.free_rows == 8


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_sample_that_ends_non_finite_is_refused_by_name_and_nothing_advances(wrong, monkeypatch):
    good, bad = wanted(0, tiny_sampling(steps=6)), wanted(1, prompt=PROMPTS[1])
    adapter = tiny_adapter()
    by = engine(adapter)
    admit(by, good, bad)
    take_steps(by, 4)
    real = adapter.velocity
    monkeypatch.setattr(adapter, "velocity", lambda *given: real(*given).index_fill(0, torch.tensor([1]), wrong))
    with pytest.raises(Diverged, match=f"1 of 1 samples .* prompt {bad.sample.prompt}, seed 1 at version 0"):
        by.step()
    assert steps_of(by) == {good.id: 4, bad.id: 4}
    monkeypatch.undo()
    done = finish(by)
    assert bits(done[good.id]) == bits(made_alone(good))
    assert bits(done[bad.id]) == bits(made_alone(bad))


# --- weights ---


def test_batch_has_one_version_and_each_sample_the_bits_of_its_own(tmp_path):
    """Version 1 is mapped from a store, version 0 is the module's own memory: where weights lie changes no bit."""
    other = tiny_adapter(seed=1)
    state, store = dict(other.transformer.named_parameters()), NodeStore(tmp_path)
    store.publish(WeightsId(Version(1)), "tiny", state, BASE_DIGEST)
    old, new = wanted(0, mixed(2)[1].sample.sampling), wanted(1, mixed(2)[1].sample.sampling, version=1)
    by = engine()
    by.resident.load(store.open(WeightsId(Version(1))))
    admit(by, old, new)
    assert by.weights == (WeightsId(Version(0)), WeightsId(Version(1)))
    assert by.step().rows == 1
    done = finish(by)
    assert bits(done[old.id]) == bits(made_alone(old))
    same_under_zero = msgspec.structs.replace(new, sample=msgspec.structs.replace(new.sample, version=Version(0)))
    assert bits(done[new.id]) == bits(made_alone(same_under_zero, adapter=other))
    assert bits(done[new.id]) != bits(made_alone(same_under_zero))
    assert done[new.id].weights_digest == done[new.id].payload.weights_digest == fingerprint(state)
    assert done[old.id].weights_digest == BASE_DIGEST


def test_evaluation_needs_the_average_weights(tmp_path):
    average = WeightsId(Version(1), Policy.AVERAGE)
    store = NodeStore(tmp_path)
    store.publish(average, "tiny", dict(tiny_adapter(seed=1).transformer.named_parameters()), BASE_DIGEST)
    by = engine()
    by.resident.load(store.open(average))
    with pytest.raises(WeightsError, match=r"behaviour-1 .* holds average-1"):
        admit(by, wanted(0, version=1))
    admit(by, wanted(0, version=1, work=Work.EVALUATION))
    assert by.weights == (average,)


# --- refusals ---


def test_sample_beyond_the_rows_is_refused():
    by = engine(rows=2, padded=False)
    admit(by, wanted(0), wanted(1))
    with pytest.raises(ConfigError, match="all 2 rows are in flight"):
        admit(by, wanted(2))


def test_second_attempt_beside_a_live_one_is_refused():
    by = engine()
    admit(by, wanted(0))
    with pytest.raises(ConfigError, match="one live attempt"):
        admit(by, wanted(0), attempt=2)


@pytest.mark.parametrize(
    ("request_", "prompt", "error", "message"),
    [
        pytest.param(wanted(0), PROMPTS[1], ConfigError, "has the text of", id="other-prompt"),
        pytest.param(wanted(0, version=3), PROMPTS[0], WeightsError, "behaviour-3 .* base weights only", id="weights"),
        pytest.param(
            wanted(0, tiny_sampling(FLOW, Window(3, 2))), PROMPTS[0], ConfigError, "window of 2 steps", id="window"
        ),
        pytest.param(
            wanted(0, msgspec.structs.replace(tiny_sampling(), size=Size(8, 8))),
            PROMPTS[0],
            SizeError,
            "8x8",
            id="size",
        ),
    ],
)
def test_sample_that_cannot_be_made_is_refused_and_uses_no_row(request_, prompt, error, message):
    by = engine()
    with pytest.raises(error, match=message):
        by.admit(request_, prompt, 1)
    assert by.free_rows == 8


def test_foreign_flight_is_refused_and_takes_no_row():
    first, by, other = engine(), engine(), engine(base_digest="c" * 32)
    admit(first, wanted(0))
    first.step()
    flight = first.withdraw(wanted(0).id).flight
    with pytest.raises(SealError, match="a flight continues only the sample it was made for"):
        admit(by, wanted(1), flight=flight)
    with pytest.raises(SealError, match="made with weights"):
        admit(other, wanted(0), flight=flight)
    assert by.free_rows == other.free_rows == 8


def test_unknown_letters_are_refused_and_take_no_row():
    prompt = Prompt(text='the word "zzz"')
    request = msgspec.structs.replace(wanted(0), sample=msgspec.structs.replace(wanted(0).sample, prompt=prompt.id))
    by = engine()
    with pytest.raises(PromptError, match="'z'"):
        by.admit(request, prompt, 1)
    assert by.free_rows == 8


def test_step_that_compiles_a_new_shape_warms_up_and_is_not_typical_of_its_speed(monkeypatch):
    adapter = tiny_adapter()
    by = Engine(adapter, Resident(adapter.transformer, BASE_DIGEST), 0, rows=8, padded=False, in_buckets=True)
    seen = []
    velocity = adapter.velocity
    monkeypatch.setattr(adapter, "velocity", lambda *inputs: (seen.append(by.warms_up), velocity(*inputs))[1])
    admit(by, *(wanted(seed) for seed in range(3)))
    typical = [by.step().is_typical for _ in range(3)]
    assert typical == [False, True, True]
    assert seen == [True, False, False]
    assert not by.warms_up
    by.withdraw(wanted(0).id)
    by.withdraw(wanted(1).id)
    assert not by.step().is_typical

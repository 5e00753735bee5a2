"""Flights and payloads as bytes: exact on arrival, or refused in one sentence."""

import pickle
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from engine_stories import BASE_DIGEST, admit, engine, finish, ids, take_steps, wanted
from safetensors.torch import load
from tiny_models import PROMPTS, SIZE, rolled_out, tiny_adapter, tiny_sampling

from spotlight.compute.rollout.flight import Flight, Payload, join_payloads
from spotlight.compute.rollout.sealed import SealError
from spotlight.core.types import SamplerKind, Version, Window
from spotlight.core.work import Request, Work

FLOW = SamplerKind.FLOW_SDE
ADAPTER = tiny_adapter()
SHAPE = ADAPTER.latent_shape(SIZE)
CPU = torch.device("cpu")
REQUEST = wanted(5, tiny_sampling(FLOW, Window(1, 2), steps=5), PROMPTS[1])
SECOND_ORDER = wanted(5, tiny_sampling(SamplerKind.ODE2, steps=5), PROMPTS[1], work=Work.PREVIEW)


def committed(request: Request = REQUEST, step: int = 2) -> bytes:
    by = engine(ADAPTER, rows=4)
    admit(by, request)
    take_steps(by, step)
    return by.withdraw(request.id).flight


def read(data: bytes, request: Request = REQUEST, digest: str = BASE_DIGEST, shape: tuple = SHAPE) -> Flight:
    return Flight.from_bytes(data, request, digest, shape)


def finished_group(kind: SamplerKind = FLOW) -> tuple[list[Request], list[bytes]]:
    window = Window(1, 2) if kind is FLOW else Window(0, 0)
    requests = [wanted(seed, tiny_sampling(kind, window), prompt) for seed, prompt in enumerate(PROMPTS)]
    by = engine(ADAPTER, rows=4)
    admit(by, *requests)
    done = finish(by)
    return requests, [done[request].payload.to_bytes() for request in ids(requests)]


def sentence_of(refusal: pytest.ExceptionInfo) -> str:
    """The text of a refusal, which is one sentence."""
    text = str(refusal.value)
    assert text.endswith(".")
    assert ". " not in text
    return text


# --- flights ---


@pytest.mark.parametrize(("step", "taken"), [(1, 0), (2, 1), (3, 2), (4, 2)])
def test_flight_holds_the_window_steps_taken_so_far(step, taken):
    flight = read(committed(step=step))
    assert (flight.step, flight.attempt, flight.request) == (step, 1, REQUEST)
    assert flight.path_RSC.shape == (taken + 1 if taken else 0, *SHAPE)
    assert flight.mean_RSC.shape == (taken, *SHAPE)
    assert flight.log_prob_R.shape == (taken,)


def test_flight_is_never_rounded():
    """Values that bf16 and fp16 cannot hold, a negative zero and the smallest number survive to the bit."""
    known = read(committed())
    x_SC = known.x_SC.clone()
    x_SC.view(-1)[:4] = torch.tensor([1.0 + 2**-23, 3e38, -0.0, 1e-45])
    again = read(replace(known, x_SC=x_SC).to_bytes())
    assert again.x_SC.numpy().tobytes() == x_SC.numpy().tobytes()
    assert torch.equal(again.path_RSC, torch.cat([known.path_RSC[:-1], x_SC.unsqueeze(0)]))
    assert torch.equal(again.log_prob_R, known.log_prob_R)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(wanted(6, REQUEST.sample.sampling, PROMPTS[1]), id="seed"),
        pytest.param(wanted(5, REQUEST.sample.sampling, PROMPTS[2]), id="prompt"),
        pytest.param(wanted(5, tiny_sampling(FLOW, Window(1, 2), steps=6), PROMPTS[1]), id="steps"),
        pytest.param(wanted(5, REQUEST.sample.sampling, PROMPTS[1], version=1), id="version"),
    ],
)
def test_flight_of_another_sample_is_refused(other):
    """A flight of any other sample, even where the request has the same id."""
    with pytest.raises(SealError, match=f"came for {other.id}") as refusal:
        read(committed(), request=other)
    assert REQUEST.id in sentence_of(refusal)
    assert refusal.value.request == other.id


def test_flight_made_with_other_weights_is_refused():
    with pytest.raises(SealError, match=f"made with weights {BASE_DIGEST} but this worker holds {'d' * 32}") as refusal:
        read(committed(), digest="d" * 32)
    sentence_of(refusal)


def test_flight_of_another_shape_is_refused():
    with pytest.raises(SealError, match="holds tensors") as refusal:
        read(committed(), shape=(SHAPE[0] * 2, SHAPE[1]))
    sentence_of(refusal)


def test_flight_with_a_window_step_missing_is_refused():
    known = read(committed(step=3))
    short = replace(known, path_RSC=known.path_RSC[:2], mean_RSC=known.mean_RSC[:1], log_prob_R=known.log_prob_R[:1])
    with pytest.raises(SealError, match="holds tensors"):
        read(short.to_bytes())


def test_flight_in_half_precision_is_never_written():
    known = read(committed())
    with pytest.raises(TypeError, match="x of 'spotlight-flight-3' is not float32"):
        replace(known, x_SC=known.x_SC.bfloat16()).to_bytes()


@pytest.mark.parametrize("step", [0, 5, 9])
def test_flight_at_an_impossible_step_is_refused(step):
    with pytest.raises(SealError, match=f"at step {step} of 5 is not between two steps"):
        read(replace(read(committed()), step=step).to_bytes())


def test_flight_cut_short_anywhere_is_refused():
    data = committed()
    for length in (*range(0, 1200, 7), len(data) - 1):
        with pytest.raises(SealError, match=f"{length} bytes .* make them again"):
            read(data[:length])
    with pytest.raises(SealError):
        read(data + b"\0")


def test_flight_with_a_flipped_bit_anywhere_is_refused():
    data = committed()
    for place in (*range(1500), *range(1500, len(data), 97)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        with pytest.raises(SealError, match="altered"):
            read(bytes(flipped))


def test_flight_is_plain_safetensors():
    """Other tools can read the file by its format."""
    found = load(committed(step=4))
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {
        "x": SHAPE,
        "path": (3, *SHAPE),
        "log_prob": (2,),
        "mean": (2, *SHAPE),
    }


def test_flight_of_the_second_order_holds_the_velocity_and_that_of_no_other_sampler_does():
    second, first = committed(SECOND_ORDER), committed(wanted(5, tiny_sampling(), PROMPTS[1]))
    assert {name: tuple(tensor.shape) for name, tensor in load(second).items()} == {"x": SHAPE, "velocity": SHAPE}
    assert load(first).keys() == {"x"}
    assert read(committed()).velocity_SC is None
    again = read(second, SECOND_ORDER)
    assert again.to_bytes() == second
    assert again.velocity_SC.abs().min() > 0


def test_flight_of_the_second_order_without_its_velocity_or_another_with_one_is_refused():
    """It would silently continue with a first-order step."""
    known = read(committed(SECOND_ORDER), SECOND_ORDER)
    with pytest.raises(SealError, match="holds tensors") as refusal:
        read(replace(known, velocity_SC=None).to_bytes(), SECOND_ORDER)
    sentence_of(refusal)
    with pytest.raises(SealError, match="holds tensors"):
        read(replace(read(committed()), velocity_SC=known.velocity_SC).to_bytes())


def test_payload_offered_as_a_flight_is_refused():
    _, payloads = finished_group()
    with pytest.raises(SealError, match="'spotlight-payload-1' but 'spotlight-flight-3' is expected"):
        read(payloads[0])


# --- payloads ---


@pytest.mark.parametrize("kind", [SamplerKind.ODE, FLOW])
def test_joined_payloads_are_the_rollout_they_came_from(kind, tmp_path):
    """From bytes and from files, in the order asked for."""
    requests, payloads = finished_group(kind)
    made = rolled_out(ADAPTER, [request.sample for request in requests])
    file = tmp_path / "2.safetensors"
    file.write_bytes(payloads[2])
    shared = tmp_path / "shared"
    shared.write_bytes(payloads[1] + payloads[3])
    place = Path(f"{shared}@{len(payloads[1])}+{len(payloads[3])}")
    order: list[tuple[int, bytes | Path]] = [(3, place), (0, payloads[0]), (2, file)]
    joined = join_payloads([requests[row] for row, _ in order], [payload for _, payload in order], CPU)
    assert joined.samples == tuple(requests[row].sample for row in (3, 0, 2))
    for name in ("x0_BSC", "path_BKSC", "mean_BKSC", "log_prob_BK"):
        assert torch.equal(getattr(joined, name), getattr(made, name)[[3, 0, 2]]), name


def test_payload_of_another_sample_is_refused():
    requests, payloads = finished_group()
    with pytest.raises(SealError, match=f"tensors of {requests[1].id} came for {requests[0].id}") as refusal:
        join_payloads(requests[:2], [payloads[1], payloads[0]], CPU)
    sentence_of(refusal)


def test_payload_that_is_lost_or_damaged_is_named(tmp_path):
    requests, payloads = finished_group()
    with pytest.raises(SealError, match=f"tensors of {requests[1].id} .* lost") as lost:
        join_payloads(requests[:2], [payloads[0], tmp_path / "gone.safetensors"], CPU)
    with pytest.raises(SealError, match=f"tensors of {requests[1].id}") as damaged:
        join_payloads(requests[:2], [payloads[0], payloads[1][:-1]], CPU)
    assert lost.value.request == damaged.value.request == requests[1].id
    assert pickle.loads(pickle.dumps(lost.value)).request == requests[1].id


def test_payload_keeps_the_digest_of_its_weights():
    requests, payloads = finished_group()
    assert Payload.from_bytes(payloads[0], requests[0]).weights_digest == BASE_DIGEST


def test_payload_without_its_window_is_refused():
    requests, payloads = finished_group(SamplerKind.ODE)
    windowed = tiny_sampling(FLOW, Window(1, 2))
    sample = msgspec.structs.replace(requests[0].sample, sampling=windowed, version=Version(0))
    request = msgspec.structs.replace(requests[0], sample=sample)
    bare = replace(Payload.from_bytes(payloads[0], requests[0]), request=request)
    with pytest.raises(SealError, match=f"payload of {request.id} holds tensors"):
        join_payloads([request], [bare.to_bytes()], CPU)

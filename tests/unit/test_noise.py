"""Noise from identity: the same bits in every batch, process and release; another stream for every other identity."""

import hashlib
import itertools
import os
import subprocess
import sys

import msgspec
import pytest
import torch

from spotlight.compute.rollout.noise import DRAWS_PER_THREAD, initial_noise, normals, step_noise
from spotlight.core.rng import Purpose, derive_key, generator, noise_key, shuffled
from spotlight.core.types import PromptId, Sample, Sampling, Size, Version

SHAPE = (6, 192)
SAMPLING = Sampling(steps=5, size=Size(16, 24))
SAMPLES = [
    Sample(prompt=PromptId(prompt), seed=seed, sampling=SAMPLING, version=Version(0))
    for prompt in ("p0", "p1")
    for seed in (0, 1, 2**40)
]

OTHER_PROCESS = """
from test_noise import SAMPLES, SHAPE, sha256
from spotlight.compute.rollout.noise import initial_noise, step_noise
print(sha256(initial_noise(3, SAMPLES, SHAPE)), sha256(step_noise(3, SAMPLES, 4, SHAPE)))
"""


def sha256(tensor):
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:32]


def test_normal_of_a_fixed_key_keeps_its_golden_digest():
    drawn = normals([12345], (3, 5))[0]
    assert drawn.dtype == torch.float32
    assert drawn.shape == (3, 5)
    assert sha256(drawn) == "e279d805306ac8fd5fc70fd7dafe043a"


def test_noise_of_fixed_identities_keeps_its_golden_digest():
    assert noise_key(3, "p0", 0, 0, Purpose.INITIAL) == 0x5F4D5A33D630D4BCA3370A12F434741B
    assert sha256(initial_noise(3, SAMPLES, SHAPE)) == "21e437ecd4eb7bbbed8fb7b370917aae"
    assert sha256(step_noise(3, SAMPLES, 4, SHAPE)) == "b31950a9d4588037b6c4c2d44af26ed6"


def test_normal_of_many_numbers_is_standard():
    drawn = normals([derive_key(Purpose.DATA, 0)], (400, 500)).double()
    assert abs(drawn.mean().item()) < 0.01
    assert abs(drawn.std().item() - 1) < 0.01
    assert abs(drawn.pow(4).mean().item() - 3) < 0.1


def test_noise_in_a_shuffled_batch_is_the_same_for_each_sample():
    order = [4, 0, 5, 2]
    chosen = [SAMPLES[i] for i in order]
    assert torch.equal(initial_noise(3, chosen, SHAPE), initial_noise(3, SAMPLES, SHAPE)[order])
    assert torch.equal(step_noise(3, chosen, 2, SHAPE), step_noise(3, SAMPLES, 2, SHAPE)[order])


def test_noise_in_another_process_is_the_same():
    path = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": path}
    command = [sys.executable, "-c", OTHER_PROCESS]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert printed == [sha256(initial_noise(3, SAMPLES, SHAPE)), sha256(step_noise(3, SAMPLES, 4, SHAPE))]


def test_noise_of_every_other_identity_is_another():
    identities = itertools.product((0, 1, -1), ("p", "q", ""), (0, 1, 10), (0, 1, 10), Purpose)
    firsts = [tuple(row) for row in normals([noise_key(*identity) for identity in identities], (4,)).tolist()]
    assert len(set(firsts)) == len(firsts) == 3 * 3 * 3 * 3 * len(Purpose)


def test_noise_of_the_batch_is_that_of_its_keys():
    """The identity that enters is (run seed, prompt, seed, step) and nothing else of the sample."""
    later = [Sample(prompt=s.prompt, seed=s.seed, sampling=s.sampling, version=Version(9)) for s in SAMPLES]
    expected = normals([noise_key(3, s.prompt, s.seed, 4, Purpose.SDE) for s in SAMPLES], SHAPE)
    assert torch.equal(step_noise(3, later, 4, SHAPE), expected)
    start = normals([noise_key(3, s.prompt, s.seed, 0, Purpose.INITIAL) for s in SAMPLES], SHAPE)
    assert torch.equal(initial_noise(3, later, SHAPE), start)
    assert not torch.equal(step_noise(3, SAMPLES, 0, SHAPE), start)


def test_shared_start_is_one_initial_noise_per_prompt_and_leaves_step_noise_alone():
    together = [msgspec.structs.replace(sample, shared_start=77) for sample in SAMPLES]
    shared = initial_noise(3, together, SHAPE)
    first, second = shared[:3], shared[3:]
    assert torch.equal(first, first[:1].expand_as(first))
    assert torch.equal(second, second[:1].expand_as(second))
    assert not torch.equal(first[0], second[0])
    another = [msgspec.structs.replace(sample, shared_start=78) for sample in SAMPLES]
    assert not (shared == initial_noise(3, another, SHAPE)).all(dim=(1, 2)).any()
    assert torch.equal(step_noise(3, together, 1, SHAPE), step_noise(3, SAMPLES, 1, SHAPE))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(("a", "bc"), ("ab", "c"), id="boundary"),
        pytest.param((1,), ("1",), id="int-or-str"),
        pytest.param((12, 3), (1, 23), id="digits"),
        pytest.param(("a",), ("a", ""), id="empty-part"),
        pytest.param(("i1",), (1,), id="tagged-text"),
        pytest.param(("a", "b"), ("b", "a"), id="order"),
        pytest.param((-1,), (1,), id="sign"),
    ],
)
def test_keys_of_similar_parts_differ(one, other):
    assert derive_key(Purpose.DATA, 0, *one) != derive_key(Purpose.DATA, 0, *other)


def test_key_fits_the_generator_and_is_128_bits_wide():
    keys = [derive_key(Purpose.DATA, seed) for seed in range(64)]
    assert all(0 <= key < 2**128 for key in keys)
    assert max(keys).bit_length() > 120
    # A generator that used half of its key would make these equal.
    assert generator(1).random() != generator(1 + 2**64).random()


def test_shuffled_keeps_every_item_and_follows_the_key():
    items = list("abcdefghij")
    orders = {tuple(shuffled(items, derive_key(Purpose.ORDER, seed))) for seed in range(20)}
    assert len(orders) > 15
    assert all(sorted(order) == items for order in orders)
    assert shuffled(items, 5) == shuffled(items, 5)


def test_a_batch_large_enough_for_threads_draws_what_single_draws_would() -> None:
    keys = [derive_key(Purpose.DATA, 0, number) for number in range(4 * DRAWS_PER_THREAD)]
    together = normals(keys, SHAPE)
    assert torch.equal(together, torch.cat([normals([key], SHAPE) for key in keys]))

"""Chunks in which weights are uploaded: all bytes once, in order, and none larger than its buffer."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from spotlight.compute.weights.upload import loads, upload


@given(st.dictionaries(st.text(min_size=1, max_size=4), st.integers(0, 50), max_size=8), st.integers(1, 40))
def test_chunks_carry_every_byte_once_in_order_and_fit_their_buffer(sizes, room):
    carried: dict[str, list[int]] = {name: [] for name in sizes}
    for load in loads(sizes, room):
        at = 0
        for piece in load:
            assert piece.at == at
            assert piece.length > 0
            at += piece.length
            carried[piece.name] += range(piece.start, piece.start + piece.length)
        assert at <= room
    assert carried == {name: list(range(size)) for name, size in sizes.items()}


def test_weights_already_on_the_device_are_not_copied():
    weights = {"w": torch.ones(3)}
    assert upload(weights, torch.device("cpu"))["w"].data_ptr() == weights["w"].data_ptr()

"""A fingerprint from the sums of any pieces is that of the whole weights."""

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from spotlight.compute.weights import digest
from spotlight.compute.weights.digest import SHIFT, fingerprint, fingerprint_of, partial_totals

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64]


@given(
    rows=st.integers(1, 40),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    dtype=st.sampled_from(DTYPES),
    chunk=st.sampled_from([3, 16, 1 << 16]),
)
def test_pieces_add_up_to_the_fingerprint_of_the_whole(rows, cuts, dtype, chunk):
    before, digest.HOST_CHUNK = digest.HOST_CHUNK, chunk
    try:
        generator = torch.Generator().manual_seed(rows)
        weights = {
            "b": (100 * torch.randn(rows, 3, generator=generator)).to(dtype),
            "a": (100 * torch.randn(rows, generator=generator)).to(dtype),
        }
        bounds = [0, *sorted(min(cut, rows) for cut in cuts), rows]
        totals = [0, 0]
        for start, stop in pairwise(bounds):
            pieces = {name: tensor[start:stop] for name, tensor in weights.items()}
            own = partial_totals(pieces, {"a": start, "b": 3 * start})
            totals = [(one + other) % SHIFT for one, other in zip(totals, own, strict=True)]
        assert fingerprint_of(weights, totals) == fingerprint(weights)
    finally:
        digest.HOST_CHUNK = before

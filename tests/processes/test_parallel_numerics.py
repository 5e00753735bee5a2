"""Forwards at every degree: real processes over gloo, compared bit for bit with the forward of one rank."""

from collections.abc import Iterator

import numpy as np
import pytest
from parallel_ranks import Ranks

DEGREES = (2, 3, 4, 6)
"""Degrees compared with degree 1, the stock path; neither 1024 nor 6400 tokens divide by 3 or 6."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> Iterator[Ranks]:
    started = Ranks(6, tmp_path_factory.mktemp("crew"))
    yield started
    started.end()


def alone(ranks: Ranks, case: tuple[str, int, int]) -> np.ndarray:
    assert ranks.form([0]) == [1]
    return ranks.call(0, "values", *case)


def together(ranks: Ranks, degree: int, case: tuple[str, int, int]) -> list[np.ndarray]:
    assert ranks.form(range(degree)) == [degree] * degree
    return ranks.all(range(degree), "values", *case)


@pytest.mark.parametrize(
    "case",
    [
        ("words", 48, 3),
        ("qwen", 1024, 3),
        ("sd3", 255, 2),
        *(
            pytest.param(case, marks=pytest.mark.slow)
            for case in (("words", 48, 4), ("qwen", 255, 2), ("sd3", 1024, 2))
        ),
    ],
    ids=lambda case: "-".join(map(str, case)),
)
def test_forward_with_padded_text_at_any_degree_is_bit_identical(ranks, case):
    expected = alone(ranks, case)
    for degree in DEGREES:
        for output in together(ranks, degree, case):
            assert np.array_equal(output, expected), f"degree {degree}"


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2])
def test_forward_of_6400_tokens_at_any_degree_is_bit_identical(ranks, rows):
    case = ("qwen", 6400, rows)
    expected = alone(ranks, case)
    for degree in DEGREES:
        assert np.array_equal(together(ranks, degree, case)[0], expected), f"degree {degree}"


def test_forward_of_2560_tokens_at_degree_3_is_bit_identical(ranks):
    case = ("qwen", 2560, 1)
    assert np.array_equal(together(ranks, 3, case)[0], alone(ranks, case))


@pytest.mark.parametrize("tokens", [pytest.param(1024, marks=pytest.mark.slow), 255])
def test_flux_forward_with_padded_text_at_any_degree_agrees_to_rounding(ranks, tokens):
    case = ("flux", tokens, 2)
    expected = alone(ranks, case)
    for degree in DEGREES:
        np.testing.assert_allclose(together(ranks, degree, case)[0], expected, rtol=0, atol=1e-5)


def test_uneven_heads_5_ranks_over_12_heads_are_bit_identical(ranks):
    case = ("qwen", 1020, 2)
    assert np.array_equal(together(ranks, 5, case)[0], alone(ranks, case))


def test_degree_one_after_larger_ones_is_the_stock_path_again(ranks):
    case = ("qwen", 1024, 1)
    before = alone(ranks, case)
    together(ranks, 3, case)
    assert np.array_equal(alone(ranks, case), before)


def test_permuted_key_order_is_detected_as_different(tmp_path):
    """Control of the tests above: softmax over the same keys in another order has other bits."""
    fresh = Ranks(2, tmp_path)
    try:
        case = ("qwen", 1024, 3)
        expected = alone(fresh, case)
        fresh.all(range(2), "permute_keys")
        permuted = together(fresh, 2, case)[0]
    finally:
        fresh.end()
    assert not np.array_equal(permuted, expected)
    np.testing.assert_allclose(permuted, expected, atol=1e-4)

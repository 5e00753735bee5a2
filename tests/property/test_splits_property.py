"""Splits of tokens and heads: each once, in order, as even as units allow."""

from hypothesis import given
from hypothesis import strategies as st

from spotlight.compute.parallel.splits import legal_degrees, spans, split_sizes

LENGTHS = st.integers(0, 10_000)
PARTS = st.integers(1, 64)
MULTIPLES = st.integers(1, 16)


@given(LENGTHS, PARTS, MULTIPLES)
def test_spans_cover_everything_once_in_rank_order(length, parts, multiple):
    sizes = split_sizes(length, parts, multiple)
    covered = [token for span in spans(sizes) for token in range(length)[span]]
    assert len(sizes) == parts
    assert covered == list(range(length))


@given(LENGTHS, PARTS)
def test_sizes_differ_by_at_most_one_and_the_larger_come_first(length, parts):
    sizes = split_sizes(length, parts)
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True)


@given(LENGTHS, PARTS, MULTIPLES)
def test_every_rank_but_the_last_begins_and_ends_at_a_multiple_where_there_are_enough(length, parts, multiple):
    sizes = split_sizes(length, parts, multiple)
    assert max(sizes) - min(sizes) <= multiple
    if length >= parts * multiple:
        assert all(size % multiple == 0 for size in sizes[:-1])
        assert min(sizes) >= multiple


@given(st.integers(1, 64), st.integers(1, 64))
def test_every_rank_of_a_legal_degree_has_a_head_and_one_more_rank_would_not(heads, slots):
    legal = legal_degrees(heads, slots)
    assert all(min(split_sizes(heads, degree)) >= 1 for degree in legal)
    assert legal[-1] == slots or min(split_sizes(heads, legal[-1] + 1)) == 0

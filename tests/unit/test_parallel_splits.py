"""Legal degrees, and the texts that name them."""

import pytest

from spotlight.compute.parallel.splits import check_degree, legal_degrees, spans, split_sizes
from spotlight.core.errors import ConfigError


def test_1024_tokens_over_three_ranks_are_distributed_in_fours():
    assert split_sizes(1024, 3, multiple=4) == (344, 340, 340)
    assert spans((344, 340, 340)) == (slice(0, 344), slice(344, 684), slice(684, 1024))


def test_few_tokens_are_distributed_one_by_one():
    assert split_sizes(6, 4, multiple=4) == (2, 2, 1, 1)


def test_heads_need_not_divide():
    assert legal_degrees(heads=24, slots=5) == (1, 2, 3, 4, 5)
    assert split_sizes(24, 5) == (5, 5, 5, 5, 4)


@pytest.mark.parametrize(
    ("degree", "heads", "slots", "message"),
    [
        (5, 4, 8, "the model has 4 attention heads and every rank"),
        (3, 12, 2, "the node has 2 slots and every rank"),
        (0, 12, 2, "a crew has at least one member"),
    ],
)
def test_degree_beyond_heads_or_slots_is_refused_with_the_legal_ones(degree, heads, slots, message):
    with pytest.raises(ConfigError, match=message) as refusal:
        check_degree(degree, heads, slots)
    assert f"from {', '.join(map(str, legal_degrees(heads, slots)))}." in str(refusal.value)

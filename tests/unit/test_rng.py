"""Keys of randomness: which parts give different keys, and what is refused as a part."""

import numpy as np
import pytest

from spotlight.core.rng import Purpose, derive_key


@pytest.mark.parametrize("part", [np.int64(5), np.float64(5.0), 5.0, None, b"5"])
@pytest.mark.parametrize("after", [(), (7,)], ids=["last", "before another"])
def test_part_that_is_neither_a_number_nor_a_name_is_refused(part: object, after: tuple[int, ...]) -> None:
    derive_key(Purpose.SDE, 1, 5, *after)
    derive_key(Purpose.SDE, 1, "5", *after)
    with pytest.raises(AttributeError):
        derive_key(Purpose.SDE, 1, part, *after)
    with pytest.raises(AttributeError):
        derive_key(Purpose.SDE, part, *after)


def test_number_and_name_with_the_same_digits_have_different_keys() -> None:
    parts = [(5,), ("5",), ("i5",), (5, 5), (55,), ("5", "5"), ("55",)]
    assert len({derive_key(Purpose.SDE, 1, *each) for each in parts}) == len(parts)


def test_key_does_not_change() -> None:
    """Every sample of every past run depends on it."""
    assert derive_key(Purpose.INITIAL, 1, "prompt", 2, 3) == 0x524FDEF6C81B55B15C90D91ABDE82BB

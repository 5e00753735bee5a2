"""Items stay in order while some of them are awaited."""

from hypothesis import given
from hypothesis import strategies as st

from spotlight.node.in_order import InOrder


@given(st.lists(st.booleans(), max_size=12), st.randoms(use_true_random=False))
def test_items_are_delivered_once_and_in_order_whichever_is_known_first(awaited, chance):
    delivered: list[int] = []
    queue = InOrder(delivered.append)
    places = []
    for number, is_awaited in enumerate(awaited):
        if is_awaited:
            places.append((number, queue.reserve()))
        else:
            queue.add(number)
    chance.shuffle(places)
    for number, place in places:
        assert delivered == sorted(delivered)
        queue.fill(place, number)
    assert delivered == list(range(len(awaited)))
    assert queue.is_empty


def test_a_place_filled_with_nothing_lets_later_items_pass():
    delivered: list[str] = []
    queue = InOrder(delivered.append)
    place = queue.reserve()
    queue.add("later")
    assert delivered == []
    queue.fill(place, None)
    assert delivered == ["later"]

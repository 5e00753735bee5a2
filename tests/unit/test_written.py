"""Who wrote which weights on a node, and whether it may take them up before the file is in the node's store."""

from spotlight.core.crew_messages import Adopt
from spotlight.core.messages import Load, PublishedWeights
from spotlight.core.types import Version, WorkerId
from spotlight.core.work import Policy, WeightsId
from spotlight.node.weight_cache import Written

TRAINS, OTHER = WorkerId("reserved-1.1/0.1"), WorkerId("reserved-1.1/0.2")
FIRST, SECOND = WeightsId(Version(1)), WeightsId(Version(2))
AVERAGE = WeightsId(Version(2), Policy.AVERAGE)


def load(weights: WeightsId, *keep: WeightsId) -> Load:
    return Load(weights=weights, digest=f"digest of {weights}", path=f"{weights}", keep=keep)


def adopt(weights: WeightsId, *keep: WeightsId) -> Adopt:
    return Adopt(weights=weights, digest=f"digest of {weights}", keep=keep)


def wrote(*sets: WeightsId) -> Written:
    written = Written()
    for weights in sets:
        written.wrote(TRAINS, PublishedWeights(weights=weights, digest=f"digest of {weights}", size=1, step=1))
    return written


def test_writer_is_told_at_once_and_once():
    written = wrote(SECOND)
    assert written.announced(load(SECOND, FIRST, SECOND)) == (TRAINS, adopt(SECOND, FIRST, SECOND))
    assert written.announced(load(SECOND, FIRST, SECOND)) is None


def test_nobody_is_told_of_a_set_that_was_written_elsewhere_or_of_an_older_version():
    assert wrote().announced(load(SECOND)) is None
    assert wrote(FIRST, SECOND).announced(load(FIRST)) is None


def test_nobody_is_told_where_the_writer_is_gone():
    written = wrote(SECOND)
    written.gone(OTHER)
    assert written.announced(load(SECOND)) is not None
    written = wrote(SECOND)
    written.gone(TRAINS)
    assert written.announced(load(SECOND)) is None


def test_writer_is_told_beside_other_sets_of_the_same_announcement():
    written = wrote(SECOND)
    assert written.announced(load(FIRST, FIRST, SECOND)) is None
    assert written.announced(load(SECOND, FIRST, SECOND)) is not None


def test_announcement_that_keeps_other_sets_is_not_overtaken_while_it_is_on_its_way():
    written = wrote(SECOND, AVERAGE)
    behaviour = load(SECOND, FIRST, SECOND)
    assert written.announced(behaviour) is not None
    both = load(AVERAGE, SECOND, AVERAGE)
    assert written.announced(both) is None
    for each in (behaviour, both):
        written.arrived(each)
    assert written.announced(both) == (TRAINS, adopt(AVERAGE, SECOND, AVERAGE))

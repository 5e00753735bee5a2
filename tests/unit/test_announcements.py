"""A node's announced weights: order of copies, deletion of files, loads of late workers, adoption by writers."""

import msgspec

from spotlight.core.crew_messages import Adopt
from spotlight.core.messages import Load, Publish
from spotlight.core.types import Version, WorkerId
from spotlight.core.work import Policy, WeightsId
from spotlight.node.announcements import Announced, Announcements, Publishers

SLOW, QUICK = WorkerId("spot-1.1/0.1"), WorkerId("spot-1.1/1.1")
TRAINS, OTHER = WorkerId("reserved-1.1/0.1"), WorkerId("reserved-1.1/0.2")
FIRST, SECOND = WeightsId(Version(1)), WeightsId(Version(2))
AVERAGE = WeightsId(Version(2), Policy.AVERAGE)


def load(version: int, *keep: int) -> Load:
    kept = tuple(WeightsId(Version(number)) for number in keep)
    return Load(weights=WeightsId(Version(version)), digest=f"d{version}", path=f"published/{version}", keep=kept)


class Node:
    """Copies every announcement at once; `files` are its copies."""

    def __init__(self, *workers: WorkerId, owns_store: bool = False) -> None:
        self.announcements = Announcements()
        self._workers = workers
        self._owns_store = owns_store
        self.files: set[str] = set()

    @property
    def current(self) -> list[int]:
        return [each.weights.version for each in self.announcements.current()]

    def take(self, announced: Load) -> None:
        self.announcements.add(Announced(announced))
        assert self.announcements.next() == announced
        assert self.announcements.done().worker is None
        local = (
            announced
            if self._owns_store
            else msgspec.structs.replace(announced, path=f"node/{announced.weights.version}")
        )
        self.files.add(local.path)
        self.files -= set(self.announcements.copied(announced, local, self._workers))

    def caught_up(self, worker: WorkerId, version: int) -> None:
        self.files -= set(self.announcements.caught_up(worker, WeightsId(Version(version))))

    def gone(self, worker: WorkerId) -> None:
        self.files -= set(self.announcements.gone(worker))


def test_late_worker_receives_the_copies_of_the_newest_announcement():
    node = Node()
    node.take(load(1))
    node.take(load(2, 1))
    node.take(load(1, 2))
    assert [each.path for each in node.announcements.current()] == ["node/2", "node/1"]
    node.take(load(3))
    assert node.current == [3]


def test_file_that_is_not_kept_stays_until_every_worker_has_moved_on():
    node = Node(SLOW, QUICK)
    node.take(load(1))
    node.take(load(2))
    assert node.current == [2]
    node.caught_up(QUICK, 2)
    node.caught_up(SLOW, 1)
    assert node.files == {"node/1", "node/2"}
    node.gone(SLOW)
    assert node.files == {"node/2"}


def test_set_that_is_wanted_again_before_its_file_is_deleted_stays():
    node = Node(SLOW)
    node.take(load(1))
    node.take(load(2))
    node.take(load(1, 2))
    node.caught_up(SLOW, 2)
    node.caught_up(SLOW, 1)
    assert node.files == {"node/1", "node/2"}


def test_copy_that_is_made_again_in_another_folder_leaves_no_file():
    node = Node(SLOW)
    node.take(load(1))
    node.announcements.add(Announced(load(1), SLOW))
    again = node.announcements.next()
    node.announcements.done()
    node.files.add("spill/1")
    node.announcements.copied(again, msgspec.structs.replace(again, path="spill/1"), [SLOW])
    assert node.files == {"node/1", "spill/1"}, "the worker may still read the first"
    node.take(load(2))
    node.caught_up(SLOW, 2)
    assert node.files == {"node/2"}


def test_reply_to_an_early_announcement_does_not_free_a_later_one():
    node = Node(SLOW)
    node.take(load(1))
    node.take(load(2, 1))
    node.take(load(1, 2))
    node.take(load(3, 1))
    node.caught_up(SLOW, 1)
    assert "node/2" in node.files
    node.caught_up(SLOW, 3)
    assert node.files == {"node/1", "node/3"}


def test_publishers_own_file_is_not_deleted():
    node = Node(owns_store=True)
    node.take(load(1))
    node.take(load(2))
    assert node.files == {"published/1", "published/2"}


def test_announcements_are_copied_one_at_a_time_in_their_order():
    announcements = Announcements()
    announcements.add(Announced(load(1)))
    announcements.add(Announced(load(2, 1), SLOW))
    assert announcements.next() == load(1)
    assert announcements.next() is None
    assert announcements.done().worker is None
    assert announcements.next() == load(2, 1)
    assert announcements.done().worker == SLOW
    assert announcements.next() is None


def test_set_that_the_newest_announcement_does_not_keep_is_not_wanted():
    announcements = Announcements()
    announcements.add(Announced(load(1)))
    assert announcements.is_wanted(FIRST)
    announcements.add(Announced(load(2)))
    assert not announcements.is_wanted(FIRST)


# --- adoption by the writer ---


def announcement(weights: WeightsId, *keep: WeightsId) -> Load:
    return Load(weights=weights, digest=f"digest of {weights}", path=f"{weights}", keep=keep)


def adopt(weights: WeightsId, *keep: WeightsId) -> Adopt:
    return Adopt(weights=weights, digest=f"digest of {weights}", keep=keep)


def published(*sets: WeightsId) -> Publishers:
    publishers = Publishers()
    for weights in sets:
        publishers.ordered(TRAINS, Publish(weights=(weights,)))
        publishers.ordered(OTHER, Publish(weights=(weights,)))
    return publishers


def test_every_rank_that_published_adopts_at_once_and_once():
    publishers = published(SECOND)
    assert publishers.announced(announcement(SECOND, FIRST, SECOND)) == (
        [TRAINS, OTHER],
        adopt(SECOND, FIRST, SECOND),
    )
    assert not publishers.announced(announcement(SECOND, FIRST, SECOND))[0]


def test_set_that_was_published_elsewhere_or_of_an_older_version_is_not_adopted():
    assert not published().announced(announcement(SECOND))[0]
    assert not published(FIRST, SECOND).announced(announcement(FIRST))[0]


def test_publisher_that_is_gone_adopts_nothing():
    publishers = published(SECOND)
    publishers.gone(OTHER)
    assert publishers.announced(announcement(SECOND))[0] == [TRAINS]


def test_publishers_adopt_beside_other_sets_of_the_same_announcement():
    publishers = published(SECOND)
    assert not publishers.announced(announcement(FIRST, FIRST, SECOND))[0]
    assert publishers.announced(announcement(SECOND, FIRST, SECOND))[0]


def test_announcement_that_keeps_other_sets_is_not_overtaken_in_transit():
    publishers = published(SECOND, AVERAGE)
    behaviour = announcement(SECOND, FIRST, SECOND)
    assert publishers.announced(behaviour)[0]
    both = announcement(AVERAGE, SECOND, AVERAGE)
    assert not publishers.announced(both)[0]
    for each in (behaviour, both):
        publishers.arrived(each)
    assert publishers.announced(both) == ([TRAINS, OTHER], adopt(AVERAGE, SECOND, AVERAGE))


def fetch(node: Node, version: int) -> None:
    """Copy a set before its Load comes."""
    early = load(version)
    node.announcements.add(Announced(early, is_early=True))
    assert node.announcements.next() == early
    assert node.announcements.done().is_early
    local = msgspec.structs.replace(early, path=f"node/{version}")
    node.files.add(local.path)
    node.announcements.fetched(early, local)


def test_set_that_is_fetched_early_is_no_worker_s_before_its_load_and_keeps_the_sets_in_use():
    node = Node(SLOW)
    node.take(load(1))
    fetch(node, 2)
    assert node.current == [1]
    assert node.files == {"node/1", "node/2"}
    assert node.announcements.is_wanted(FIRST)
    node.take(load(2, 1))
    assert node.current == [1, 2]
    node.take(load(3))
    node.caught_up(SLOW, 3)
    assert node.files == {"node/3"}


def test_early_copy_that_no_announcement_keeps_is_deleted():
    node = Node(SLOW)
    node.take(load(1))
    fetch(node, 2)
    node.take(load(3, 1))
    assert node.files == {"node/1", "node/3"}

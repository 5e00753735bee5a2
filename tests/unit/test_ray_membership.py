"""Which nodes of a Ray cluster get a machine, under which names, and when again."""

from dataclasses import dataclass, field

import pytest

from spotlight.core.work import SlotClass
from spotlight.pools.join_pool import NAME
from spotlight.pools.ray_lines import ConnectRay, RayNode
from spotlight.pools.ray_membership import EndKind, RayMembership, Start

CONNECT = ConnectRay(
    address="auto", namespace="run", spot=("spotlight=spot", "spot"), reserved=("spotlight=reserved",),
    uses_gpus=False, slots=2, threads=1,
)  # fmt: skip
GPUS = ConnectRay(**{name: getattr(CONNECT, name) for name in CONNECT.__struct_fields__} | {"uses_gpus": True})


def node(key: str, name: str = "", mark: str = "spot", alive: bool = True, **resources: float) -> RayNode:
    return RayNode(
        id=key, name=name or key, is_alive=alive, labels={"spotlight": mark, "ray.io/availability-zone": "z1"},
        resources={"CPU": 8.0} | resources,
    )  # fmt: skip


@dataclass
class Story:
    """A cluster whose actors the test ends."""

    membership: RayMembership = field(default_factory=lambda: RayMembership(CONNECT))
    now: float = 0.0

    def look(self, *nodes: RayNode, draining: dict[str, int] | None = None) -> list[str]:
        return [start.name for start in self.starts(*nodes, draining=draining)]

    def starts(self, *nodes: RayNode, draining: dict[str, int] | None = None) -> list[Start]:
        return self.membership.look(nodes, draining or {}, self.now)


def test_nodes_with_a_spot_or_a_reserved_mark_get_one_machine_each():
    story = Story()
    table = [node("a"), node("b", mark="reserved"), node("c", mark="none"), node("d", mark="none", spot=1.0)]
    found = story.starts(*table)
    assert [(each.name, each.slot_class) for each in found] == [
        ("ray-a", SlotClass.SPOT),
        ("ray-b", SlotClass.RESERVED),
        ("ray-d", SlotClass.SPOT),
    ]
    assert {(each.slots, each.cpus, each.gpus, each.zone) for each in found} == {(2, 2.0, 0, "z1")}
    assert story.look(*table) == []


def test_machine_of_a_gpu_node_has_a_slot_per_gpu_and_holds_them_all():
    story = Story(RayMembership(GPUS))
    (start,) = story.starts(node("a", GPU=4.0), node("b"))
    assert (start.id, start.slots, start.gpus, start.cpus) == ("a", 4, 4, 0.0)
    assert story.membership.unusable() == ["b"]


def test_node_that_returns_under_its_name_gets_its_predecessors_name():
    story = Story()
    assert story.look(node("1", "Worker.A")) == ["ray-worker-a"]
    story.membership.ended("1", EndKind.NODE_LOST, now=5.0)
    assert story.look(node("1", "Worker.A", alive=False), node("2", "Worker.A")) == ["ray-worker-a"]


def test_living_nodes_of_one_name_are_numbered():
    story = Story()
    assert story.look(node("1", "10.0.0.1"), node("2", "10.0.0.1"), node("3", "10.0.0.1")) == [
        "ray-10-0-0-1",
        "ray-10-0-0-1-2",
        "ray-10-0-0-1-3",
    ]


@pytest.mark.parametrize("name", ["ü", "x" * 200, "--", "A.B_c", "gpu-" * 30])
def test_every_name_of_a_ray_node_becomes_two_names_that_the_run_takes(name: str):
    assert all(NAME.fullmatch(each) for each in Story().look(node("1", name), node("2", name)))


def test_draining_node_gets_no_machine():
    story = Story()
    assert story.look(node("a"), draining={"a": 0}) == []
    assert story.look(node("a")) == ["ray-a"]


def test_drain_of_a_node_is_a_notice_with_the_seconds_left():
    story = Story()
    story.look(node("a"), node("b"), node("c"))
    found = story.membership.draining({"a": 130_500, "b": 90_000, "c": 0, "unknown": 1}, wall=100.0)
    assert [(each.name, each.seconds) for each in found] == [("ray-a", 30.5), ("ray-b", 0.0), ("ray-c", 30.0)]
    assert story.membership.was_drained("a")


@pytest.mark.parametrize(("wrong_s", "seconds"), [(-300, 120.0), (300, 0.0)])
def test_drain_on_a_machine_whose_clock_is_minutes_off_leaves_no_more_than_a_cloud_does(wrong_s, seconds):
    story = Story()
    story.look(node("a"))
    (found,) = story.membership.draining({"a": 1_030_000}, wall=1000.0 + wrong_s)
    assert found.seconds == seconds


def test_machine_that_left_in_order_is_not_started_again_on_that_node():
    story = Story()
    story.look(node("a"))
    story.membership.ended("a", EndKind.LEFT, now=1.0)
    story.now = 1e6
    assert story.look(node("a")) == []


def test_failing_machine_is_started_after_growing_pauses():
    story, started = Story(), []
    for tick in range(600):
        story.now = tick / 2
        if story.look(node("a")):
            started.append(story.now)
            assert story.membership.ended("a", EndKind.CRASHED, story.now) == len(started)
    assert started == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 123.0, 183.0, 243.0]


def test_machine_that_ran_long_starts_again_at_once_after_a_crash():
    story = Story()
    for _ in range(20):
        assert story.look(node("a")) == ["ray-a"]
        story.now += 100.0
        assert story.membership.ended("a", EndKind.OUT_OF_MEMORY, story.now) == 1
        story.now += 1.0

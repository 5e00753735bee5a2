"""What Spotlight reads from Ray's private interface and from its errors, checked against the Ray that is installed."""

import inspect
import os

import pytest

if os.environ.get("CI") != "true":
    pytest.importorskip("ray", reason="Ray is not installed")
import ray
from ray import exceptions
from ray._private.state import GlobalState
from ray._private.utils import check_version_info
from ray.core.generated.common_pb2 import ActorDiedErrorContext, NodeDeathInfo

from spotlight.pools import ray_driver
from spotlight.pools.ray import check_installed
from spotlight.pools.ray_lines import RayNode
from spotlight.pools.ray_membership import EndKind

ALIVE, DEAD = RayNode(id="a", name="a"), RayNode(id="a", name="a", is_alive=False, death="health check failed")


def test_installed_ray_is_one_that_the_range_allows():
    check_installed()


def test_ray_lists_draining_nodes_by_id_with_milliseconds():
    listing = GlobalState.get_draining_nodes
    assert list(inspect.signature(listing).parameters) == ["self"]
    assert "timestamps in ms" in (listing.__doc__ or "")


def test_cluster_of_another_version_of_ray_is_named_with_both_versions():
    cluster = {"ray_version": "2.58.0", "python_version": "3.11.7"}
    with pytest.raises(RuntimeError) as refused:
        check_version_info(cluster, "this process", raise_on_mismatch=True)
    sentence = ray_driver.sentence_of(refused.value)
    assert "\n" not in sentence
    assert "Ray: 2.58.0" in sentence
    assert f"Ray: {ray.__version__}" in sentence


def test_ray_numbers_the_death_of_a_drained_node_as_we_read_it():
    assert NodeDeathInfo.Reason.Value("AUTOSCALER_DRAIN_PREEMPTED") == ray_driver.PREEMPTED


def died(reason: str) -> exceptions.ActorDiedError:
    context = ActorDiedErrorContext(
        actor_id=b"\0" * 16,
        error_message="The actor died.",
        node_death_info=NodeDeathInfo(reason=NodeDeathInfo.Reason.Value(reason)),
    )
    return exceptions.ActorDiedError(context)


@pytest.mark.parametrize(
    ("error", "node", "was_drained", "kind"),
    [
        (died("AUTOSCALER_DRAIN_PREEMPTED"), DEAD, False, EndKind.PREEMPTED),
        (died("UNEXPECTED_TERMINATION"), DEAD, True, EndKind.PREEMPTED),
        (died("UNEXPECTED_TERMINATION"), DEAD, False, EndKind.NODE_LOST),
        (died("UNSPECIFIED"), ALIVE, True, EndKind.CRASHED),
        (died("UNSPECIFIED"), None, False, EndKind.NODE_LOST),
        (exceptions.OutOfMemoryError("killed by the memory monitor"), ALIVE, False, EndKind.OUT_OF_MEMORY),
        (exceptions.ActorUnschedulableError("no such node"), DEAD, False, EndKind.NODE_LOST),
        (exceptions.ActorUnschedulableError("no such node"), ALIVE, False, EndKind.FAILED),
    ],
)
def test_deaths_of_actors_are_told_apart(
    error: Exception, node: RayNode | None, was_drained: bool, kind: EndKind, monkeypatch: pytest.MonkeyPatch
):
    def fails(ref: object) -> None:
        raise error

    monkeypatch.setattr(ray, "get", fails)
    found, words = ray_driver.end_of(None, node, was_drained)
    assert found is kind
    assert words

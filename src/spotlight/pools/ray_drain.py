"""Ray's list of draining nodes: the only use of Ray's private interface (contract test: tests/unit/test_ray_drain.py).

A cloud's preemption notice reaches Ray's autoscaler, which drains the node. Ray has no public call for it outside of
its own training library.
"""


def draining_nodes() -> dict[str, int]:
    """Ids of nodes that drain, with their deadlines in milliseconds since 1970; 0: no deadline.

    Works in every process that is connected to the cluster, except through Ray Client (`ray://`).
    """
    from ray._private.state import state

    return dict(state.get_draining_nodes())

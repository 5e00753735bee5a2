"""The simulated machines as a pool, for a market to replay its trace against."""

from collections.abc import AsyncIterator

from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind
from spotlight.pools.pool import PoolEvent
from spotlight.sim.world import World


class SimPool:
    """`runtime.pool.Pool` over a world: a node that is taken stays away until it is added again."""

    def __init__(self, world: World, drain_s: float) -> None:
        self._world = world
        self._drain_s = drain_s

    async def start(self) -> None:
        pass

    async def events(self) -> AsyncIterator[PoolEvent]:
        """None: the controller learns of nodes from their connections."""
        none: tuple[PoolEvent, ...] = ()
        for event in none:
            yield event

    async def add_node(self, spec: NodeSpec) -> NodeId:
        self._world.add(spec)
        return self._world.nodes[spec.name].id

    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(self._world.nodes[name].id for name in self._world.names())

    def current(self, name: str) -> NodeId | None:
        known = self._world.nodes.get(name)
        return None if known is None else known.id

    async def warn(self, node: NodeId, kind: NoticeKind, seconds: float) -> None:
        self._world.warn(_name(node), kind, seconds)

    async def kill_node(self, node: NodeId) -> None:
        self._world.remove(_name(node))
        self._world.kill(_name(node))

    async def drain_node(self, node: NodeId) -> None:
        self._world.remove(_name(node))
        here = self._world.nodes.get(_name(node))
        if here is not None:
            await here.drain(self._drain_s)
            self._world.kill(_name(node))

    async def kill_worker(self, worker: WorkerId) -> None:
        self._world.kill_worker(worker)

    async def stop(self) -> None:
        self._world.unplug()


def _name(node: NodeId) -> str:
    return node.rpartition(".")[0]

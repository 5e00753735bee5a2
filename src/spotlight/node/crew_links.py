"""A worker's side of a crew: its samples, weights and group, and the effects of orders to join and to follow."""

from collections.abc import Callable, Sequence

from spotlight.compute.parallel.crew_adapter import SharedAdapter, StaleForward
from spotlight.compute.parallel.group import CrewBroken, CrewGroup
from spotlight.compute.rollout.engine import Engine
from spotlight.compute.weights.resident import Resident
from spotlight.core.crew_messages import Form, Forward, GroupToken
from spotlight.core.errors import SpotlightError
from spotlight.core.types import WorkerId
from spotlight.core.work import WeightsId
from spotlight.node.membership import CrewProblem

ConnectGroup = Callable[[GroupToken, tuple[WorkerId, ...], int, str], CrewGroup | None]
"""Connects a group, given its token, members, own rank and the path of the group store."""


class CrewLinks:
    """What `Membership` reads, and what carries its effects out; owned by the model's thread."""

    def __init__(self, engine: Engine, resident: Resident, shared: SharedAdapter, connect: ConnectGroup) -> None:
        self._engine = engine
        self._resident = resident
        self._shared = shared
        self._connect = connect

    def samples(self) -> int:
        return len(self._engine.progress())

    def needs(self) -> Sequence[WeightsId]:
        return self._engine.weights

    def held(self) -> Sequence[tuple[WeightsId, str]]:
        return self._resident.held()

    def leave(self) -> None:
        self._shared.bind(None)

    def connect(self, order: Form, rank: int) -> CrewProblem | None:
        try:
            self._shared.bind(self._connect(order.token, order.members, rank, order.store))
        except SpotlightError as error:
            return problem_of(error)
        return None

    def follow(self, forward: Forward) -> CrewProblem | None:
        """Compute with the weights that the leader names; a forward of another group changes nothing."""
        try:
            with self._resident.use(forward.weights, forward.is_exact):
                self._shared.follow(forward, self._resident.digest_of(forward.weights))
        except StaleForward:
            return None
        except SpotlightError as error:
            return problem_of(error)
        return None


def problem_of(error: SpotlightError) -> CrewProblem:
    return CrewProblem(str(error), error.waited_for if isinstance(error, CrewBroken) else None)

"""The simulated training role: theta is named by a hash chain over everything that it was trained on.

Answers as `compute.train.role.TrainingRole` does, and refuses what that refuses. `nonce` is what the real trainer's
last bits depend on outside of deterministic mode: nothing in it, who computes without.
"""

import msgspec

from spotlight.core import messages as m
from spotlight.core.errors import Stopped
from spotlight.core.work import Policy
from spotlight.runtime.payloads import content_digest
from spotlight.runtime.sim.fakes import mark
from spotlight.runtime.sim.numerics import Numerics, TrainedState
from spotlight.runtime.sim.storage import SimStorage


class SimTrainer:
    """One process's trainer; a new process begins at the base model."""

    def __init__(self, storage: SimStorage, nonce: str, numerics: Numerics) -> None:
        self._storage = storage
        self._nonce = nonce
        self._numerics = numerics
        self.state = TrainedState()

    def train(self, order: m.Train) -> m.Stepped:
        state = self.state
        if order.step != state.steps:
            raise Stopped(
                f"the trainer holds {state.steps} steps but was asked for step {order.step}; restore it first."
            )
        if not order.items:
            raise Stopped(f"step {order.step} has no sample; nothing can be learned from it.")
        used = [(item.request.id, self._payload(item), item.advantage, item.kept) for item in order.items]
        theta = mark("theta", state.theta, order.step, used, self._nonce)
        self.state = TrainedState(
            state.steps + 1,
            theta,
            mark("behaviour", theta) if order.last else state.behaviour,
            mark("average", state.average, theta),
        )
        figures = dict(self._numerics.trained(state, order, self.state))
        return m.Stepped(step=order.step, digest=theta, figures=figures)

    def publish(self, order: m.Publish) -> m.PublishedWeights:
        (weights,) = order.weights
        digest = self.state.average if weights.policy is Policy.AVERAGE else self.state.behaviour
        path = self._storage.weights_path(weights)
        if self._storage.weights.setdefault(path, digest) != digest:
            raise Stopped(f"{path} is {self._storage.weights[path]}, not {digest}; published weights never change.")
        return m.PublishedWeights(weights=weights, digest=digest, size=1, step=self.state.steps)

    def write_part(self, order: m.Save) -> None:
        """A checkpoint under way: its name says that it is not whole."""
        self._storage.checkpoints[f"{order.path}.part"] = b"half"

    def save(self, order: m.Save) -> m.Saved:
        self._storage.checkpoints.pop(f"{order.path}.part", None)
        self._storage.checkpoints[order.path] = msgspec.msgpack.encode(self.state)
        return m.Saved(step=order.step, path=order.path)

    def restore(self, order: m.Restore) -> m.Saved:
        if order.path:
            self.state = msgspec.msgpack.decode(self._storage.checkpoints[order.path], type=TrainedState)
        elif self.state.steps:
            raise Stopped(f"the trainer has taken {self.state.steps} steps and cannot go back to none.")
        if self.state.steps != order.step:
            raise Stopped(f"the checkpoint {order.path} has {self.state.steps} steps, not {order.step}.")
        return m.Saved(step=order.step, path=order.path, restored=True)

    def _payload(self, item: m.TrainItem) -> str:
        if item.payload not in self._storage.files:
            raise Stopped(f"{item.request.id} is to be trained, but its tensors {item.payload} are not there.")
        return content_digest(self._storage.files[item.payload])

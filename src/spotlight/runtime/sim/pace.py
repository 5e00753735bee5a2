"""How long things take on one simulated worker; storms draw constants, `profiled.py` looks into a profile.

A worker that wrote weights is charged `adopt_s` from their announcement on, whatever the node's copy of the file takes:
in the product it takes them up from its own memory as soon as they are announced (`runtime/written.py`), and the Load
that follows finds them held. Here one Load stands for both, and says Held once. The other ranks of a gang are taken to
keep what the last step left them in the same way; in a real run rank 0 is all of a gang.
"""

from dataclasses import dataclass

from spotlight.core import messages as m
from spotlight.core.types import Version
from spotlight.core.work import WeightsId, Work


@dataclass
class Pace:
    """Constants, in seconds; `slowness` multiplies steps."""

    step_s: float
    start_s: float
    load_s: float
    train_s: float
    heartbeat_s: float
    slowness: float = 1.0
    rounds: bool = False
    """Whether previews take a forward of their own, with rounded weights."""
    runs_ahead: bool = False
    """Whether steps between which nothing can happen are taken as one; storms strike at every boundary."""
    adopt_s: float | None = None
    """Applying weights that it trained itself; None: as long as any others."""
    save_s: float | None = None
    """From the order of a checkpoint until it is on disk; None: as long as weights take."""
    _made: Version | None = None
    """The newest version that it trained to the end or wrote: it has those weights in its own memory."""

    def is_exact(self, work: Work) -> bool:
        """Whether it computes with the very weights."""
        return not self.rounds or work.is_exact

    def step(self, rows: int, capacity: int, degree: int, is_exact: bool = True) -> float:
        """One denoising step of `rows` in a crew of that degree, of `capacity` that would fit."""
        return self.step_s * self.slowness * max(rows / capacity, 0.5) / degree

    def part(self, rows: int, degree: int, is_exact: bool = True) -> float:
        """A follower's part of such a step."""
        return self.step_s * self.slowness / degree

    def load(self, weights: WeightsId, is_held: bool) -> float:
        """Applying a published set; storms are as slow with one that is held already."""
        return self.load_s if self.adopt_s is None or not self._is_own(weights) else self.adopt_s

    def _is_own(self, weights: WeightsId) -> bool:
        return weights.version == self._made

    def decode(self, pictures: int) -> float:
        """From latents to what the judges see."""
        return 0.0

    def roll(self) -> float:
        """The change of roles before a step of rollouts, if it was training."""
        return 0.0

    def switch(self) -> float:
        """Of the seconds that an order to train will take, those of the change of role at its beginning."""
        return 0.0

    def train(self, order: m.Train) -> float:
        """An optimizer step, or a part of one."""
        self._trains(order)
        return self.train_s * len(order.items) / order.samples if order.samples else self.train_s

    def _trains(self, order: m.Train) -> None:
        if order.last and order.is_final:
            self._made = Version(order.iteration + 1)

    def publish(self, order: m.Publish) -> float:
        self._made = order.weights[0].version
        return self.load_s

    def snapshot(self) -> float:
        """Of a checkpoint, the seconds that the trainer is held for."""
        return min(self.load_s, self.save())

    def save(self) -> float:
        """A checkpoint, from its order until it is on disk; the snapshot is part of it."""
        return self.load_s if self.save_s is None else self.save_s

    def write(self) -> float:
        """What of a checkpoint is done beside other work."""
        return max(0.0, self.save() - self.snapshot())

"""Identity of prompts, samplings and samples, independent of the worker that computes them.

Invariant: two samples with equal fields have equal latents, whichever worker, batch or process computes them
(tests/unit/test_noise.py, tests/unit/test_denoise.py).
"""

import hashlib
from enum import StrEnum
from typing import NewType

import msgspec

from spotlight.core.errors import SizeError

PromptId = NewType("PromptId", str)
Version = NewType("Version", int)
NodeId = NewType("NodeId", str)
"""A machine's name and the number of its incarnation: `spot-1.3`."""
WorkerId = NewType("WorkerId", str)
"""One process on a slot: `spot-1.3/0.2`. A restarted process on the same slot is another worker."""


class Size(msgspec.Struct, frozen=True, order=True):
    """Height and width of an image in pixels."""

    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.height}x{self.width}"

    @classmethod
    def parse(cls, text: str) -> "Size":
        """Parse `HEIGHTxWIDTH` in pixels."""
        height, _, width = text.partition("x")
        if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
            raise SizeError(f"the size '{text}' is not HEIGHTxWIDTH in pixels; write it like 512x768.")
        return cls(int(height), int(width))


class SamplerKind(StrEnum):
    """Rule of one denoising step."""

    ODE = "ode"
    ODE2 = "ode2"
    """Second-order ODE steps, which also use the velocity of the previous step; for previews, which have few steps."""
    FLOW_SDE = "flow_sde"
    DANCE_SDE = "dance_sde"
    CPS = "cps"

    @property
    def draws_noise(self) -> bool:
        """True if steps inside the window are random and have a log-probability."""
        return self not in (SamplerKind.ODE, SamplerKind.ODE2)


class Window(msgspec.Struct, frozen=True):
    """The denoising steps `start .. start+size-1`, sampled as an SDE and trained on; one per group."""

    start: int
    size: int

    @property
    def stop(self) -> int:
        return self.start + self.size

    def __contains__(self, step: int) -> bool:
        return self.start <= step < self.stop


NO_WINDOW = Window(0, 0)


class Sampling(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Settings that make a sample reproducible, besides weights, prompt and seed."""

    steps: int
    size: Size
    sampler: SamplerKind = SamplerKind.ODE
    noise_level: float = 0.0
    window: Window = NO_WINDOW
    guidance: float = 1.0

    def is_stochastic(self, step: int) -> bool:
        return self.sampler.draws_noise and step in self.window


class Clause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"class_name": "class"}):
    """One `include` or `exclude` entry of GenEval's metadata; `position` is (relation, index of an include)."""

    class_name: str
    count: int
    color: str | None = None
    position: tuple[str, int] | None = None


class SceneSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Required and forbidden objects of an image, in GenEval's metadata format."""

    tag: str
    include: tuple[Clause, ...]
    exclude: tuple[Clause, ...] = ()


class Prompt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """A text and the reward's target: the word to be read, or the scene to be found."""

    text: str
    target: str | None = None
    scene: SceneSpec | None = None

    @property
    def id(self) -> PromptId:
        return PromptId(hashlib.blake2b(self.text.encode(), digest_size=8).hexdigest())


class Sample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One (prompt, seed, sampling, policy version): the identity of an image."""

    prompt: PromptId
    seed: int
    sampling: Sampling
    version: Version
    shared_start: int | None = None
    """Seed of the initial noise if all samples of a group share it; None: the sample's own seed."""

    @property
    def start(self) -> int:
        """Seed of the initial noise; `seed` always draws the noise of the steps."""
        return self.seed if self.shared_start is None else self.shared_start


class Frontier(msgspec.Struct, frozen=True):
    """The prompts already trained on: all positions in the run's prompt order before `position`, except the holes."""

    position: int = 0
    holes: tuple[int, ...] = ()

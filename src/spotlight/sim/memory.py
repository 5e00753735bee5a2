"""What was computed once need not be computed again: verdicts and steps by what they depend on.

A verdict is known by its sample and the name of the weights, and weights are named by everything that was trained into
them. So runs that differ in their machines alone share one learning curve, and runs that differ from some iteration on
share what comes before it. Kept in a file, it lets another machine repeat a run without its accelerator.
"""

import hashlib
from pathlib import Path

import msgspec

from spotlight import __version__
from spotlight.compute.models.catalogue import facts_of
from spotlight.config import RunConfig
from spotlight.core import messages as m
from spotlight.core.errors import InputError
from spotlight.core.work import Request, Work


class Remembered(msgspec.Struct, frozen=True, array_like=True):
    """Parts of one verdict."""

    reward: float
    components: dict[str, float]


class Memory(msgspec.Struct):
    """Grows with every computation; of one recipe's numerics and one run seed."""

    subject: str = ""
    """Digest of the settings that numbers depend on."""
    verdicts: dict[bytes, Remembered] = {}
    steps: dict[str, dict[str, float]] = {}
    """Figures of an optimizer step, by the name of theta after it."""
    misses: int = 0
    """Verdicts that had to be computed."""

    @classmethod
    def load(cls, path: Path, subject: str) -> "Memory":
        """What the file holds, if there is one; of another subject it is refused."""
        if not path.exists() and path.parent.is_dir():
            return cls(subject=subject)
        try:
            found = msgspec.msgpack.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as error:
            raise InputError(
                f"{path} holds no remembered numbers and none can be kept there ({error}); choose another file."
            ) from error
        if found.subject != subject:
            raise InputError(
                f"{path} remembers numbers of other settings ({found.subject}, not {subject}), which mean nothing "
                "here; choose another file."
            )
        return found

    def save(self, path: Path) -> None:
        scratch = path.with_suffix(".part")
        scratch.write_bytes(msgspec.msgpack.encode(self))
        scratch.replace(path)

    def verdict(self, request: Request, weights_digest: str) -> m.Score | None:
        known = self.verdicts.get(key_of(request, weights_digest))
        if known is None:
            self.misses += 1
            return None
        return m.Score(known.reward, known.components, "co-simulated")

    def knows(self, request: Request, weights_digest: str) -> bool:
        return key_of(request, weights_digest) in self.verdicts

    def keep(self, request: Request, weights_digest: str, reward: float, components: dict[str, float]) -> None:
        self.verdicts[key_of(request, weights_digest)] = Remembered(reward, components)


def key_of(request: Request, weights_digest: str) -> bytes:
    """Of a picture: not of what it is for, save that evaluations draw their noise from a seed of their own."""
    sample = request.sample
    parts = (weights_digest, request.work is Work.EVALUATION, sample.prompt, sample.seed, sample.start, sample.sampling)
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).digest()


HOW_IT_IS_BATCHED = frozenset({"micro_batch", "batches_over", "gradient_checkpointing", "timeout_s"})
"""Settings of `train` that change the last bits of a step at most."""


def subject_of(config: RunConfig) -> str:
    """All that a verdict or a step depends on beside identity and weights, up to its last bits: no device, no batch."""
    settings = config.model_dump(mode="json")
    parts = {name: settings[name] for name in ("seed", "data", "algorithm")}
    parts["train"] = {name: value for name, value in settings["train"].items() if name not in HOW_IT_IS_BATCHED}
    parts |= {"model": facts_of(config.model.name).digest, "reward": settings["reward"]["name"], "code": __version__}
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()

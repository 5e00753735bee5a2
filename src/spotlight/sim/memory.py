"""A cache of the numbers of co-simulation: verdicts and optimizer steps, by everything that they depend on.

A verdict's key is its sample, the weights digest and whether it is drawn in fp8, as previews may be; a digest covers
everything that was trained into the weights.
So runs that differ only in their machines share all numbers, and runs that diverge at some iteration share the numbers
before it. With the cache in a file, another machine can repeat a run without an accelerator.
"""

import hashlib
from pathlib import Path

import msgspec

from spotlight import __version__
from spotlight.compute.models.catalogue import facts_of
from spotlight.config import RunConfig
from spotlight.control.explore.config import Precision
from spotlight.core import messages as m
from spotlight.core.errors import InputError
from spotlight.core.work import Request, Work


class DrawnBy(msgspec.Struct, frozen=True):
    """Weights that draw a sample, by their digest, and the arithmetic of it."""

    digest: str
    precision: Precision = Precision.EXACT


class StoredVerdict(msgspec.Struct, frozen=True, array_like=True):
    """One verdict of the reward."""

    reward: float
    components: dict[str, float]


class Memory(msgspec.Struct):
    """The numbers of one recipe and run seed; grows with every computation."""

    subject: str = ""
    """Digest of the settings that the numbers depend on."""
    verdicts: dict[bytes, StoredVerdict] = {}
    steps: dict[str, dict[str, float]] = {}
    """Figures of an optimizer step, by the digest of theta after it."""
    misses: int = 0
    """Verdicts that had to be computed."""

    @classmethod
    def load(cls, path: Path, subject: str) -> "Memory":
        """Read the file, or start empty if there is none; refuse a file of another subject."""
        if not path.exists() and path.parent.is_dir():
            return cls(subject=subject)
        try:
            found = msgspec.msgpack.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as error:
            raise InputError(
                f"{path} holds no cached numbers and cannot be used as a cache ({error}); choose another file."
            ) from error
        if found.subject != subject:
            raise InputError(
                f"{path} holds numbers of other settings ({found.subject}, not {subject}), which are wrong for this "
                "run; choose another file."
            )
        return found

    def save(self, path: Path) -> None:
        scratch = path.with_suffix(".part")
        scratch.write_bytes(msgspec.msgpack.encode(self))
        scratch.replace(path)

    def verdict(self, request: Request, drawn_by: DrawnBy) -> m.Score | None:
        known = self.verdicts.get(key_of(request, drawn_by))
        if known is None:
            self.misses += 1
            return None
        return m.Score(known.reward, known.components, "co-simulated")

    def has(self, request: Request, drawn_by: DrawnBy) -> bool:
        return key_of(request, drawn_by) in self.verdicts

    def keep(self, request: Request, drawn_by: DrawnBy, reward: float, components: dict[str, float]) -> None:
        self.verdicts[key_of(request, drawn_by)] = StoredVerdict(reward, components)


def key_of(request: Request, drawn_by: DrawnBy) -> bytes:
    """Key of a sample; independent of the kind of work, except that evaluations draw their noise from another seed."""
    sample, digest = request.sample, drawn_by.digest
    parts: tuple[object, ...] = (
        *(digest, request.work is Work.EVALUATION, sample.prompt, sample.seed, sample.start, sample.sampling),
        # Without rounding, caches of earlier versions keep their keys.
        *(() if drawn_by.precision is Precision.EXACT else (drawn_by.precision.value,)),
    )
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).digest()


BATCHING = frozenset({"micro_batch", "batches_over", "gradient_checkpointing", "timeout_s"})
"""Settings of `train` that change at most the last bits of a step."""


def subject_of(config: RunConfig) -> str:
    """Digest of the settings that numbers depend on beyond the last bits; device and batching are excluded."""
    settings = config.model_dump(mode="json")
    parts = {name: settings[name] for name in ("seed", "data", "algorithm")}
    parts["train"] = {name: value for name, value in settings["train"].items() if name not in BATCHING}
    parts |= {"model": facts_of(config.model.name).digest, "reward": settings["reward"]["name"], "code": __version__}
    # Without several rewards or options, caches of earlier versions keep their names.
    parts |= {name: settings["reward"][name] for name in ("options", "terms") if settings["reward"][name]}
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()

"""A profile: seconds per operation of one model at one picture size on one kind of hardware, and where they come from.

    profile = Profile.load("h200-qwen-image-512")
    profile.seconds(Operation.DENOISE_STEP, batch=8, degree=2)     # p50 of one forward of 8 rows on a crew of two
    profile.require([Operation.DECODE], "words-large-nft")         # ConfigError where something is missing

Seconds between the batches that were timed follow `curve.py`; degrees are exact, because nothing sound lies between
them. Invariant: of a profile that loads, every figure is finite and not negative, no pair of batch and degree of an
operation is told twice, and the digest changes with any of it (tests/unit/test_profiles.py).
"""

import hashlib
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Self

import msgspec

from spotlight.assets import asset
from spotlight.control.batch_size import efficient
from spotlight.core.errors import ConfigError, suggestion

BY_BATCH = (
    "linear in total seconds between batches, proportional beyond the last, the first point's seconds below the first; "
    "no batch costs more than a larger one that was timed"
)
ONE_FIGURE = "one figure"


class BatchCurve:
    """Seconds of any batch of at least one."""

    def __init__(self, timed: Iterable[tuple[int, float]]) -> None:
        """(batch, seconds), at least one, each batch once."""
        self._batches: list[int] = []
        self._seconds: list[float] = []
        quickest = float("inf")
        for batch, seconds in sorted(timed, reverse=True):
            quickest = min(quickest, seconds)
            self._batches.insert(0, batch)
            self._seconds.insert(0, quickest)

    def seconds(self, batch: int) -> float:
        if batch < 1:
            raise ConfigError(
                f"the seconds of a batch of {batch} were asked for, and there is none of less than 1; ask for at "
                "least 1."
            )
        place = bisect_left(self._batches, batch)
        if place == len(self._batches):
            return self._seconds[-1] * batch / self._batches[-1]
        above, upper = self._batches[place], self._seconds[place]
        if above == batch or place == 0:
            return upper
        below, lower = self._batches[place - 1], self._seconds[place - 1]
        # Rounding may pass the upper end, and then a larger batch would be the quicker one.
        return min(upper, lower + (upper - lower) * (batch - below) / (above - below))


class Operation(StrEnum):
    """What takes time in a run."""

    DENOISE_STEP = "denoise_step"
    """One forward of `batch` rows on a crew of `degree` slots; guidance doubles the rows."""
    PREVIEW_STEP = "preview_step"
    """The same of previews, which may round what is trained to the type of the base weights; a profile without it
    says that they take as long."""
    TRAIN_TIMESTEP = "train_timestep"
    """Forward and backward of `batch` image-timesteps on one rank; forwards of other weights are extra."""
    OPTIMIZER_STEP = "optimizer_step"
    """One update of a gang of `degree` ranks, their gradients joined."""
    DECODE = "decode"
    """`batch` pictures from their latents."""
    REWARD = "reward"
    """`batch` pictures scored by one reward process."""
    PUBLISH = "publish"
    """The published set of weights, from the trainer to the run's store."""
    NODE_FETCH = "node_fetch"
    """The published set, from the run's store into a node and applied."""
    ADOPT = "adopt"
    """The published set, taken up by the trainer that wrote it, from its own memory; a profile without it says that
    trainers fetch it like everybody else."""
    PEER_COPY = "peer_copy"
    """The base weights, from a neighbour on the node."""
    REGROUP = "regroup"
    """From the loss of a crew's slot to the survivors' next step."""
    WORKER_START = "worker_start"
    """On a machine that is up, until a worker says Hello with its model loaded."""
    ROLE_SWITCH = "role_switch"
    """Between rolling out and training."""
    CHECKPOINT = "checkpoint"
    """One durable save of the gang's state, from the order until it is on disk."""
    SNAPSHOT = "snapshot"
    """Of that, the copy of the state, after which the trainer goes on; a profile without it says that the trainer is
    held until all is on disk."""


LIKE = {
    Operation.PREVIEW_STEP: Operation.DENOISE_STEP,
    Operation.ADOPT: Operation.NODE_FETCH,
    Operation.SNAPSHOT: Operation.CHECKPOINT,
}
"""What an operation that a profile does not have takes as long as."""


class Provenance(StrEnum):
    """Where a figure comes from."""

    MEASURED = "measured"
    DERIVED = "derived"
    LITERATURE = "literature"


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of one batch at one degree."""

    batch: int
    degree: int
    p50: float
    p99: float


class Series(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Points that were obtained in one way."""

    provenance: Provenance
    how: str
    """One sentence."""
    points: tuple[Point, ...]
    """By degree, then by batch."""


class Times(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All that is known of one operation."""

    interpolation: str
    """The rule of `curve.py` in words, for the readers of the file."""
    series: tuple[Series, ...]

    @property
    def points(self) -> list[Point]:
        """By degree, then by batch, whatever they come from."""
        points = [point for series in self.series for point in series.points]
        return sorted(points, key=lambda point: (point.degree, point.batch))


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """Durations of one model at one picture size on one kind of hardware."""

    name: str
    model: str
    width: int
    height: int
    tokens: int
    """Image tokens of one picture."""
    hardware: str
    date: str
    commit: str
    notes: str
    operations: Mapping[Operation, Times]

    @classmethod
    def load(cls, source: str | Path) -> Self:
        """A shipped profile by name, or a JSON file."""
        path = Path(source)
        if path.suffix != ".json":
            if str(source) not in profile_names():
                raise ConfigError(f"there is no profile '{source}': {suggestion(str(source), profile_names())}")
            path = asset(f"profiles/{source}.json")
        if not path.is_file():
            raise ConfigError(f"the profile {path} does not exist; check the path, or name a shipped profile.")
        return cls.from_json(path.read_bytes(), str(path))

    @classmethod
    def from_json(cls, content: bytes, where: str) -> Self:
        try:
            profile = msgspec.json.decode(content, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the profile {where} cannot be read: {error}; correct it, or make it anew with `spotlight profile`."
            ) from error
        profile.check(where)
        return profile

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self, order="deterministic"), indent=1) + b"\n"

    @property
    def digest(self) -> str:
        """Of the content: the same however a file is indented."""
        content = msgspec.json.encode(self, order="deterministic")
        return hashlib.blake2b(content, digest_size=8).hexdigest()

    def seconds(self, operation: Operation, batch: int = 1, degree: int = 1) -> float:
        """Half of the times it takes no longer."""
        asked = (operation, batch, degree)
        seconds = self._answered.get(asked)
        if seconds is None:
            operation = self._timed_as(operation)
            self.check_known(operation, degree)
            seconds = self._answered[asked] = self._typical[operation, degree].seconds(batch)
        return seconds

    def p99(self, operation: Operation, batch: int = 1, degree: int = 1) -> float:
        """All but one time in a hundred it takes no longer."""
        operation = self._timed_as(operation)
        self.check_known(operation, degree)
        return self._slowest[operation, degree].seconds(batch)

    def _timed_as(self, operation: Operation) -> Operation:
        return operation if operation in self.operations else LIKE.get(operation, operation)

    def degrees(self, operation: Operation) -> list[int]:
        """The degrees that can be asked for; none of an operation that is missing."""
        return sorted(degree for known, degree in self._points if known is operation)

    def provenance(self, operation: Operation, degree: int = 1) -> Provenance:
        """Where the figures of an operation at a degree come from: the least certain source of them."""
        self.check_known(operation, degree)
        told = self.operations[operation].series
        kinds = {series.provenance for series in told if any(point.degree == degree for point in series.points)}
        return max(kinds, key=list(Provenance).index)

    def require(self, operations: Iterable[Operation], recipe: str) -> None:
        """Before anything is simulated or planned, so that nothing stops halfway."""
        missing = sorted(operation for operation in set(operations) if operation not in self.operations)
        if missing:
            raise ConfigError(
                f"the profile '{self.name}' has no {', '.join(missing)}, which the recipe '{recipe}' needs; measure "
                "what is missing with `spotlight profile`, or choose another profile."
            )

    def check(self, where: str) -> None:
        """Refuse what cannot be a profile."""
        if min(self.width, self.height, self.tokens) < 1:
            raise ConfigError(
                f"the profile {where} is of {self.width}x{self.height} pictures of {self.tokens} tokens, which is "
                "nothing; give its width, height and tokens."
            )
        for operation, times in self.operations.items():
            _check_times(times, f"{operation} in the profile {where}")

    @cached_property
    def _points(self) -> dict[tuple[Operation, int], list[Point]]:
        found: dict[tuple[Operation, int], list[Point]] = {}
        for operation, times in self.operations.items():
            for point in times.points:
                found.setdefault((operation, point.degree), []).append(point)
        return found

    @cached_property
    def _answered(self) -> dict[tuple[Operation, int, int], float]:
        """What was asked for before: a simulation asks for the same few seconds at every step."""
        return {}

    @cached_property
    def _typical(self) -> dict[tuple[Operation, int], BatchCurve]:
        return {
            known: BatchCurve((point.batch, point.p50) for point in points) for known, points in self._points.items()
        }

    @cached_property
    def _slowest(self) -> dict[tuple[Operation, int], BatchCurve]:
        return {
            known: BatchCurve((point.batch, point.p99) for point in points) for known, points in self._points.items()
        }

    def check_known(self, operation: Operation, degree: int) -> None:
        """Refuse what the profile does not tell."""
        if (operation, degree) in self._points:
            return
        if operation not in self.operations:
            raise ConfigError(
                f"the profile '{self.name}' does not say how long {operation} takes, so it cannot be simulated or "
                "planned; measure it with `spotlight profile`, or choose another profile."
            )
        degrees = ", ".join(str(known) for known in self.degrees(operation))
        raise ConfigError(
            f"the profile '{self.name}' does not say how long {operation} takes at degree {degree}, and nothing sound "
            f"lies between the degrees it has ({degrees}); use one of these, or add points for {degree}."
        )


def efficient_batch(profile: Profile, operation: Operation, degree: int = 1) -> int:
    """The smallest timed batch that loses next to nothing against the best one."""
    profile.check_known(operation, degree)
    batches = {point.batch for point in profile.operations[operation].points if point.degree == degree}
    return efficient({batch: profile.seconds(operation, batch, degree) / batch for batch in batches})


def profile_names() -> list[str]:
    return sorted(path.stem for path in asset("profiles").glob("*.json"))


def _check_times(times: Times, where: str) -> None:
    if not times.points:
        raise ConfigError(f"{where} has no points, so it says nothing; add points, or leave the operation out.")
    for series in times.series:
        places = [(point.degree, point.batch) for point in series.points]
        if places != sorted(places):
            raise ConfigError(f"{where} has points out of order; sort them by degree, then by batch.")
        for point in series.points:
            _check_point(point, where)
    places = [(point.degree, point.batch) for point in times.points]
    for place, following in pairwise(places):
        if place == following:
            raise ConfigError(f"{where} tells of batch {place[1]} at degree {place[0]} twice; keep one of the points.")


def _check_point(point: Point, where: str) -> None:
    at = f"{where} at batch {point.batch} and degree {point.degree}"
    if min(point.batch, point.degree) < 1:
        raise ConfigError(f"{at} is of nothing; batch and degree start at 1, so correct them.")
    for name, seconds in (("p50", point.p50), ("p99", point.p99)):
        if not 0 <= seconds < math.inf:
            raise ConfigError(f"{at} has a {name} of {seconds:g} s, which is no duration; correct it.")
    if point.p99 < point.p50:
        raise ConfigError(
            f"{at} has a p99 of {point.p99:g} s below its p50 of {point.p50:g} s, which cannot be; correct it."
        )

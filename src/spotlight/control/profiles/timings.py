"""A profile: seconds per operation of one model at one image size on one kind of hardware, with their provenance.

    profile = Profile.load("h200-qwen-image-512")
    profile.seconds(Operation.DENOISE_STEP, batch=8, degree=2)     # p50 of one forward of 8 rows on a crew of two
    profile.require([Operation.DECODE], "words-large-nft")         # ConfigError if an operation is missing

`BatchCurve` interpolates between timed batches; degrees are exact, because their times cannot be interpolated.
Invariant: in a loaded profile every figure is finite and not negative, no pair of batch and degree of an operation
occurs twice, and the digest changes with any of it (tests/unit/test_profiles.py).
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
    """Seconds of any batch of at least one row."""

    def __init__(self, timed: Iterable[tuple[int, float]]) -> None:
        """`timed`: pairs of (batch, seconds), at least one, each batch once."""
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
                f"the seconds of a batch of {batch} rows were requested, but a batch has at least 1 row; request at "
                "least 1."
            )
        index = bisect_left(self._batches, batch)
        if index == len(self._batches):
            return self._seconds[-1] * batch / self._batches[-1]
        above, upper = self._batches[index], self._seconds[index]
        if above == batch or index == 0:
            return upper
        below, lower = self._batches[index - 1], self._seconds[index - 1]
        # Rounding may exceed the upper end, and then a larger batch would be faster.
        return min(upper, lower + (upper - lower) * (batch - below) / (above - below))


class Operation(StrEnum):
    """A timed operation of a run."""

    DENOISE_STEP = "denoise_step"
    """One forward of `batch` rows on a crew of `degree` slots; guidance doubles the rows."""
    PREVIEW_STEP = "preview_step"
    """One forward of previews that round trained weights to the type of the base weights; DENOISE_STEP if absent."""
    FP8_PREVIEW_STEP = "fp8_preview_step"
    """One forward of previews with linear layers in fp8 (`explore.precision`)."""
    TRAIN_TIMESTEP = "train_timestep"
    """Forward and backward of `batch` image-timesteps on one rank; forwards of other weights are extra."""
    OPTIMIZER_STEP = "optimizer_step"
    """One update of a gang of `degree` ranks, including the all-reduce of gradients."""
    DECODE = "decode"
    """Decoding of `batch` images from their latents."""
    REWARD = "reward"
    """Scoring of `batch` images by one reward process."""
    PUBLISH = "publish"
    """Writing the published weights from the trainer to the run's store."""
    NODE_FETCH = "node_fetch"
    """Copying the published weights from the run's store to a node and applying them."""
    STORE_LOAD = "store_load"
    """The part of NODE_FETCH that a worker takes, once the node has its copy; NODE_FETCH if absent."""
    ADOPT = "adopt"
    """Applying the published weights from the memory of the trainer that wrote them; NODE_FETCH if absent."""
    PEER_COPY = "peer_copy"
    """Copying weights from a neighbour on the node; NODE_FETCH if absent."""
    REGROUP = "regroup"
    """Time from the loss of a crew's slot to the survivors' next step."""
    WORKER_START = "worker_start"
    """Time on a running machine until a worker sends Hello with its model loaded."""
    ROLE_SWITCH = "role_switch"
    """Change between rolling out and training."""
    CHECKPOINT = "checkpoint"
    """One durable save of the gang's state, from the order until it is on disk."""
    SNAPSHOT = "snapshot"
    """Copying the state for a checkpoint, after which the trainer continues; CHECKPOINT if absent."""


LIKE = {
    Operation.PREVIEW_STEP: Operation.DENOISE_STEP,
    Operation.STORE_LOAD: Operation.NODE_FETCH,
    Operation.ADOPT: Operation.NODE_FETCH,
    Operation.PEER_COPY: Operation.NODE_FETCH,
    Operation.SNAPSHOT: Operation.CHECKPOINT,
}
"""Substitute for an operation that a profile lacks."""


class Provenance(StrEnum):
    """Source of a figure."""

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
    """Points from one source."""

    provenance: Provenance
    how: str
    """Method, in one sentence."""
    points: tuple[Point, ...]
    """Points by degree, then by batch."""


class Times(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All times of one operation."""

    interpolation: str
    """The rule of `BatchCurve` in words, for readers of the file."""
    series: tuple[Series, ...]

    @property
    def points(self) -> list[Point]:
        """Points of all series, by degree, then by batch."""
        points = [point for series in self.series for point in series.points]
        return sorted(points, key=lambda point: (point.degree, point.batch))


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """Durations of one model at one image size on one kind of hardware."""

    name: str
    model: str
    width: int
    height: int
    tokens: int
    """Tokens of one image."""
    hardware: str
    date: str
    commit: str
    notes: str
    operations: Mapping[Operation, Times]

    @classmethod
    def load(cls, source: str | Path) -> Self:
        """Load a shipped profile by name, or a JSON file."""
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
                f"the profile {where} cannot be read: {error}; correct it, or create it anew with `spotlight profile`."
            ) from error
        profile.check(where)
        return profile

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self, order="deterministic"), indent=1) + b"\n"

    @property
    def digest(self) -> str:
        """Digest of the content; independent of the file's indentation."""
        content = msgspec.json.encode(self, order="deterministic")
        return hashlib.blake2b(content, digest_size=8).hexdigest()

    def seconds(self, operation: Operation, batch: int = 1, degree: int = 1) -> float:
        """Median seconds (p50)."""
        key = (operation, batch, degree)
        seconds = self._cache.get(key)
        if seconds is None:
            operation = self._or_substitute(operation)
            self.check_known(operation, degree)
            seconds = self._cache[key] = self._typical[operation, degree].seconds(batch)
        return seconds

    def p99(self, operation: Operation, batch: int = 1, degree: int = 1) -> float:
        """99th percentile of the seconds."""
        operation = self._or_substitute(operation)
        self.check_known(operation, degree)
        return self._slowest[operation, degree].seconds(batch)

    def _or_substitute(self, operation: Operation) -> Operation:
        return operation if operation in self.operations else LIKE.get(operation, operation)

    @property
    def copies_sets(self) -> bool:
        """Whether published weights are copied to a device; on a CPU a trainer keeps no copy that it could adopt."""
        return Operation.ADOPT in self.operations

    @property
    def node_copy_s(self) -> float:
        """Seconds of a copy of published weights to a node, in which its workers have no part."""
        return max(0.0, self.seconds(Operation.NODE_FETCH) - self.seconds(Operation.STORE_LOAD))

    def degrees(self, operation: Operation) -> list[int]:
        """Degrees with points; none for a missing operation."""
        return sorted(degree for known, degree in self._points if known is operation)

    def provenance(self, operation: Operation, degree: int = 1) -> Provenance:
        """The least certain source of the points of an operation at a degree."""
        self.check_known(operation, degree)
        all_series = self.operations[operation].series
        kinds = {series.provenance for series in all_series if any(point.degree == degree for point in series.points)}
        return max(kinds, key=list(Provenance).index)

    def require(self, operations: Iterable[Operation], recipe: str) -> None:
        """Raise ConfigError if an operation is missing; called before a simulation or plan starts."""
        missing = sorted(operation for operation in set(operations) if operation not in self.operations)
        if missing:
            raise ConfigError(
                f"the profile '{self.name}' has no {', '.join(missing)}, which the recipe '{recipe}' needs; measure "
                "the missing operations with `spotlight profile`, or choose another profile."
            )

    def check(self, where: str) -> None:
        """Raise ConfigError for impossible values."""
        if min(self.width, self.height, self.tokens) < 1:
            raise ConfigError(
                f"the profile {where} has images of {self.width}x{self.height} pixels and {self.tokens} tokens; set "
                "its width, height and tokens to 1 or more."
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
    def _cache(self) -> dict[tuple[Operation, int, int], float]:
        """Results of `seconds`: a simulation requests the same few at every step."""
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
        """Raise ConfigError if the profile has no points for this operation and degree."""
        if (operation, degree) in self._points:
            return
        if operation not in self.operations:
            raise ConfigError(
                f"the profile '{self.name}' has no times for {operation}, so it cannot be simulated or planned; "
                "measure it with `spotlight profile`, or choose another profile."
            )
        degrees = ", ".join(str(known) for known in self.degrees(operation))
        raise ConfigError(
            f"the profile '{self.name}' has no times for {operation} at degree {degree}, and times cannot be "
            f"interpolated between its degrees ({degrees}); use one of these, or add points for {degree}."
        )


def efficient_batch(profile: Profile, operation: Operation, degree: int = 1) -> int:
    """Return the smallest timed batch within 5 % of the best seconds per row."""
    profile.check_known(operation, degree)
    batches = {point.batch for point in profile.operations[operation].points if point.degree == degree}
    return efficient({batch: profile.seconds(operation, batch, degree) / batch for batch in batches})


def profile_names() -> list[str]:
    return sorted(path.stem for path in asset("profiles").glob("*.json"))


def _check_times(times: Times, where: str) -> None:
    if not times.points:
        raise ConfigError(f"{where} has no points; add points, or leave the operation out.")
    for series in times.series:
        keys = [(point.degree, point.batch) for point in series.points]
        if keys != sorted(keys):
            raise ConfigError(f"{where} has points out of order; sort them by degree, then by batch.")
        for point in series.points:
            _check_point(point, where)
    keys = [(point.degree, point.batch) for point in times.points]
    for key, following in pairwise(keys):
        if key == following:
            raise ConfigError(f"{where} has batch {key[1]} at degree {key[0]} twice; keep one of the points.")


def _check_point(point: Point, where: str) -> None:
    at = f"{where} at batch {point.batch} and degree {point.degree}"
    if min(point.batch, point.degree) < 1:
        raise ConfigError(f"{at} is impossible; batch and degree start at 1, so correct them.")
    for name, seconds in (("p50", point.p50), ("p99", point.p99)):
        if not 0 <= seconds < math.inf:
            raise ConfigError(f"{at} has a {name} of {seconds:g} s, which is not a duration; correct it.")
    if point.p99 < point.p50:
        raise ConfigError(
            f"{at} has a p99 of {point.p99:g} s below its p50 of {point.p50:g} s, which is impossible; correct it."
        )

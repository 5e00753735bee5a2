"""A node's announced weights, without files: which to copy next, which a new worker needs, which files to delete.

    Load --> queued --> copying --copied--> current --a later announcement drops the set--> retired --> file deleted
                |           `--failed--> the node ends
                `--a later announcement drops the set--> skipped
    Fetch --> queued --> copying --copied--> early --its Load--> current
                            |                  `--a later announcement drops the set--> file deleted
                            `--failed--> left to its Load

Invariants (tests/unit/test_announcements.py):
- Announcements are applied in the order of their arrival, because each lists the sets to keep. One whose set a later
  announcement no longer keeps is skipped.
- A file is deleted only when every worker that received its path has loaded a later set, so no worker finds it missing.

`Publishers` records which workers publish which weights, so that they apply their own copies before the file is in the
store:

    Publish --> known --Load arrives, no other set is pending--> Adopt, to the workers that published them
                  `--a newer version is published, or the worker is gone--> forgotten

Invariant (tests/unit/test_announcements.py): `Adopt` overtakes no announcement of other sets. Each lists the sets to
keep, so a late one would make the worker drop a set that it has just applied and reported.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from spotlight.core.crew_messages import Adopt
from spotlight.core.messages import Load, Publish
from spotlight.core.types import WorkerId
from spotlight.core.work import WeightsId


class Publishers:
    """The workers that publish sets, and the announcements whose file is not here yet."""

    def __init__(self) -> None:
        self._of: dict[WeightsId, list[WorkerId]] = {}
        """Publishers of the newest version's sets, until those are announced."""
        self._pending: list[Load] = []
        """Announcements that are not relayed to the workers yet."""

    def ordered(self, worker: WorkerId, order: Publish) -> None:
        """A rank is ordered to publish: it has the weights, whichever rank writes them."""
        for published in order.weights:
            self._of = {weights: of for weights, of in self._of.items() if weights.version == published.version}
            self._of.setdefault(published, []).append(worker)

    def gone(self, worker: WorkerId) -> None:
        self._of = {weights: [each for each in of if each != worker] for weights, of in self._of.items()}

    def announced(self, load: Load) -> tuple[Sequence[WorkerId], Adopt]:
        """The publishers, and the Adopt to send to them at once. All workers get the Load after the copy."""
        overtakes = any(_kept(other) != _kept(load) for other in self._pending)
        self._pending.append(load)
        publishers = () if overtakes else self._of.pop(load.weights, ())
        return publishers, Adopt(weights=load.weights, digest=load.digest, keep=load.keep)

    def arrived(self, load: Load) -> None:
        """Remove an announcement whose file is copied, or cannot be."""
        self._pending.remove(load)


def _kept(load: Load) -> set[WeightsId]:
    return {load.weights, *load.keep}


@dataclass(frozen=True)
class Announced:
    """A Load of the controller, for one worker or for all."""

    load: Load
    worker: WorkerId | None = None
    is_early: bool = False
    """Whether only the file is copied: no worker receives it before its Load comes."""


@dataclass
class _Retired:
    """A file to delete once each of these workers holds a set announced `after` it, or is gone."""

    path: str
    after: int
    waits_for: set[WorkerId]


class Announcements:
    """One copy at a time: `next`, `done` and, unless it was given up, `copied`."""

    def __init__(self) -> None:
        self._queue: deque[Announced] = deque()
        self._copying: Announced | None = None
        self._wanted: set[WeightsId] = set()
        """Sets that the newest announcement keeps, copied or not."""
        self._loads: dict[WeightsId, Load] = {}
        """Announcements with paths on this node."""
        self._originals: dict[WeightsId, Load] = {}
        """The same with paths in the run's folder."""
        self._files: dict[WeightsId, str] = {}
        """Paths of the copies; a publisher's own file is none."""
        self._early: dict[WeightsId, str] = {}
        """Paths of copies whose Load has not come yet, or is not copied."""
        self._numbers: dict[WeightsId, int] = {}
        """Number of each set's first announcement."""
        self._count = 0
        self._retired: list[_Retired] = []

    def again(self, weights: WeightsId) -> tuple[Load, str] | None:
        """The announcement of a copy that is damaged, to be copied again from the run's machine, and the path of the
        copy; None if the set is not wanted any more."""
        load, path = self._originals.get(weights), self._files.get(weights)
        if load is None or path is None or weights not in self._wanted:
            return None
        keep = tuple(sorted(self._wanted - {weights}))
        return msgspec.structs.replace(load, keep=keep, sources=()), path

    def current(self) -> Sequence[Load]:
        """Announcements for a worker that starts now."""
        return tuple(self._loads.values())

    def is_wanted(self, weights: WeightsId) -> bool:
        """Whether the newest announcement keeps this set."""
        return weights in self._wanted

    def add(self, announced: Announced) -> None:
        kept = _kept(announced.load)
        self._wanted = self._wanted | kept if announced.is_early else kept
        self._queue.append(announced)

    def next(self) -> Load | None:
        """The next announcement, to be copied; None while another is being copied, or if there is none."""
        if self._copying is not None or not self._queue:
            return None
        self._copying = self._queue.popleft()
        return self._copying.load

    def done(self) -> Announced:
        """End a copy; return its announcement."""
        assert self._copying is not None
        announced, self._copying = self._copying, None
        return announced

    def fetched(self, load: Load, local: Load) -> None:
        """Record an early copy."""
        if local.path != load.path:
            self._early[load.weights] = local.path

    def copied(self, load: Load, local: Load, workers: Iterable[WorkerId]) -> list[str]:
        """Record that `load` has a path on this node as `local`; return files to delete."""
        self._count += 1
        # The first announcement counts: a worker's reply to it does not cover later ones.
        self._numbers.setdefault(load.weights, self._count)
        self._loads.pop(load.weights, None)
        self._loads[load.weights], self._originals[load.weights] = local, load
        if local.path != load.path:
            before = self._files.get(load.weights, local.path)
            if before != local.path:
                # Copied again, and the first folder had no room.
                self._retired.append(_Retired(before, self._count, set(workers)))
            self._files[load.weights] = local.path
            self._retired = [retired for retired in self._retired if retired.path != local.path]
        for weights in sorted(self._loads.keys() - _kept(load)):
            del self._loads[weights], self._originals[weights], self._numbers[weights]
            path = self._files.pop(weights, None)
            if path is not None:
                self._retired.append(_Retired(path, self._count, set(workers)))
        return [*self._sweep(), *self._unwanted()]

    def _unwanted(self) -> list[str]:
        """Early copies that no announcement keeps."""
        self._early = {weights: path for weights, path in self._early.items() if weights not in self._loads}
        dropped = [weights for weights in self._early if weights not in self._wanted]
        return [self._early.pop(weights) for weights in dropped]

    def caught_up(self, worker: WorkerId, weights: WeightsId) -> list[str]:
        """Record that the worker holds this set, and so needs no file retired before it; return files to delete."""
        number = self._numbers.get(weights, 0)
        for retired in self._retired:
            if retired.after <= number:
                retired.waits_for.discard(worker)
        return self._sweep()

    def gone(self, worker: WorkerId) -> list[str]:
        """Record the end of a worker; return files to delete."""
        for retired in self._retired:
            retired.waits_for.discard(worker)
        return self._sweep()

    def _sweep(self) -> list[str]:
        if not self._retired:
            return []
        free = [retired.path for retired in self._retired if not retired.waits_for]
        self._retired = [retired for retired in self._retired if retired.waits_for]
        return free

"""Which worker of a node wrote which weights: it need not wait until the file that it wrote is in the node's store.

    PublishedWeights --> written --Load comes, nothing older is on its way--> Adopt, to who wrote them
                            `--a newer version is written, or its writer is gone--> forgotten

Invariant: `Adopt` overtakes no announcement of other sets. Each says what is to be kept, so one that came later would
have the worker drop what it has just taken up and told of (tests/unit/test_written.py).
"""

from spotlight.core.crews import Adopt
from spotlight.core.messages import Load, PublishedWeights
from spotlight.core.types import WorkerId
from spotlight.core.work import WeightsId


class Written:
    """As the node's agent hears of it."""

    def __init__(self) -> None:
        self._by: dict[WeightsId, WorkerId] = {}
        """Of the newest version, until they are taken up."""
        self._on_their_way: list[Load] = []
        """Announcements that no worker was told of yet."""

    def wrote(self, worker: WorkerId, published: PublishedWeights) -> None:
        version = published.weights.version
        self._by = {weights: writer for weights, writer in self._by.items() if weights.version == version}
        self._by[published.weights] = worker

    def gone(self, worker: WorkerId) -> None:
        self._by = {weights: writer for weights, writer in self._by.items() if writer != worker}

    def announced(self, load: Load) -> tuple[WorkerId, Adopt] | None:
        """Whom to tell what at once; the others hear of it when the file is here, which `arrived` says."""
        overtakes = any(_kept(other) != _kept(load) for other in self._on_their_way)
        self._on_their_way.append(load)
        writer = None if overtakes else self._by.pop(load.weights, None)
        return None if writer is None else (writer, Adopt(weights=load.weights, digest=load.digest, keep=load.keep))

    def arrived(self, load: Load) -> None:
        """Its file is here, or will not come."""
        self._on_their_way.remove(load)


def _kept(load: Load) -> set[WeightsId]:
    return {load.weights, *load.keep}

"""The source of a worker's weights: a neighbour's device if one offers, else the node's store."""

from dataclasses import dataclass, field

import pytest
import torch
from driven_loading import DrivenLoading

from spotlight.core.crew_messages import AskNeighbour, Offered
from spotlight.core.errors import WeightsError
from spotlight.core.messages import Held, Load
from spotlight.core.types import Version, WorkerId
from spotlight.core.work import WeightsId
from spotlight.node import neighbours as loading
from spotlight.node.loading_core import PATIENCE_S
from spotlight.node.neighbours import Offer

ME, NEIGHBOUR = WorkerId("spot-1.1/1.1"), WorkerId("spot-1.1/0.1")
OLD, NEW = WeightsId(Version(1)), WeightsId(Version(2))
HANDLES = Offer(NEW, "digest", ()).to_bytes()


@dataclass
class Model:
    """Stands for a resident on some device; records the origin of each set."""

    device: torch.device
    origin: dict[WeightsId, str] = field(default_factory=dict)

    def held(self):
        return tuple((weights, "digest") for weights in sorted(self.origin))

    def drop(self, weights):
        self.origin.pop(weights, None)

    def load(self, stored):
        self.origin[stored] = "store"
        return "digest"

    @property
    def copies_sets(self):
        return self.device.type == "cuda"

    def adopt(self, weights, tensors):
        self.origin[weights] = "neighbour"
        return "altered" if tensors == "altered" else "digest"

    def tensors(self, weights):
        return {}


class Store:
    def open(self, weights):
        return weights


class LoadingWorker:
    def __init__(self, device: str = "cuda") -> None:
        self.model = Model(torch.device(device))
        self.sent: list[tuple[object, bytes]] = []
        self.now = 0.0
        self.loading = DrivenLoading(
            ME, self.model, Store(), lambda message, blob: self.sent.append((message, blob)), lambda: self.now
        )

    def order(self, weights: WeightsId = NEW, keep: tuple[WeightsId, ...] = ()) -> None:
        self.loading.apply(Load(weights=weights, digest="digest", path="", keep=keep))

    @property
    def messages(self) -> list[object]:
        return [message for message, _ in self.sent]


@pytest.fixture(autouse=True)
def handles_lead_somewhere(monkeypatch):
    """Replace the copy between devices, since there is no device here."""
    monkeypatch.setattr(loading, "take", lambda offered, device: "copied")
    monkeypatch.setattr(loading, "offer", lambda weights, digest, tensors: Offer(weights, digest, ()))


def test_worker_on_a_cpu_maps_the_store_without_a_request_to_neighbours():
    worker = LoadingWorker("cpu")
    worker.order()
    assert worker.model.origin == {NEW: "store"}
    assert worker.messages == [Held(weights=NEW, digest="digest")]


def test_trainer_on_a_cpu_maps_the_store_even_of_what_it_wrote():
    worker = LoadingWorker("cpu")
    worker.loading.published(NEW, {})
    worker.order()
    assert worker.model.origin == {NEW: "store"}


def test_worker_on_a_gpu_copies_from_the_neighbour_that_offers():
    worker = LoadingWorker()
    worker.order()
    assert worker.messages == [AskNeighbour(weights=NEW, newcomer=ME)]
    worker.loading.apply(Offered(weights=NEW, newcomer=ME), HANDLES)
    assert worker.model.origin == {NEW: "neighbour"}
    assert worker.messages[-1] == Held(weights=NEW, digest="digest")


def test_worker_loads_from_the_store_if_no_neighbour_holds_the_weights():
    worker = LoadingWorker()
    worker.order()
    worker.loading.apply(Offered(weights=NEW, newcomer=ME), b"")
    assert worker.model.origin == {NEW: "store"}


def test_copy_that_was_altered_on_the_way_is_thrown_away_for_the_store(monkeypatch):
    monkeypatch.setattr(loading, "take", lambda offered, device: "altered")
    worker = LoadingWorker()
    worker.order()
    worker.loading.apply(Offered(weights=NEW, newcomer=ME), HANDLES)
    assert worker.model.origin == {NEW: "store"}
    assert worker.messages[-1] == Held(weights=NEW, digest="digest")


def test_neighbour_that_never_replies_is_waited_for_no_longer_than_the_patience():
    worker = LoadingWorker()
    worker.order()
    worker.now = PATIENCE_S / 2
    worker.loading.expire()
    assert worker.loading.core.seconds_left() == PATIENCE_S / 2
    assert worker.model.origin == {}
    worker.now = PATIENCE_S
    worker.loading.expire()
    assert not worker.loading.core.requests
    assert worker.model.origin == {NEW: "store"}
    worker.loading.apply(Offered(weights=NEW, newcomer=ME), HANDLES)
    assert worker.model.origin == {NEW: "store"}


def test_set_that_is_no_longer_wanted_is_dropped_and_not_waited_for():
    worker = LoadingWorker()
    worker.order(OLD)
    worker.order(NEW)
    worker.loading.apply(Offered(weights=OLD, newcomer=ME), HANDLES)
    worker.loading.apply(Offered(weights=NEW, newcomer=ME), HANDLES)
    assert worker.model.origin == {NEW: "neighbour"}


def test_holder_whose_memory_cannot_be_shared_offers_nothing_and_continues(monkeypatch):
    def refuse(weights, digest, tensors):
        raise WeightsError("the allocator does not allow it")

    monkeypatch.setattr(loading, "offer", refuse)
    worker = LoadingWorker()
    worker.model.origin[OLD] = "store"
    worker.loading.apply(AskNeighbour(weights=OLD, newcomer=NEIGHBOUR))
    assert worker.sent == [(Offered(weights=OLD, newcomer=NEIGHBOUR), b"")]


def test_holder_offers_what_it_holds_and_replies_empty_otherwise():
    worker = LoadingWorker()
    worker.model.origin[OLD] = "store"
    worker.loading.apply(AskNeighbour(weights=OLD, newcomer=NEIGHBOUR))
    worker.loading.apply(AskNeighbour(weights=NEW, newcomer=NEIGHBOUR))
    (held, handles), (unknown, none) = worker.sent
    assert held == Offered(weights=OLD, newcomer=NEIGHBOUR)
    assert Offer.from_bytes(handles).weights == OLD
    assert unknown == Offered(weights=NEW, newcomer=NEIGHBOUR)
    assert none == b""

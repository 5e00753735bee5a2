"""Where a worker takes weights from: a neighbour's device, the node's store, and whichever is left."""

from dataclasses import dataclass, field

import pytest
import torch

from spotlight.core.crew_messages import AskNeighbour, Offered
from spotlight.core.errors import WeightsError
from spotlight.core.messages import Held, Load
from spotlight.core.types import Version, WorkerId
from spotlight.core.work import WeightsId
from spotlight.node import neighbours as loading
from spotlight.node.neighbours import PATIENCE_S, Loading, Offer

ME, NEIGHBOUR = WorkerId("spot-1.1/1.1"), WorkerId("spot-1.1/0.1")
OLD, NEW = WeightsId(Version(1)), WeightsId(Version(2))
HANDLES = Offer(NEW, "digest", ()).to_bytes()


@dataclass
class Model:
    """Stands for a resident on some device; remembers where each set came from."""

    device: torch.device
    origin: dict[WeightsId, str] = field(default_factory=dict)

    def held(self):
        return tuple((weights, "digest") for weights in sorted(self.origin))

    def drop(self, weights):
        self.origin.pop(weights, None)

    def load(self, stored):
        self.origin[stored] = "store"
        return "digest"

    def adopt(self, weights, tensors, expected_digest):
        if tensors == "altered":
            raise WeightsError("the digest is another")
        self.origin[weights] = "neighbour"
        return expected_digest

    def tensors(self, weights):
        return {}


class Store:
    def open(self, weights):
        return weights


class Story:
    def __init__(self, device: str = "cuda") -> None:
        self.model = Model(torch.device(device))
        self.said: list[tuple[object, bytes]] = []
        self.now = 0.0
        self.loading = Loading(
            ME, self.model, Store(), lambda message, blob: self.said.append((message, blob)), lambda: self.now
        )

    def order(self, weights: WeightsId = NEW, keep: tuple[WeightsId, ...] = ()) -> None:
        self.loading.load(Load(weights=weights, digest="digest", path="", keep=keep))

    @property
    def told(self) -> list[object]:
        return [message for message, _ in self.said]


@pytest.fixture(autouse=True)
def handles_lead_somewhere(monkeypatch):
    """There is no device here to copy from."""
    monkeypatch.setattr(loading, "take", lambda offered, device: "copied")
    monkeypatch.setattr(loading, "offer", lambda weights, digest, tensors: Offer(weights, digest, ()))


def test_worker_on_a_cpu_maps_the_store_without_asking_anybody():
    story = Story("cpu")
    story.order()
    assert story.model.origin == {NEW: "store"}
    assert story.told == [Held(weights=NEW, digest="digest")]


def test_trainer_on_a_cpu_maps_the_store_even_of_what_it_wrote():
    story = Story("cpu")
    story.loading.wrote(NEW, {})
    story.order()
    assert story.model.origin == {NEW: "store"}


def test_worker_on_a_gpu_copies_from_the_neighbour_that_offers():
    story = Story()
    story.order()
    assert story.told == [AskNeighbour(weights=NEW, newcomer=ME)]
    story.loading.offered(Offered(weights=NEW, newcomer=ME), HANDLES)
    assert story.model.origin == {NEW: "neighbour"}
    assert story.told[-1] == Held(weights=NEW, digest="digest")


def test_nobody_who_holds_them_means_the_store():
    story = Story()
    story.order()
    story.loading.offered(Offered(weights=NEW, newcomer=ME), b"")
    assert story.model.origin == {NEW: "store"}


def test_copy_that_was_altered_on_the_way_is_thrown_away_for_the_store(monkeypatch):
    monkeypatch.setattr(loading, "take", lambda offered, device: "altered")
    story = Story()
    story.order()
    story.loading.offered(Offered(weights=NEW, newcomer=ME), HANDLES)
    assert story.model.origin == {NEW: "store"}
    assert story.told[-1] == Held(weights=NEW, digest="digest")


def test_neighbour_that_never_answers_is_waited_for_no_longer_than_the_patience():
    story = Story()
    story.order()
    story.now = PATIENCE_S / 2
    assert story.loading.seconds_left() == PATIENCE_S / 2
    assert story.model.origin == {}
    story.now = PATIENCE_S
    assert story.loading.seconds_left() is None
    assert story.model.origin == {NEW: "store"}
    story.loading.offered(Offered(weights=NEW, newcomer=ME), HANDLES)
    assert story.model.origin == {NEW: "store"}


def test_set_that_is_no_longer_wanted_is_dropped_and_not_waited_for():
    story = Story()
    story.order(OLD)
    story.order(NEW)
    story.loading.offered(Offered(weights=OLD, newcomer=ME), HANDLES)
    story.loading.offered(Offered(weights=NEW, newcomer=ME), HANDLES)
    assert story.model.origin == {NEW: "neighbour"}


def test_holder_whose_memory_cannot_be_shared_says_so_and_lives(monkeypatch):
    def refuse(weights, digest, tensors):
        raise WeightsError("the allocator does not allow it")

    monkeypatch.setattr(loading, "offer", refuse)
    story = Story()
    story.model.origin[OLD] = "store"
    story.loading.requested(AskNeighbour(weights=OLD, newcomer=NEIGHBOUR))
    assert story.said == [(Offered(weights=OLD, newcomer=NEIGHBOUR), b"")]


def test_holder_offers_what_it_holds_and_says_so_where_it_does_not():
    story = Story()
    story.model.origin[OLD] = "store"
    story.loading.requested(AskNeighbour(weights=OLD, newcomer=NEIGHBOUR))
    story.loading.requested(AskNeighbour(weights=NEW, newcomer=NEIGHBOUR))
    (held, handles), (unknown, none) = story.said
    assert held == Offered(weights=OLD, newcomer=NEIGHBOUR)
    assert Offer.from_bytes(handles).weights == OLD
    assert unknown == Offered(weights=NEW, newcomer=NEIGHBOUR)
    assert none == b""

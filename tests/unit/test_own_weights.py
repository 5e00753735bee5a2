"""A worker that trains adopts what it published from its own memory: the same bits that other workers fetch."""

import logging

import msgspec
import pytest
import torch
from driven_loading import DrivenLoading
from tiny_models import (
    PROMPTS,
    RUN_SEED,
    OnDevice,
    grouped_samples,
    rolled_out,
    tiny_adapter,
    tiny_experience,
    tiny_sampling,
)

from spotlight.compute.models.pixels import PixelAdapter
from spotlight.compute.rollout.denoise import Rollout
from spotlight.compute.train.config import AlgorithmConfig, FlowGrpoConfig, LoraConfig, NftConfig, TrainConfig
from spotlight.compute.train.lora import select_trainable
from spotlight.compute.train.role import TrainingRole
from spotlight.compute.train.trainer import Trainer
from spotlight.compute.weights.resident import Resident
from spotlight.compute.weights.store import NodeStore
from spotlight.core import messages as m
from spotlight.core.crew_messages import Adopt, AskNeighbour, CopyDamaged, Offered
from spotlight.core.errors import WeightsError
from spotlight.core.types import SamplerKind, Version, Window, WorkerId
from spotlight.core.work import Policy, WeightsId

BASE = "base"
LORA = LoraConfig(rank=4, alpha=8.0)
ME = WorkerId("reserved-1.1/0.1")
BEHAVIOUR, AVERAGE = (WeightsId(Version(1), policy) for policy in (Policy.BEHAVIOUR, Policy.AVERAGE))
SDE = tiny_sampling(SamplerKind.CPS, Window(0, 2))
KINDS = {
    "nft, all weights": (NftConfig(timesteps_per_sample=2), None),
    "nft, adapters": (NftConfig(timesteps_per_sample=2), LORA),
    "flow-grpo, all weights": (FlowGrpoConfig(clip=3e-4), None),
    "flow-grpo, adapters": (FlowGrpoConfig(clip=3e-4), LORA),
}


class Reserved:
    """A worker that trains, and the messages it sends."""

    def __init__(self, folder, algorithm: AlgorithmConfig, lora: LoraConfig | None) -> None:
        self.trainer = Trainer(tiny_adapter(), TrainConfig(lr=1e-2, lora=lora), algorithm, RUN_SEED)
        self.adapter = self.trainer.adapter
        self.resident = OnDevice(self.adapter.transformer, BASE, capacity=3)
        self.role = TrainingRole(self.trainer, self.adapter, BASE, folder, lambda message: None)
        self.store = NodeStore(folder / "weights")
        self.sent: list[m.AnyMessage] = []
        self.loading = DrivenLoading(ME, self.resident, self.store, lambda message, blob: self.sent.append(message))

    def train(self) -> None:
        experience = tiny_experience(self.adapter, grouped_samples(SDE))
        self.trainer.update(experience, range(len(experience)))
        self.trainer.end_iteration()

    def publish(self, weights: WeightsId) -> m.PublishedWeights:
        published = self.role.obey(m.Publish(weights=(weights,)))
        self.loading.published(weights, self.role.state(weights.policy))
        return published

    def load(self, weights: WeightsId, digest: str) -> None:
        self.loading.apply(m.Load(weights=weights, digest=digest, path="", keep=(BEHAVIOUR, AVERAGE)))

    def adopt(self, weights: WeightsId, digest: str, *keep: WeightsId) -> None:
        self.loading.apply(Adopt(weights=weights, digest=digest, keep=(weights, *keep)))

    @property
    def requests_neighbour(self) -> bool:
        return any(isinstance(message, AskNeighbour) for message in self.sent)


def draw(adapter: PixelAdapter, resident: Resident, weights: WeightsId) -> Rollout:
    samples = [msgspec.structs.replace(sample, version=weights.version) for sample in grouped_samples(SDE)]
    assert len(samples) == 2 * len(PROMPTS)
    with resident.use(weights):
        return rolled_out(adapter, samples)


def drawn_by_another(worker: Reserved, weights: WeightsId) -> Rollout:
    """The rollout of a worker that fetched the weights."""
    adapter = tiny_adapter()
    select_trainable(adapter.transformer, worker.trainer.train_config.lora, adapter.lora_targets, RUN_SEED)
    resident = Resident(adapter.transformer, BASE)
    resident.load(worker.store.open(weights))
    return draw(adapter, resident, weights)


@pytest.mark.parametrize("weights", [BEHAVIOUR, AVERAGE], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_trainer_draws_with_its_own_copy_what_other_workers_draw_with_the_file(tmp_path, kind, weights):
    worker = Reserved(tmp_path, *KINDS[kind])
    worker.train()
    published = worker.publish(weights)
    # Trained weights and their averages change before the order to load comes.
    worker.train()
    worker.load(weights, published.digest)
    assert worker.sent == [m.Held(weights=weights, digest=published.digest)]
    ours, theirs = draw(worker.adapter, worker.resident, weights), drawn_by_another(worker, weights)
    for name in ("x0_BSC", "path_BKSC", "log_prob_BK", "mean_BKSC"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name))


def test_damaged_copy_in_the_store_is_reported_once_and_a_whole_one_is_applied(tmp_path):
    """A worker on a CPU, which maps the store's file, as every newcomer."""
    writer = Reserved(tmp_path, *KINDS["nft, all weights"])
    published = writer.publish(BEHAVIOUR)
    path = writer.store._path(BEHAVIOUR)
    whole = path.read_bytes()
    damaged = whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:]
    adapter, sent = tiny_adapter(), []
    resident = Resident(adapter.transformer, BASE)
    loading = DrivenLoading(ME, resident, writer.store, lambda message, blob: sent.append(message))
    load = m.Load(weights=BEHAVIOUR, digest=published.digest, path=str(path))
    for wrong in (damaged, whole[: len(whole) // 2], b"", None):
        path.unlink(missing_ok=True)
        if wrong is not None:
            path.write_bytes(wrong)
        newcomer = DrivenLoading(ME, Resident(tiny_adapter().transformer, BASE), writer.store, lambda *one: None)
        newcomer.apply(load)
        with pytest.raises(WeightsError):
            newcomer.apply(load)
    path.write_bytes(damaged)
    loading.apply(load)
    assert [type(message) for message in sent] == [CopyDamaged]
    assert resident.held() == ()
    path.write_bytes(whole)
    loading.apply(load)
    assert sent[1:] == [m.Held(weights=BEHAVIOUR, digest=published.digest)]


def test_adopted_copy_does_not_change_with_later_training(tmp_path):
    worker = Reserved(tmp_path, *KINDS["flow-grpo, adapters"])
    worker.train()
    worker.load(BEHAVIOUR, worker.publish(BEHAVIOUR).digest)
    before = draw(worker.adapter, worker.resident, BEHAVIOUR)
    worker.train()
    assert torch.equal(draw(worker.adapter, worker.resident, BEHAVIOUR).x0_BSC, before.x0_BSC)


def test_copy_with_another_digest_than_announced_is_replaced_with_a_warning(tmp_path, caplog):
    worker = Reserved(tmp_path, *KINDS["nft, adapters"])
    worker.train()
    kept = worker.publish(BEHAVIOUR)
    # Another gang repeated the step with other bits and published those.
    worker.store.keep([])
    worker.train()
    announced = worker.role.obey(m.Publish(weights=(BEHAVIOUR,)))
    assert announced.digest != kept.digest
    with caplog.at_level(logging.WARNING):
        worker.load(BEHAVIOUR, announced.digest)
    assert worker.requests_neighbour
    assert f"{announced.digest} was announced" in caplog.text
    worker.loading.apply(Offered(weights=BEHAVIOUR, newcomer=ME), b"")
    assert worker.sent[-1] == m.Held(weights=BEHAVIOUR, digest=announced.digest)
    assert torch.equal(
        draw(worker.adapter, worker.resident, BEHAVIOUR).x0_BSC, drawn_by_another(worker, BEHAVIOUR).x0_BSC
    )


def test_set_of_an_older_version_is_fetched(tmp_path):
    worker = Reserved(tmp_path, *KINDS["nft, adapters"])
    worker.train()
    published = worker.publish(BEHAVIOUR)
    worker.train()
    worker.publish(WeightsId(Version(2)))
    worker.load(BEHAVIOUR, published.digest)
    assert worker.requests_neighbour


def test_both_sets_of_the_newest_version_are_kept_until_they_are_adopted(tmp_path):
    worker = Reserved(tmp_path, *KINDS["nft, all weights"])
    worker.train()
    digests = {weights: worker.publish(weights).digest for weights in (BEHAVIOUR, AVERAGE)}
    for weights, digest in digests.items():
        worker.load(weights, digest)
    assert worker.sent == [m.Held(weights=weights, digest=digest) for weights, digest in digests.items()]
    assert worker.resident.held() == tuple(sorted(digests.items()))


def test_trainer_without_room_for_a_copy_publishes_and_fetches(tmp_path, monkeypatch, caplog):
    def full(tensors):
        raise torch.OutOfMemoryError("nothing left")

    monkeypatch.setattr("spotlight.node.neighbours.own_copy", full)
    worker = Reserved(tmp_path, *KINDS["nft, adapters"])
    worker.train()
    with caplog.at_level(logging.WARNING):
        published = worker.publish(BEHAVIOUR)
    worker.load(BEHAVIOUR, published.digest)
    assert worker.requests_neighbour
    assert "no device memory" in caplog.text


def test_trainer_that_adopts_holds_its_copy_and_the_order_to_load_finds_it(tmp_path):
    worker = Reserved(tmp_path, *KINDS["flow-grpo, adapters"])
    worker.train()
    published = worker.publish(BEHAVIOUR)
    # No other source has the weights.
    worker.store.keep([])
    worker.adopt(BEHAVIOUR, published.digest)
    held = m.Held(weights=BEHAVIOUR, digest=published.digest)
    assert worker.sent == [held]
    worker.load(BEHAVIOUR, published.digest)
    assert worker.sent == [held, held]


def test_trainer_that_adopts_first_drops_the_sets_that_are_not_kept(tmp_path):
    worker = Reserved(tmp_path, *KINDS["nft, adapters"])
    held = []
    for version in range(1, worker.resident.capacity + 2):
        worker.train()
        weights = WeightsId(Version(version))
        worker.adopt(weights, worker.publish(weights).digest, *held[-1:])
        held.append(weights)
    assert [weights for weights, _ in worker.resident.held()] == held[-2:]


def test_order_to_adopt_a_set_it_does_not_have_changes_nothing_and_sends_nothing(tmp_path, caplog):
    worker = Reserved(tmp_path, *KINDS["nft, adapters"])
    worker.train()
    first = worker.publish(BEHAVIOUR)
    worker.adopt(BEHAVIOUR, first.digest)
    sent = list(worker.sent)
    worker.adopt(AVERAGE, "of another gang")
    assert worker.sent == sent
    assert worker.resident.held() == ((BEHAVIOUR, first.digest),)


def test_copy_with_another_digest_is_not_adopted_and_is_fetched_when_it_is_to_be_loaded(tmp_path, caplog):
    worker = Reserved(tmp_path, *KINDS["nft, adapters"])
    worker.train()
    published = worker.publish(BEHAVIOUR)
    with caplog.at_level(logging.WARNING):
        worker.adopt(BEHAVIOUR, "of another gang")
    assert worker.sent == []
    assert "of another gang" in caplog.text
    worker.load(BEHAVIOUR, published.digest)
    assert worker.requests_neighbour


def test_copy_without_room_is_reported_as_such(tmp_path, caplog):
    worker = Reserved(tmp_path, *KINDS["nft, adapters"])
    worker.resident.capacity = 0
    worker.train()
    published = worker.publish(BEHAVIOUR)
    with caplog.at_level(logging.WARNING):
        worker.load(BEHAVIOUR, published.digest)
    assert worker.requests_neighbour
    assert "at most 0 sets" in caplog.text
    assert "announced" not in caplog.text

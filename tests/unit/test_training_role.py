"""A step in parts: its weights and figures, and other orders between two parts.

Refused orders are in tests/conformance/test_training_roles.py.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from tiny_models import PROMPTS, RUN_SEED, grouped_samples, rolled_out, tiny_adapter, tiny_sampling

from spotlight.compute.rollout.flight import Payload
from spotlight.compute.train import checkpoint
from spotlight.compute.train.config import AlgorithmConfig, FlowGrpoConfig, NftConfig, TrainConfig
from spotlight.compute.train.role import TrainingRole, Write
from spotlight.compute.train.trainer import Trainer
from spotlight.compute.weights.digest import digest
from spotlight.compute.weights.resident import Resident
from spotlight.compute.weights.store import NodeStore
from spotlight.core import messages as m
from spotlight.core.errors import Stopped
from spotlight.core.types import Sample, SamplerKind, Version, Window
from spotlight.core.work import Policy, Request, WeightsId, Work

NFT = NftConfig(timesteps_per_sample=2)
FLOW = FlowGrpoConfig(clip=3e-4)
BASE = "base"


@dataclass
class RoleHarness:
    """A training role, its trainer, and the messages that it sends."""

    role: TrainingRole
    trainer: Trainer
    folder: Path
    sent: list[m.AnyMessage]
    """Messages sent by the thread that writes checkpoints."""

    def items(self, numbers: Sequence[int], iteration: int = 0, lag: int = 0) -> tuple[m.TrainItem, ...]:
        """Items of eight samples in four groups of two; their tensors are written where an order finds them."""
        samples = [self._drawn(sample, iteration, lag) for sample in self._samples()]
        made = []
        for number in numbers:
            sample = samples[number]
            request = Request(work=Work.ROLLOUT, iteration=iteration, group=number // 2, sample=sample)
            row = rolled_out(self.trainer.adapter, [sample])
            path = self.folder / f"{iteration}-{number}-{lag}"
            path.write_bytes(
                Payload(
                    request=request,
                    weights_digest=BASE,
                    x0_SC=row.x0_BSC[0],
                    path_KSC=row.path_BKSC[0],
                    log_prob_K=row.log_prob_BK[0],
                    mean_KSC=row.mean_BKSC[0],
                ).to_bytes()
            )
            advantage = (-1.0) ** number * (0.3 + 0.1 * number)
            prompt = PROMPTS[number // 2]
            made.append(m.TrainItem(request=request, prompt=prompt, payload=path.name, advantage=advantage, kept=True))
        return tuple(made)

    def _samples(self) -> list[Sample]:
        if isinstance(self.trainer.algorithm, NftConfig):
            return grouped_samples(tiny_sampling())
        windows = (Window(0, 1), Window(1, 3), Window(0, 2), Window(2, 1))
        samples = grouped_samples(tiny_sampling(SamplerKind.CPS, Window(0, 1)))
        return [
            msgspec.structs.replace(s, sampling=msgspec.structs.replace(s.sampling, window=windows[number // 2]))
            for number, s in enumerate(samples)
        ]

    def _drawn(self, sample: Sample, iteration: int, lag: int) -> Sample:
        return msgspec.structs.replace(sample, version=Version(iteration - lag))

    def train(self, numbers: Sequence[int], step: int = 0, iteration: int = 0, lag: int = 0, **fields) -> m.AnyMessage:
        items = self.items(numbers, iteration, lag)
        return self.role.obey(m.Train(step=step, iteration=iteration, items=items, **{"last": True, **fields}))

    @property
    def theta(self) -> str:
        return digest({name: p.detach() for name, p in self.trainer.sets.theta.items()})


def harness_in(
    folder: Path, algorithm: AlgorithmConfig = NFT, keeps_before: bool = False, write: Write = checkpoint.write
) -> RoleHarness:
    # Batches of 4 rows: on a CPU the same rows then give the same bits whatever surrounds them.
    train = TrainConfig(lr=1e-3, micro_batch=4)
    trainer = Trainer(tiny_adapter(), train, algorithm, RUN_SEED, keeps_before)
    folder.mkdir(exist_ok=True)
    sent: list[m.AnyMessage] = []
    return RoleHarness(TrainingRole(trainer, trainer.adapter, BASE, folder, sent.append, write), trainer, folder, sent)


@pytest.mark.parametrize("algorithm", [NFT, FLOW], ids=["nft", "flow_grpo"])
def test_step_in_parts_gives_the_weights_and_figures_of_the_step_in_one(algorithm, tmp_path):
    whole, parted = harness_in(tmp_path / "a", algorithm), harness_in(tmp_path / "b", algorithm)
    wanted = whole.train(range(8))
    assert parted.train([0, 1, 2, 3], part=0, samples=8, is_final=False) == m.Accumulated(step=0, part=0)
    assert parted.role.steps == 0
    assert parted.train([4, 5], part=1, samples=8, is_final=False) == m.Accumulated(step=0, part=1)
    made = parted.train([6, 7], part=2, samples=8)
    assert isinstance(wanted, m.Stepped)
    assert isinstance(made, m.Stepped)
    assert made.figures == pytest.approx(wanted.figures, rel=1e-5, abs=1e-9)
    assert made.figures["rows"] == wanted.figures["rows"] == (16 if algorithm is NFT else 14)
    assert parted.role.steps == 1
    for name, parameter in parted.trainer.sets.theta.items():
        assert (parameter - whole.trainer.sets.theta[name]).abs().max() < 2e-5, name


def test_orders_without_parts_are_taken_as_before(tmp_path):
    one, named = harness_in(tmp_path / "a"), harness_in(tmp_path / "b")
    assert one.train(range(8)) == named.train(range(8), part=0, samples=8, is_final=True)
    assert one.theta == named.theta


def test_rollouts_publication_and_checkpoint_between_parts_change_no_bit(tmp_path):
    """The rollout is of published weights, swapped into the very module whose gradient is half made."""

    def trained_in(folder: Path, disturbed: bool) -> RoleHarness:
        harness = harness_in(folder)
        resident = Resident(harness.trainer.adapter.transformer, BASE)
        harness.train(range(8))
        harness.role.obey(m.Publish(weights=(WeightsId(Version(1)),)))
        resident.load(NodeStore(folder / "weights").open(WeightsId(Version(1))))
        harness.train(range(4), step=1, iteration=1, last=False)
        later = harness.items(range(8), iteration=1)
        order = m.Train(step=2, iteration=1, items=later[:4], last=True, samples=8, is_final=False)
        harness.role.obey(order)
        before = harness.theta
        if disturbed:
            with resident.use(WeightsId(Version(1))):
                assert harness.theta != before
                drawn = rolled_out(harness.trainer.adapter, grouped_samples(tiny_sampling()))
            assert drawn.x0_BSC.isfinite().all()
            harness.role.obey(m.Publish(weights=(WeightsId(Version(2), Policy.AVERAGE),)))
            harness.role.obey(m.Save(step=2, path="checkpoints/step_2"))
        harness.role.obey(msgspec.structs.replace(order, items=later[4:], part=1, is_final=True))
        assert harness.theta != before
        return harness

    assert trained_in(tmp_path / "a", disturbed=True).theta == trained_in(tmp_path / "b", disturbed=False).theta


def test_samples_given_up_on_the_way_are_left_out_of_the_mean(tmp_path):
    """The first part announced eight; two of them never came."""
    wanted, made = harness_in(tmp_path / "a"), harness_in(tmp_path / "b")
    whole = wanted.train(range(6))
    made.train([0, 1, 2, 3], part=0, samples=8, is_final=False)
    stepped = made.train([4, 5], part=1, samples=6)
    assert isinstance(whole, m.Stepped)
    assert isinstance(stepped, m.Stepped)
    assert stepped.figures == pytest.approx(whole.figures, rel=1e-5, abs=1e-9)


def test_final_part_may_be_empty_but_a_step_may_not(tmp_path):
    harness = harness_in(tmp_path)
    with pytest.raises(Stopped, match="step 0 has no sample"):
        harness.train([])
    harness.train([0, 1, 2, 3], part=0, samples=4, is_final=False)
    assert isinstance(harness.train([], part=1, samples=4), m.Stepped)


@pytest.mark.parametrize("damage", ["lost", "damaged", "of another sample"])
def test_part_whose_tensors_cannot_be_used_stops_the_run_resumably_and_can_be_ordered_again(tmp_path, damage):
    straight, harness = harness_in(tmp_path / "a"), harness_in(tmp_path / "b")
    for each in (straight, harness):
        each.train([0, 1, 2, 3], part=0, samples=8, is_final=False)
    items = harness.items([4, 5, 6, 7])
    file = tmp_path / "b" / items[2].payload
    whole = file.read_bytes()
    if damage == "lost":
        file.unlink()
    else:
        other = (tmp_path / "b" / items[3].payload).read_bytes()
        file.write_bytes(whole[:-9] + b"\1" + whole[-8:] if damage == "damaged" else other)
    with pytest.raises(Stopped, match=r"cannot be trained on \(.*\); `spotlight resume` makes it again"):
        harness.role.obey(m.Train(step=0, iteration=0, items=items, last=True, part=1, samples=8))
    for each in (straight, harness):
        each.train([4, 5, 6, 7], part=1, samples=8)
    assert straight.theta == harness.theta


@pytest.mark.parametrize(("lag", "keeps_before"), [(1, False), (2, True)])
def test_sample_of_a_version_that_must_not_be_trained_on_is_refused(lag, keeps_before, tmp_path):
    harness = harness_in(tmp_path, NFT, keeps_before)
    start = harness.theta
    with pytest.raises(Stopped, match=rf"is of version {5 - lag} but iteration 5 .*; roll it out again"):
        harness.train(range(4), iteration=5, lag=lag)
    assert harness.theta == start


@pytest.mark.parametrize("algorithm", [NFT, FLOW], ids=["nft", "flow_grpo"])
def test_samples_one_version_old_are_trained_on_where_they_are_expected(algorithm, tmp_path):
    harness = harness_in(tmp_path, algorithm, keeps_before=True)
    harness.train([0, 1, 2, 3], iteration=5, lag=1, part=0, samples=8, is_final=False)
    stepped = harness.train([4, 5, 6, 7], iteration=5, part=1, samples=8)
    assert isinstance(stepped, m.Stepped)
    assert stepped.figures["stale_share"] == pytest.approx(0.5 if algorithm is NFT else 8 / 14)


STEP_1 = m.Save(step=1, path="checkpoints/step_1")


class Disk:
    """A disk that writes when the test permits it."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.busy = threading.Lock()

    def write(self, taken: checkpoint.TrainerSnapshot, folder: Path) -> None:
        assert self.busy.acquire(blocking=False), "two checkpoints are written at once"
        assert self.free.wait(60.0)
        checkpoint.write(taken, folder)
        self.busy.release()


def test_steps_are_taken_while_a_checkpoint_is_written_and_it_is_of_the_step_of_its_order(tmp_path):
    disk = Disk()
    harness = harness_in(tmp_path, write=disk.write)
    harness.train(range(8))
    kept = harness.theta
    assert harness.role.obey(STEP_1) is None
    harness.train(range(8), step=1, iteration=1)
    assert harness.theta != kept
    assert harness.sent == []
    assert not (tmp_path / STEP_1.path).exists()
    disk.free.set()
    restored = harness.role.obey(m.Restore(step=1, path=STEP_1.path))
    assert harness.sent == [m.Saved(step=1, path=STEP_1.path)], "sent before the restore, which waits for it"
    assert restored == m.Saved(step=1, path=STEP_1.path, restored=True)
    assert harness.theta == kept


def test_second_checkpoint_waits_for_the_first(tmp_path):
    disk = Disk()
    harness = harness_in(tmp_path, write=disk.write)
    harness.role.obey(m.Save(step=0, path="checkpoints/step_0"))
    harness.train(range(8))
    threading.Timer(0.05, disk.free.set).start()
    harness.role.obey(STEP_1)
    harness.role.settle()
    assert harness.sent == [m.Saved(step=step, path=f"checkpoints/step_{step}") for step in (0, 1)]


def test_checkpoint_that_cannot_be_written_is_reported_by_its_thread_and_the_trainer_continues(tmp_path, monkeypatch):
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.shards, "write", full)
    harness = harness_in(tmp_path)
    harness.role.obey(m.Save(step=0, path="checkpoints/step_0"))
    harness.train(range(8))
    harness.role.settle()
    (failed,) = harness.sent
    assert isinstance(failed, m.Failed)
    assert "step_0 cannot be written" in failed.problem
    assert "free some space" in failed.problem
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert harness.role.steps == 1


def test_steps_that_are_undone_and_taken_again_leave_the_same_average(tmp_path):
    """Its decay depends on the number of the step, which a restored trainer takes from the checkpoint."""
    harness = harness_in(tmp_path)
    harness.train(range(8))
    harness.role.obey(STEP_1)
    harness.role.settle()
    averages = []
    for _ in range(2):
        harness.train(range(8), step=1, iteration=1)
        harness.train(range(8), step=2, iteration=2)
        averages.append(digest(harness.role.state(Policy.AVERAGE)))
        harness.role.obey(m.Restore(step=1, path=STEP_1.path))
    assert averages[0] == averages[1]
    assert averages[0] != digest(harness.role.state(Policy.AVERAGE))

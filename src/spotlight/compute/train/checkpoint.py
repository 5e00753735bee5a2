"""The trainer's whole state on disk: theta, its copies, the optimizer and the count of its steps, as safetensors and an
index in JSON.

    taken = snapshot(trainer, base_digest)      # the trainer may continue at once
    write(taken, folder)                        # in any thread

In a gang every rank writes a part (`joint_writing.py`): its rows of sharded tensors, and some of the tensors that all
ranks hold, divided by bytes. A checkpoint of any number of ranks is restored by any other number, bit for bit
(tests/processes/test_gang_checkpoint.py).

Invariant: after `restore` the next updates give the same bits as without it. The written state is that of the snapshot,
whatever is trained meanwhile (tests/unit/test_checkpoint.py). A checkpoint under its final name is whole, because it is
written under a scratch name and renamed. Nothing is unpickled, so a foreign checkpoint cannot run code
(tests/unit/test_foreign_files.py).
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from spotlight.compute.parallel.gang_group import GangGroup
from spotlight.compute.train.boxes import box_of, own_boxes
from spotlight.compute.train.joint_writing import JointWriter
from spotlight.compute.train.trainer import Trainer
from spotlight.compute.train.weight_sets import WeightSet
from spotlight.compute.weights import shards
from spotlight.compute.weights.download import to_host
from spotlight.compute.weights.index import Index, IndexedTensor, read_index, recovery_hint, write_index
from spotlight.compute.weights.shards import Shard
from spotlight.core.errors import Stopped, WeightsError

ADAMW = "adamw"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""AdamW's state per parameter."""
OBJECTIVE = "objective"
UPDATES = "updates"
STALE_ONLY = (f"{WeightSet.BEFORE.value}.", f"{WeightSet.START.value}.", f"{OBJECTIVE}.")
"""Prefixes of the tensors that only a trainer of stale samples holds."""
Place: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets of a box and shape of the whole tensor."""
SPARE = 2 << 30
"""Bytes that a snapshot leaves free beside the peak use of the device, because free memory is fragmented."""


@dataclass(frozen=True)
class TrainerSnapshot:
    """A copy of a trainer's state; it is written once."""

    state: dict[str, Tensor]
    """Tensors that this rank writes, or its rows of them."""
    family: str
    base_digest: str
    """Digest of the weights that the run trains from."""
    copied: torch.cuda.Event | None = None
    """Completion of the copy on the device; None: the copy is in host memory."""
    places: Mapping[str, Place] = field(default_factory=dict)
    """Offsets and whole shapes of tensors that are some rows of another."""
    writer: JointWriter | None = None
    """This rank among the writers; None: it writes alone."""
    names: frozenset[str] = frozenset()
    """Tensors that all writers together write."""

    def shards(self, state: Mapping[str, Tensor]) -> dict[str, Shard]:
        """The boxes to write, from the state in host memory."""
        return {
            name: Shard(tensor, *self.places[name]) if name in self.places else Shard.whole(tensor)
            for name, tensor in state.items()
        }

    @contextmanager
    def on_host(self) -> Iterator[dict[str, Tensor]]:
        """Fetch the state in a separate stream, which waits for the copy but not for the trainer's queued kernels."""
        if self.copied is None:
            yield self.state
            return
        stream = torch.cuda.Stream(next(tensor.device for tensor in self.state.values() if tensor.is_cuda))
        with torch.cuda.stream(stream):
            stream.wait_event(self.copied)
            fetched = to_host({name: tensor for name, tensor in self.state.items() if tensor.is_cuda})
        on_host = {**self.state, **fetched}
        # Everything is on the host; free the device's memory.
        self.state.clear()
        yield on_host


def snapshot(trainer: Trainer, base_digest: str, number: int = 0) -> TrainerSnapshot:
    """Copy the state on the trainer's device if there is room, which is quickest, else into host memory.

    In a gang it copies what this rank writes; `number` counts the gang's checkpoints.
    """
    whole, device, gang = _state(trainer), trainer.adapter.device, trainer.gang
    boxes = own_boxes(whole, *((0, 1) if gang is None else (gang.rank, gang.ranks)))
    state = {name: box.data for name, box in boxes.items()}
    make = partial(
        TrainerSnapshot,
        family=trainer.adapter.family,
        base_digest=base_digest,
        places={name: (box.offsets, box.shape) for name, box in boxes.items() if box.data.shape != box.shape},
        writer=None if gang is None else JointWriter(gang.rank, gang.ranks, gang.name, number, lambda: gang.is_open),
        names=frozenset(whole),
    )
    if device.type != "cuda":
        return make(_copied(state))
    if _has_room(state, device):
        try:
            copy = _copied(state)
        except torch.OutOfMemoryError:
            pass
        else:
            copied = torch.cuda.Event()
            copied.record(torch.cuda.current_stream(device))
            return make(copy, copied=copied)
    return make({name: tensor.to("cpu", copy=True) for name, tensor in state.items()})


def _has_room(state: Mapping[str, Tensor], device: torch.device) -> bool:
    """Whether the state fits beside the peak use of this process, which training will reach again."""
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    needed = sum(tensor.nbytes for tensor in state.values())
    return free - torch.cuda.max_memory_allocated(device) >= needed + SPARE


def save(trainer: Trainer, folder: Path, base_digest: str) -> None:
    write(snapshot(trainer, base_digest), folder)


def write(taken: TrainerSnapshot, folder: Path) -> None:
    """Write durably, then rename to the final name; also removes what killed writers left.

    In a gang, rank 0 returns when the checkpoint has its final name, another rank when its part is written.
    """
    try:
        if taken.writer is None:
            _write_alone(taken, folder)
        else:
            _write_jointly(taken, folder, taken.writer)
    except OSError as error:
        raise Stopped(
            f"the checkpoint {folder} cannot be written ({error}), so the run stops at the previous "
            "one; free some space there, then resume."
        ) from error


def _write_alone(taken: TrainerSnapshot, folder: Path) -> None:
    # The name contains the process id: another process may be writing the same step.
    scratch = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    for left in folder.parent.glob("*.part"):
        shutil.rmtree(left, ignore_errors=True)
    try:
        scratch.mkdir(parents=True)
        with taken.on_host() as state:
            written = shards.write(scratch / shards.file_of(0), taken.shards(state))
        _complete(taken, scratch, folder, [written])
    except OSError:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _write_jointly(taken: TrainerSnapshot, folder: Path, writer: JointWriter) -> None:
    def write_tensors(path: Path) -> Mapping[str, IndexedTensor]:
        with taken.on_host() as state:
            return shards.write(path, taken.shards(state))

    writer.write_part(folder, write_tensors)
    if writer.rank > 0:
        return
    try:
        _complete(taken, writer.scratch(folder), folder, writer.parts(folder))
    except OSError:
        shutil.rmtree(writer.scratch(folder), ignore_errors=True)
        raise


def _complete(
    taken: TrainerSnapshot, scratch: Path, folder: Path, written: Sequence[Mapping[str, IndexedTensor]]
) -> None:
    """Write the index and rename the folder to its final name."""
    index = Index(family=taken.family, base_digest=taken.base_digest, tensors=shards.joined(written))
    if index.tensors.keys() != taken.names:
        raise OSError(f"{len(index.tensors)} tensors were written instead of {len(taken.names)}")
    write_index(scratch, index)
    _sync(scratch)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(scratch, folder)
    _sync_folder(folder.parent)


def restore(trainer: Trainer, folder: Path) -> None:
    """Load a checkpoint into a trainer of the same recipe; a parameter that never had a gradient has no moments.

    Tensors that only stale samples need are skipped if this trainer takes none.
    """
    index = read_index(folder)
    saved = set(index.tensors)
    try:
        for name, parameter in trainer.sets.theta.items():
            trainer.optimizer.state[parameter] = _fresh_moments(parameter) if f"{ADAMW}.step.{name}" in saved else {}
        state = _state(trainer)
        if any(name.startswith(STALE_ONLY) for name in state.keys() - saved):
            raise ValueError("it lacks the weights of the previous version, which this run needs for stale samples")
        if state.keys() != {name for name in saved if name in state or not name.startswith(STALE_ONLY)}:
            raise ValueError(f"it holds {len(saved)} tensors, this trainer {len(state)}, with different names")
        shards.load(folder, index, {name: box_of(tensor) for name, tensor in state.items()})
    except ValueError as error:
        raise WeightsError(
            f"the checkpoint {folder} cannot be read ({error}), so it is damaged or of another recipe; restore it, "
            f"or {recovery_hint(folder)}."
        ) from error


def moments_of(trainer: Trainer, gang: GangGroup, source: int) -> set[str]:
    """Parameters that have moments at rank `source`; raises Stopped if a rank holds other tensors."""
    moved = sorted(name for name, parameter in trainer.sets.theta.items() if trainer.optimizer.state.get(parameter))
    replies = gang.gather([moved, [*sorted(trainer.sets.theta), *trainer.sets.names, *trainer.objective_state]])
    if any(reply[1] != replies[0][1] for reply in replies):
        raise Stopped(
            f"the training ranks hold other tensors than rank {source}, so its state cannot be sent to them; start all "
            "ranks with the same recipe."
        )
    return set(replies[source][0])


def send_state(trainer: Trainer, gang: GangGroup, source: int, moments: set[str]) -> None:
    """Overwrite the state of all ranks of the gang with that of rank `source`, which has these moments."""
    if gang.rank != source:
        for name, parameter in trainer.sets.theta.items():
            trainer.optimizer.state[parameter] = _fresh_moments(parameter) if name in moments else {}
    state = _state(trainer)
    gang.broadcast([state[name] for name in sorted(state)], source)


def state_copy(trainer: Trainer) -> dict[str, Tensor]:
    """Copy the state of a checkpoint in memory, on the trainer's device."""
    return _copied(_state(trainer))


def load_copy(trainer: Trainer, copy: Mapping[str, Tensor]) -> None:
    """Restore the state that `state_copy` returned."""
    for name, parameter in trainer.sets.theta.items():
        trainer.optimizer.state[parameter] = _fresh_moments(parameter) if f"{ADAMW}.step.{name}" in copy else {}
    for name, tensor in _state(trainer).items():
        tensor.copy_(copy[name])


def _copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


def _fresh_moments(parameter: Tensor) -> dict[str, Tensor]:
    return {
        "step": torch.zeros((), dtype=torch.float32),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }


def _state(trainer: Trainer) -> dict[str, Tensor]:
    """Return a flat mapping that aliases the trainer's tensors: loading writes into them."""
    state: dict[str, Tensor] = {UPDATES: trainer.updates}
    for name, parameter in trainer.sets.theta.items():
        state[f"theta.{name}"] = parameter.data
        for which in trainer.sets.names:
            state[f"{which.value}.{name}"] = trainer.sets[which][name]
        moments = trainer.optimizer.state.get(parameter, {})
        for moment in MOMENTS:
            if moment in moments:
                state[f"{ADAMW}.{moment}.{name}"] = moments[moment]
    return state | {f"{OBJECTIVE}.{name}": tensor for name, tensor in trainer.objective_state.items()}


def _sync(folder: Path) -> None:
    for child in folder.iterdir():
        with child.open("rb") as file:
            os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

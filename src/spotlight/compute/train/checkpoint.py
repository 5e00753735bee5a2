"""The trainer's whole state on disk, through torch.distributed.checkpoint: theta, its copies, the optimizer, and the
count of its steps.

    taken = snapshot(trainer)          # the trainer may go on at once
    write(taken, folder)               # in any thread

Invariant: after `restore` the next steps give the same bits as they would have without it, and what is written is the
state of the moment of the snapshot, whatever is trained meanwhile (tests/unit/test_checkpoint.py); a checkpoint under
its final name is whole, because it is written aside and renamed.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state

from spotlight.compute.train.trainer import Trainer
from spotlight.compute.train.weight_sets import WeightSet
from spotlight.compute.weights.download import to_host
from spotlight.core.errors import Stopped, WeightsError

ADAMW = "adamw"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""What AdamW keeps per parameter."""
OBJECTIVE = "objective"
UPDATES = "updates"
STALE_ONLY = (f"{WeightSet.BEFORE.value}.", f"{WeightSet.START.value}.", f"{OBJECTIVE}.")
"""What a trainer holds only where it takes samples of the version before."""
SPARE = 2 << 30
"""Bytes of a device that a snapshot leaves beside the most that was ever in use there: what is free is in pieces."""


@dataclass(frozen=True)
class Snapshot:
    """A trainer's state of one moment, in memory of its own; it is written once."""

    state: dict[str, Tensor]
    copied: torch.cuda.Event | None = None
    """When the device, which holds it, is done with the copy; None: it is in the host's memory."""

    @contextmanager
    def on_host(self) -> Iterator[dict[str, Tensor]]:
        """Fetched in a stream of its own, which neither races the trainer's nor waits for what is queued there."""
        if self.copied is None:
            yield self.state
            return
        stream = torch.cuda.Stream(next(tensor.device for tensor in self.state.values() if tensor.is_cuda))
        with torch.cuda.stream(stream):
            stream.wait_event(self.copied)
            fetched = to_host({name: tensor for name, tensor in self.state.items() if tensor.is_cuda})
        on_host = {**self.state, **fetched}
        # All of it has arrived, and the device has better use for the room.
        self.state.clear()
        yield on_host


def snapshot(trainer: Trainer) -> Snapshot:
    """On the trainer's device where there is room, which takes no time to speak of, or else in the host's memory."""
    state, device = _state(trainer), trainer.adapter.device
    if device.type != "cuda":
        return Snapshot(_copied(state))
    if _has_room(state, device):
        try:
            copy = _copied(state)
        except torch.OutOfMemoryError:
            pass
        else:
            copied = torch.cuda.Event()
            copied.record(torch.cuda.current_stream(device))
            return Snapshot(copy, copied)
    return Snapshot({name: tensor.to("cpu", copy=True) for name, tensor in state.items()})


def _has_room(state: Mapping[str, Tensor], device: torch.device) -> bool:
    """Beside the most that this process ever used, which training will use again."""
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    needed = sum(tensor.nbytes for tensor in state.values())
    return free - torch.cuda.max_memory_allocated(device) >= needed + SPARE


def save(trainer: Trainer, folder: Path) -> None:
    write(snapshot(trainer), folder)


def write(taken: Snapshot, folder: Path) -> None:
    """Under its final name when it is whole and durable; what somebody left who died at it is swept."""
    # Of this process: what is renamed is what it wrote, whoever else is still at the same step.
    scratch = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    for left in folder.parent.glob("*.part"):
        shutil.rmtree(left, ignore_errors=True)
    try:
        scratch.parent.mkdir(parents=True, exist_ok=True)
        with taken.on_host() as state:
            save_state(state, checkpoint_id=scratch, no_dist=True)
        _sync(scratch)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(scratch, folder)
        _sync_folder(folder.parent)
    except (OSError, CheckpointException) as error:
        shutil.rmtree(scratch, ignore_errors=True)
        raise Stopped(
            f"the checkpoint {folder} cannot be written ({_last_line(error)}), so the run stops with the one "
            "before it; free some space there, then resume."
        ) from error


def restore(trainer: Trainer, folder: Path) -> None:
    """Into a trainer of the same recipe; a parameter that never had a gradient has no moments, there and here.

    What only samples of the version before need is left where this trainer takes none.
    """
    if not folder.is_dir():
        raise WeightsError(f"the checkpoint {folder} does not exist; resume from another one, or start the run anew.")
    try:
        saved = set(FileSystemReader(folder).read_metadata().state_dict_metadata)
        for name, parameter in trainer.sets.theta.items():
            trainer.optimizer.state[parameter] = _fresh_moments(parameter) if f"{ADAMW}.step.{name}" in saved else {}
        state = _state(trainer)
        if any(name.startswith(STALE_ONLY) for name in state.keys() - saved):
            raise ValueError("it lacks what samples of the version before are compared with, which this run trains on")
        if state.keys() != {name for name in saved if name in state or not name.startswith(STALE_ONLY)}:
            raise ValueError(f"it holds {len(saved)} tensors, this trainer {len(state)}, not all of the same names")
        load_state(state, checkpoint_id=folder, no_dist=True)
    except (Exception, CheckpointException) as error:
        raise WeightsError(
            f"the checkpoint {folder} cannot be read ({_last_line(error)}), so it is damaged or of another recipe; "
            "resume from another one."
        ) from error


def state_copy(trainer: Trainer) -> dict[str, Tensor]:
    """The same state in memory, on the trainer's device."""
    return _copied(_state(trainer))


def load_copy(trainer: Trainer, copy: Mapping[str, Tensor]) -> None:
    """Back to where `state_copy` was taken."""
    for name, parameter in trainer.sets.theta.items():
        trainer.optimizer.state[parameter] = _fresh_moments(parameter) if f"{ADAMW}.step.{name}" in copy else {}
    for name, tensor in _state(trainer).items():
        tensor.copy_(copy[name])


def _copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


def _last_line(error: BaseException) -> str:
    return str(error).strip().rpartition("\n")[2]


def _fresh_moments(parameter: Tensor) -> dict[str, Tensor]:
    return {
        "step": torch.zeros((), dtype=torch.float32),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }


def _state(trainer: Trainer) -> dict[str, Tensor]:
    """Flat, and aliasing the trainer's own tensors: loading writes into them."""
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

"""Effects of `TrainingCore`: what takes time in an order to train, publish, save, restore or form a gang.

JoinGang         connect to the other ranks; a gang of one has none         -> None
ReadPart         read the tensors of a part                                 -> what AddPart takes
AddPart          add the gradient of a part                                 -> None
SendMessage      send a message before the order ends                       -> None
TakeStep         sum the gradients of all ranks, take an optimizer step     -> StepTaken
WriteWeights     gather a set from all ranks; the leading one writes it     -> WeightsWritten, of the leading rank
Settle           wait until the checkpoint under way is reported            -> None
StartCheckpoint  copy the state, and write it while other orders are obeyed -> None
LoadState        load a checkpoint; without a path it is the base model     -> None
CompareStates    compare the tensors of all ranks before a transfer         -> what ReceiveState takes
ReceiveState     overwrite the state with that of another rank              -> None
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from spotlight.core import messages as m
from spotlight.core.errors import describe, exit_code_of
from spotlight.core.work import WeightsId

Order: TypeAlias = m.FormGang | m.Train | m.Publish | m.Save | m.Restore


class CheckpointAbandoned(Exception):
    """The gang broke before all ranks had written their parts; its next checkpoint follows."""


@dataclass(frozen=True, slots=True)
class JoinGang:
    order: m.FormGang


@dataclass(frozen=True, slots=True)
class ReadPart:
    order: m.Train


@dataclass(frozen=True, slots=True)
class AddPart:
    order: m.Train
    read: Any
    begins: int | None
    """Samples announced for the step that this part begins; None: it continues one."""


@dataclass(frozen=True, slots=True)
class SendMessage:
    message: m.AnyMessage


@dataclass(frozen=True, slots=True)
class TakeStep:
    order: m.Train


@dataclass(frozen=True, slots=True)
class WriteWeights:
    order: m.Publish
    leads: bool

    @property
    def weights(self) -> WeightsId:
        return self.order.weights[0]


@dataclass(frozen=True, slots=True)
class Settle:
    pass


@dataclass(frozen=True, slots=True)
class StartCheckpoint:
    order: m.Save
    number: int
    """Checkpoints that the gang began before."""
    leads: bool

    def outcome(self, error: Exception | None) -> m.Saved | m.Failed | None:
        """What to send when the write has ended; None: another rank reports it, or the gang that follows orders one."""
        if isinstance(error, CheckpointAbandoned):
            return None
        if error is not None:
            return m.Failed(problem=describe(error), exit_code=exit_code_of(error))
        return m.Saved(step=self.order.step, path=self.order.path) if self.leads else None


@dataclass(frozen=True, slots=True)
class LoadState:
    path: str


@dataclass(frozen=True, slots=True)
class CompareStates:
    source: int


@dataclass(frozen=True, slots=True)
class ReceiveState:
    source: int
    compared: Any


@dataclass(frozen=True, slots=True)
class StepTaken:
    digest: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class WeightsWritten:
    digest: str
    size: int


Effect: TypeAlias = (
    JoinGang
    | ReadPart
    | AddPart
    | SendMessage
    | TakeStep
    | WriteWeights
    | Settle
    | StartCheckpoint
    | LoadState
    | CompareStates
    | ReceiveState
)
Obedience: TypeAlias = Generator[Effect, Any, m.AnyMessage | None]


def drive(order: Obedience, perform: Callable[[Effect], Any]) -> m.AnyMessage | None:
    """Carry out an order whose effects are plain calls; returns its reply."""
    try:
        effect = next(order)
        while True:
            try:
                completion = perform(effect)
            except Exception as error:
                effect = order.throw(error)
            else:
                effect = order.send(completion)
    except StopIteration as ended:
        reply: m.AnyMessage | None = ended.value
        return reply

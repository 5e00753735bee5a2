"""Training roles behind one interface: the product's over a tiny trainer, and the simulator's.

Both return what their worker sends: replies, refusals and the loss of a rank.
"""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import pytest
from test_training_role import RoleHarness, harness_in

from spotlight.compute.profiling.pace import Pace
from spotlight.compute.train import checkpoint
from spotlight.compute.train.training_core import failure_reply
from spotlight.compute.train.training_effects import Order
from spotlight.core import messages as m
from spotlight.core.errors import RankLost
from spotlight.core.types import Prompt, Sample, Sampling, Size, Version
from spotlight.core.work import Request, Work
from spotlight.sim.background_writes import BackgroundWrites
from spotlight.sim.crash_points import CrashPoint
from spotlight.sim.numerics import HashNumerics
from spotlight.sim.sim_gang import SimGangs
from spotlight.sim.sim_trainer import SimTrainer, obey
from spotlight.sim.storage import SimStorage
from spotlight.sim.virtual_loop import run_virtually

PROMPT = Prompt(text="a harbour")


class Ranks(Protocol):
    """Some processes with a training role."""

    def together(self, orders: Mapping[int, Order]) -> dict[int, list[m.AnyMessage]]:
        """Carry out one order per process at the same time; returns the messages of each, checkpoints included."""

    def items(self, numbers: Sequence[int], iteration: int, lag: int) -> tuple[m.TrainItem, ...]:
        """Samples of these numbers, drawn `lag` versions before the iteration."""

    def lose(self, item: m.TrainItem) -> None:
        """Delete the tensors of a sample."""

    def announce(self, process: int, epoch: int) -> None:
        """An order to form this gang has arrived and waits behind the current one."""

    def lose_in_transfer(self, process: int) -> None:
        """Break the gang at this process when it sends or receives a state."""


class RealRanks:
    """Roles of this process, which form gangs over gloo between threads."""

    def __init__(self, count: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._harnesses: list[RoleHarness] = [harness_in(folder, keeps_before=True) for _ in range(count)]
        self._patch = patch
        self._threads = ThreadPoolExecutor(count)

    def together(self, orders: Mapping[int, Order]) -> dict[int, list[m.AnyMessage]]:
        ends = {process: self._threads.submit(self._obeyed, process, order) for process, order in orders.items()}
        return {process: end.result() for process, end in ends.items()}

    def _obeyed(self, process: int, order: Order) -> list[m.AnyMessage]:
        harness = self._harnesses[process]
        role = harness.role
        reply: m.AnyMessage | None
        try:
            reply = role.form(order) if isinstance(order, m.FormGang) else role.obey(order)
        except Exception as error:
            reply = failure_reply(error, getattr(order, "epoch", 0))
        role.settle()
        sent = [*harness.sent, *([] if reply is None else [reply])]
        harness.sent.clear()
        return sent

    def items(self, numbers: Sequence[int], iteration: int, lag: int) -> tuple[m.TrainItem, ...]:
        return self._harnesses[0].items(numbers, iteration, lag)

    def lose(self, item: m.TrainItem) -> None:
        (self._harnesses[0].folder / item.payload).unlink()

    def announce(self, process: int, epoch: int) -> None:
        self._harnesses[process].role.abort(epoch)

    def lose_in_transfer(self, process: int) -> None:
        doomed, send_state = self._harnesses[process].trainer, checkpoint.send_state

        def lost(trainer, gang, source, moments):
            if trainer is doomed:
                gang.drop()
                raise RankLost("the connections are closed")
            send_state(trainer, gang, source, moments)

        self._patch.setattr(checkpoint, "send_state", lost)


class SimRanks:
    """Simulated workers' roles."""

    def __init__(self, count: int, patch: pytest.MonkeyPatch) -> None:
        self._storage, self._patch = SimStorage(), patch
        gangs = SimGangs()
        self._trainers = [SimTrainer(self._storage, "", HashNumerics(), gangs, True) for _ in range(count)]

    def together(self, orders: Mapping[int, Order]) -> dict[int, list[m.AnyMessage]]:
        return run_virtually(self._all(orders))

    async def _all(self, orders: Mapping[int, Order]) -> dict[int, list[m.AnyMessage]]:
        sent = await asyncio.gather(*(self._obeyed(process, order) for process, order in orders.items()))
        return dict(zip(orders, sent, strict=True))

    async def _obeyed(self, process: int, order: Order) -> list[m.AnyMessage]:
        trainee = SimTrainee()
        reply = await obey(order, self._trainers[process], Pace(1.0, 1.0, 1.0, 1.0, 1.0), trainee)
        trainee.sent += [] if reply is None else [reply]
        await trainee.background.wait()
        return trainee.sent

    def items(self, numbers: Sequence[int], iteration: int, lag: int) -> tuple[m.TrainItem, ...]:
        return tuple(self._item(number, iteration, lag) for number in numbers)

    def _item(self, number: int, iteration: int, lag: int) -> m.TrainItem:
        sampling, version = Sampling(steps=4, size=Size(32, 96)), Version(iteration - lag)
        sample = Sample(prompt=PROMPT.id, seed=number, sampling=sampling, version=version)
        request = Request(work=Work.ROLLOUT, iteration=iteration, group=number // 2, sample=sample)
        name = f"{iteration}-{number}-{lag}"
        self._storage.files[name] = name.encode()
        return m.TrainItem(request=request, prompt=PROMPT, payload=name, advantage=float(number), kept=True)

    def lose(self, item: m.TrainItem) -> None:
        self._storage.lose(item.payload)

    def announce(self, process: int, epoch: int) -> None:
        self._trainers[process].abort(epoch)

    def lose_in_transfer(self, process: int) -> None:
        trainer = self._trainers[process]

        async def lost(source: int) -> None:
            trainer.break_gang()
            raise RankLost("the connections are closed")

        self._patch.setattr(trainer, "receive", lost)


class SimTrainee:
    """A worker that never crashes."""

    def __init__(self) -> None:
        self.sent: list[m.AnyMessage] = []
        self.send = self.sent.append
        self.background = BackgroundWrites()

    async def take_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def crash_if_due(self, point: CrashPoint) -> None:
        pass

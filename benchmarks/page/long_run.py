"""A made-up run of any length and size, as a run folder."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

from spotlight.config import load_config
from spotlight.core.events import (
    SCHEMA,
    AnyEvent,
    Evaluated,
    IterationDone,
    NodeJoined,
    NodeLost,
    RunStarted,
    Worked,
    WorkerJoined,
    WorkerLost,
)
from spotlight.core.journal import Journal, JournalConfig, Sync
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import Activity, SlotClass
from spotlight.folder import RunFolder

ITERATION_S = 40.0
ROLLOUT, TRAIN = 0.45, 0.95
"""Shares of an iteration after which rollouts and training end."""
LOSS_EVERY_S, AWAY_S = 600.0, 90.0
EVALUATE_EVERY = 10
ZONES = ("zone-a", "zone-b", "zone-c")
PRICE = "aws-p5-h100"


def write_long_run(path: Path, slots: int, hours: float, seed: int) -> int:
    """Write the folder; returns the number of its records."""
    path.mkdir(parents=True)
    folder = RunFolder(path)
    folder.write_config(
        load_config("words-nft", [f"iterations={int(hours * 3600 / ITERATION_S)}"]).model_dump(mode="json")
    )
    now = 0.0
    written = 0
    with Journal.create(folder.journal, lambda: now, JournalConfig(sync=Sync.NEVER)) as journal:
        for at, event in sorted(_events(slots, hours * 3600, Random(seed)), key=lambda pair: pair[0]):
            now = at
            journal.append(event)
            written += 1
    return written


def _events(slots: int, until: float, draw: Random) -> Iterator[tuple[float, AnyEvent]]:
    yield (
        0.0,
        RunStarted(
            schema=SCHEMA,
            run_seed=0,
            recipe="words-nft",
            config_digest="made up",
            code="made up",
            base_digest="",
            wall=1.7e9,
        ),
    )
    reserved = max(1, slots // 8)
    for number in range(slots):
        slot_class = SlotClass.RESERVED if number < reserved else SlotClass.SPOT
        lost = _losses(until, slots - reserved, draw) if slot_class is SlotClass.SPOT else []
        yield from _slot(number, slot_class, until, lost, draw)
    for iteration in range(int(until / ITERATION_S)):
        end = (iteration + 1) * ITERATION_S
        yield end, IterationDone(iteration=iteration, rollout_s=18.0, train_s=20.0, reward=draw.random())
        if iteration % EVALUATE_EVERY == 0:
            value = 1 - 0.6 * 0.995**iteration
            yield end, Evaluated(iteration=iteration, scores={"reward": (value, value - 0.03, value + 0.03)})


def _losses(until: float, spot: int, draw: Random) -> list[float]:
    """Times at which one spot slot is lost: over all of them, one every `LOSS_EVERY_S`."""
    times, at = [], 0.0
    while (at := at + draw.expovariate(1 / (LOSS_EVERY_S * spot))) < until:
        times.append(at)
    return times


def _slot(
    number: int, slot_class: SlotClass, until: float, lost: list[float], draw: Random
) -> Iterator[tuple[float, AnyEvent]]:
    begin, zone = 0.0, ZONES[number % len(ZONES)]
    for life, end in enumerate([*lost, until], start=1):
        node = NodeId(f"{slot_class.value}-{number}.{life}")
        worker = WorkerId(f"{node}/0.1")
        yield begin, NodeJoined(node=node, slot_class=slot_class, slots=1, zone=zone, price=PRICE)
        yield begin, WorkerJoined(worker=worker, node=node, slot_class=slot_class, rows=8)
        yield from _work(worker, slot_class, begin, end, draw)
        if end < until:
            yield end, WorkerLost(worker=worker, cause="killed")
            yield end, NodeLost(node=node, cause="killed")
        begin = min(until, end + AWAY_S)


def _work(
    worker: WorkerId, slot_class: SlotClass, begin: float, end: float, draw: Random
) -> Iterator[tuple[float, AnyEvent]]:
    during = Activity.TRAIN if slot_class is SlotClass.RESERVED else Activity.PREVIEW
    for iteration in range(int(begin / ITERATION_S), int(end / ITERATION_S) + 1):
        start = iteration * ITERATION_S
        jitter = 0.02 * draw.random()
        for activity, first, last in (
            (Activity.LOAD, 0.0, 0.02),
            (Activity.ROLLOUT, 0.02, ROLLOUT - jitter),
            (during, ROLLOUT, TRAIN - jitter),
        ):
            left, right = max(begin, start + first * ITERATION_S), min(end, start + last * ITERATION_S)
            if right > left:
                yield right, Worked(worker=worker, activity=activity, start=left, end=right, iteration=iteration)

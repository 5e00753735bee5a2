"""The slots of a node: each runs one worker at a time, and starts the next incarnation when one is gone.

    BOOTING --boot_s--> STARTING --born--> ALIVE --ended--> ENDED --verdicts, gone--> PAUSED --pause--> STARTING
       `--drain--> EMPTY                                      `--draining, gone--> EMPTY <--drain--'

The pause doubles per failed start, so that a worker that cannot start does not use up the node's CPU. A worker that is
silent for too long is killed, so a hang becomes a death. Part of `AgentCore`, whose docstring has the invariants.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from math import inf
from typing import TypeAlias

from spotlight.core.clock import Timer, Timers
from spotlight.core.messages import AnyMessage, Drain
from spotlight.core.types import WorkerId
from spotlight.node.agent_effects import AgentEffects, NoEffects
from spotlight.node.judge import VERDICTS_S
from spotlight.node.node_settings import NodeSettings

log = logging.getLogger("spotlight.agent")
log.addHandler(logging.NullHandler())

SECOND_CHANCE = 0.1
"""Extra wait before a silent worker is killed, as a share of the allowed silence: if the agent itself had stalled,
messages of the worker are read meanwhile."""
STABLE_S = 20.0
"""A worker that ran this long did not fail to start."""

Send: TypeAlias = Callable[[AnyMessage, bytes], None]


class SlotState(StrEnum):
    BOOTING = "booting"
    STARTING = "starting"
    ALIVE = "alive"
    ENDED = "ended"
    PAUSED = "paused"
    EMPTY = "empty"


@dataclass(eq=False, slots=True)
class LiveWorker:
    """A worker that can receive messages."""

    id: WorkerId
    send: Send
    seen_at: float
    """Time of its last message."""
    has_started: bool = False
    """Whether it has sent its Hello."""
    doubted_until: float | None = None
    """End of its second chance, if it has been silent for too long."""
    kill_cause: str = ""


@dataclass(eq=False, slots=True)
class _Slot:
    number: int
    pause_s: float
    state: SlotState = SlotState.BOOTING
    lives: int = 0
    worker: WorkerId | None = None
    """Its newest worker."""
    live: LiveWorker | None = None
    cause: str = ""
    """Why its worker ended."""
    started_at: float = 0.0
    timer: Timer | None = None
    """Ends ENDED or PAUSED."""

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class WorkerSlots:
    """All slots of a node."""

    def __init__(
        self, settings: NodeSettings, effects: AgentEffects, timers: Timers, gone: Callable[[WorkerId, str], None]
    ) -> None:
        """`gone` is called once per worker, with the cause, before its successor starts."""
        self._settings = settings
        self._effects = effects
        self._timers = timers
        self._gone = gone
        self.live: dict[WorkerId, LiveWorker] = {}
        self.is_draining = False
        self.watches = settings.silence_s < inf
        """Whether silent workers are killed."""
        self._slots = [_Slot(number, settings.first_pause_s) for number in range(settings.spec.slots)]
        self._timer: Timer | None = None
        """Ends the boot, later the drain."""
        self._watch_timer: Timer | None = None

    def begin(self) -> None:
        """Start the workers when the machine has booted."""
        boot_s = self._settings.spec.boot_s
        if self.is_draining:
            return
        if boot_s:
            self._timer = self._timers.call_at(self._timers.time() + boot_s, self._booted)
        else:
            self._booted()

    def leave(self) -> None:
        """Do nothing more, and drop the references to the node, which is gone."""
        self._effects, self._gone, self.is_draining = NoEffects(), _ignore, True
        for timer in (self._timer, self._watch_timer):
            if timer is not None:
                timer.cancel()
        for slot in self._slots:
            slot.cancel_timer()
            slot.live = None
        self.live.clear()

    def in_order(self) -> list[LiveWorker]:
        """Live workers by slot."""
        return [slot.live for slot in self._slots if slot.live is not None]

    @property
    def have_started(self) -> bool:
        """Whether no worker is on its way to its Hello."""
        is_any_starting = any(slot.state is SlotState.STARTING for slot in self._slots)
        return not is_any_starting and all(worker.has_started for worker in self.live.values())

    def born(self, worker: WorkerId, send: Send) -> None:
        slot, now = self._slot_of(worker), self._timers.time()
        slot.state = SlotState.ALIVE
        slot.live = self.live[worker] = LiveWorker(worker, send, now)
        if self.is_draining:
            send(Drain(), b"")
        if self.watches and self._watch_timer is None:
            self._watch()

    def kill(self, worker: WorkerId, cause: str) -> None:
        """Kill a live worker; its reported cause of death is this."""
        live = self.live.get(worker)
        if live is not None:
            live.kill_cause = live.kill_cause or cause
            self._effects.kill_worker(worker)

    def ended(self, worker: WorkerId, cause: str, was_killed: bool, is_awaited: bool) -> str:
        """The process is gone; `gone` follows at once, or for `is_awaited` after what is pending. Return the cause.

        `was_killed`: not by its own fault, so that it did not fail to start.
        """
        slot, live, now = self._slot_of(worker), self.live.pop(worker), self._timers.time()
        slot.live, slot.state, slot.cause = None, SlotState.ENDED, live.kill_cause or cause
        has_worked = (was_killed and live.has_started) or now - slot.started_at > STABLE_S
        first_s = self._settings.first_pause_s
        longer_s = min(2 * slot.pause_s, self._settings.longest_pause_s)
        slot.pause_s = first_s if has_worked else max(first_s, longer_s)
        slot.timer = self._timers.call_at(now + VERDICTS_S, partial(self._is_gone, slot)) if is_awaited else None
        return slot.cause

    def nothing_is_pending(self, worker: WorkerId) -> None:
        """Report the end of a worker that has ended, and start its successor after a pause."""
        slot = self._slot_of(worker)
        if slot.worker == worker and slot.state is SlotState.ENDED:
            self._is_gone(slot)

    def drain(self) -> None:
        """Make the workers hand back their samples and exit; start no others; then end the node."""
        if self.is_draining:
            return
        self.is_draining = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timers.call_at(self._timers.time() + self._settings.drain_s, self._drain_is_over)
        for slot in self._slots:
            if slot.state in (SlotState.BOOTING, SlotState.PAUSED):
                slot.cancel_timer()
                slot.state = SlotState.EMPTY
        for live in self.in_order():
            live.send(Drain(), b"")
        self._end_if_empty()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _slot_of(self, worker: WorkerId) -> _Slot:
        return self._slots[int(worker.rpartition("/")[2].partition(".")[0])]

    def _booted(self) -> None:
        for slot in self._slots:
            self._start(slot)

    def _start(self, slot: _Slot) -> None:
        slot.timer = None
        slot.state, slot.started_at = SlotState.STARTING, self._timers.time()
        slot.lives += 1
        worker = slot.worker = WorkerId(f"{self._settings.node}/{slot.number}.{slot.lives}")
        self._effects.start_worker(slot.number, worker)

    def _is_gone(self, slot: _Slot) -> None:
        assert slot.worker is not None
        slot.cancel_timer()
        slot.state = SlotState.EMPTY if self.is_draining else SlotState.PAUSED
        log.info("worker %s is gone: %s", slot.worker, slot.cause)
        self._gone(slot.worker, slot.cause)
        if slot.state is SlotState.PAUSED:
            slot.timer = self._timers.call_at(self._timers.time() + slot.pause_s, partial(self._start, slot))
        self._end_if_empty()

    def _drain_is_over(self) -> None:
        late = self.in_order()
        log.warning(
            "%d workers did not exit within %g s of the drain and are killed", len(late), self._settings.drain_s
        )
        for slot in self._slots:
            if slot.state is SlotState.STARTING:
                slot.state = SlotState.EMPTY
        for live in late:
            self._effects.kill_worker(live.id)
        self._end_if_empty()

    def _end_if_empty(self) -> None:
        if self.is_draining and all(slot.state is SlotState.EMPTY for slot in self._slots):
            if self._timer is not None:
                self._timer.cancel()
            self._effects.end("")

    def _watch(self) -> None:
        """Kill workers that have been silent for too long; look again when the next one may be."""
        now, settings = self._timers.time(), self._settings
        # A Hello shortens the allowed silence, so look again before the time to start is over.
        due = now + min(settings.silence_s, settings.start_s)
        for live in self.in_order():
            allowed_s = settings.silence_s if live.has_started else settings.start_s
            if now < live.seen_at + allowed_s:
                due = min(due, live.seen_at + allowed_s)
            elif live.doubted_until is None or self._effects.is_relaying(live.id):
                live.doubted_until = now + allowed_s * SECOND_CHANCE
                due = min(due, live.doubted_until)
            elif now < live.doubted_until:
                due = min(due, live.doubted_until)
            elif not live.kill_cause:
                self.kill(live.id, f"silent for {allowed_s:g} s")
        self._watch_timer = self._timers.call_at(due, self._watch)


def _ignore(worker: WorkerId, cause: str) -> None:
    pass

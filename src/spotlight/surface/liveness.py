"""The state of a run, from its journal and its controller's file.

STARTING --work is issued--> RUNNING --stop requested-> DRAINING --> STOPPED   (resumable)
    `------------+--------------'---------- an error ---'--> FAILED  (the reason says whether to resume)
                 |--killed, or the power went--> DEAD                (resumable)
                 `--all iterations done--> FINISHED
"""

import time
from enum import StrEnum
from pathlib import Path

import msgspec

from spotlight.core.node_spec import NodeStanding
from spotlight.core.run_files import word_of
from spotlight.presence import Beat, read_beat
from spotlight.surface.formats import without_controls
from spotlight.surface.projections import RunView


class State(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"
    DEAD = "dead"
    FINISHED = "finished"


class RunStanding(msgspec.Struct, frozen=True, kw_only=True):
    """The present state of a run."""

    state: State
    reason: str | None
    """Why it stopped, failed or died; None while it lives and once it is finished."""
    pid: int | None
    pid_alive: bool
    last_progress_s: float | None
    """Seconds since the last result, step, publication or evaluation; of a live run since the last denoising step."""
    waiting_for: str | None
    """What a live run waits for."""
    machines: tuple[NodeStanding, ...] = ()
    """Nodes of a live run."""


def standing_of(view: RunView, folder: Path | None = None) -> RunStanding:
    """The state of a run; without a folder there is no controller, as in a simulation."""
    beat = read_beat(folder) if folder is not None else None
    alive = beat is not None and beat.is_alive
    state = _state(view, beat if alive else None)
    return RunStanding(
        state=state,
        reason=_reason(view, state, beat, without_controls(word_of(folder)) if folder is not None else "RUN"),
        pid=beat.pid if beat is not None else None,
        pid_alive=alive,
        last_progress_s=_last_progress_s(view, beat if alive else None),
        waiting_for=(beat.waiting_for or None) if alive and beat is not None else None,
        machines=beat.nodes if alive and beat is not None else (),
    )


def _state(view: RunView, live: Beat | None) -> State:
    facts = view.facts
    # A controller that releases its machines is still alive, but the journal has already recorded the end.
    if facts.stopped is not None:
        return State.FINISHED if facts.finished else State.FAILED if facts.failed else State.STOPPED
    if live is None:
        return State.DEAD
    if live.is_draining:
        return State.DRAINING
    return State.RUNNING if facts.is_issued else State.STARTING


def _reason(view: RunView, state: State, beat: Beat | None, word: str) -> str | None:
    if state is State.DEAD:
        which = f"process {beat.pid} on {beat.host}" if beat is not None else "process"
        return (
            f"its controller ({which}) ended without a record, as after SIGKILL or a power cut; "
            f"`spotlight resume {word}` continues it."
        )
    return view.facts.stopped if state in (State.STOPPED, State.FAILED) else None


def _last_progress_s(view: RunView, live: Beat | None) -> float | None:
    offset = view.facts.wall_offset
    since = max(0.0, time.time() - (offset + view.facts.progress_at)) if offset is not None else None
    if live is None:
        return since
    quiet_s = max(0.0, time.time() - live.wall) + live.quiet_s
    return quiet_s if since is None else min(since, quiet_s)

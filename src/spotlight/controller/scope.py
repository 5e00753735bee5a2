"""What a node on another machine may send: messages of its own workers, of the kinds and values that exist.

A node that holds the run's token computes samples and nothing else. A message outside of this scope is dropped before
any decision sees it (tests/unit/test_join_scope.py, tests/property/test_join_fuzz.py).
"""

import math

from spotlight.core import crew_messages as crews
from spotlight.core import messages as m
from spotlight.core.blobs import BlobKind, BlobRef
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import file_of

OF_WORKERS = (m.Hello, m.Pull, m.Commit, m.HandBack, m.Result, m.Alive, m.Held, m.Failed, m.Noted)
OF_NODES = (m.Gone, m.Warned, m.Noted, m.RewardAwaited, m.StoreFailed, m.Failed, crews.Crewed)
MOST_ROWS = 1 << 16
MOST_STEPS = 1 << 16
MOST_BYTES = 1 << 40
TEXT_LIMIT = 1 << 16
"""Characters of a description that goes into the journal."""
NAME_LIMIT = 512
"""Characters of a digest, a path or the id of a request."""
LEAST_SPEED, MOST_SPEED = 1e-6, 1e9
"""Row-steps per second of a worker; sums of higher ones would overflow."""
MOST_REWARD = 1e30
"""Highest amount of a finite reward, for the same reason."""
LONGEST_S = 1e7
"""Longest duration in seconds that a message may name."""


def belongs(node: NodeId, worker: WorkerId | None) -> bool:
    """Whether the worker is one of this node."""
    return worker is None or worker.startswith(f"{node}/")


def outside(node: NodeId, spec: NodeSpec, envelope: m.Envelope) -> str:
    """Reason why this node may not send the message; empty if it may."""
    worker, message = envelope.worker, envelope.message
    kind = type(message).__name__
    if worker is not None and not _is_of(node, spec, worker):
        return f"a {kind} in the name of a worker that is not of this node"
    if not isinstance(message, OF_NODES if worker is None else OF_WORKERS):
        return f"a {kind}, which nodes on other machines do not send"
    return "" if _is_sound(node, spec, message) else f"a {kind} with values that cannot be"


def _is_of(node: NodeId, spec: NodeSpec, worker: WorkerId) -> bool:
    """Whether the worker can be on a slot of this node."""
    slot, _, number = worker.removeprefix(f"{node}/").partition(".")
    is_numbered = slot.isdecimal() and number.isdecimal() and len(slot) + len(number) <= 16
    return belongs(node, worker) and is_numbered and int(slot) < spec.slots


def _is_sound(node: NodeId, spec: NodeSpec, message: m.AnyMessage) -> bool:
    match message:
        case m.Hello():
            is_of_node = (message.node, message.slot_class) == (node, spec.slot_class)
            is_short = _is_named(message.kernels) and _is_named(message.kind)
            return is_of_node and not message.trains and 0 < message.rows <= MOST_ROWS and is_short
        case m.Pull(free_rows=rows, row_steps_per_s=speed):
            return 0 <= rows <= MOST_ROWS and (speed is None or LEAST_SPEED <= speed <= MOST_SPEED)
        case m.Alive():
            return _is_alive_sound(message)
        case m.Commit(request=request, step=step, since=since, flight=flight):
            is_named = _is_named(request) and _is_own(node, flight, BlobKind.FLIGHT)
            return is_named and 0 <= since <= step <= MOST_STEPS
        case m.HandBack(request=request, step=step, flight=flight):
            return _is_named(request) and 0 <= step <= MOST_STEPS and _is_own(node, flight, BlobKind.FLIGHT)
        case m.Result():
            return _is_result_sound(node, message)
        case m.Gone(worker=worker, cause=cause):
            return _is_of(node, spec, worker) and _is_short(cause)
        case m.Warned(seconds=seconds):
            return seconds is None or _is_duration(seconds)
        case m.Failed(problem=text, request=request):
            return _is_short(text) and _is_named(request or "")
        case m.Noted(problem=text) | m.StoreFailed(problem=text):
            return _is_short(text)
        case m.RewardAwaited(reward=reward, pictures=pictures, problem=text):
            return 0 <= pictures <= MOST_ROWS and _is_named(reward) and _is_short(text)
        case crews.Crewed(crews=formed, reason=text, seconds=seconds):
            are_own = all(_is_of(node, spec, each) for crew in formed for each in crew)
            return are_own and len(formed) <= spec.slots and _is_short(text) and _is_duration(seconds)
        case m.Held(digest=digest):
            return _is_named(digest)
        case _:
            return False


def _is_alive_sound(alive: m.Alive) -> bool:
    spans = all(_is_duration(span.start) and _is_duration(span.end) for span in alive.spans)
    steps = all(0 <= each.step <= MOST_STEPS and _is_named(each.request) for each in alive.progress)
    counts = len(alive.spans) <= MOST_ROWS and len(alive.progress) <= MOST_ROWS
    return spans and steps and counts and (alive.gain is None or math.isfinite(alive.gain))


def _is_result_sound(node: NodeId, result: m.Result) -> bool:
    score = result.score or m.Score(reward=math.nan)
    names = (result.request, result.digest, score.scorer, *score.components)
    if not 0 <= result.steps <= MOST_STEPS or not all(map(_is_named, names)) or not _is_short(result.problem):
        return False
    # Rewards that are not finite have their own way: the sample is scored again.
    if any(MOST_REWARD < abs(value) < math.inf for value in (score.reward, *score.components.values())):
        return False
    return _is_own(node, result.payload, BlobKind.PAYLOAD, BlobKind.PICTURE) and _is_of_sample(result)


def _is_of_sample(result: m.Result) -> bool:
    """Whether the result refers to the file of its own attempt, not to another's."""
    if result.payload is None:
        return True
    try:
        name = file_of(result.request, result.attempt)
    except (KeyError, ValueError):
        return False
    return result.payload.path.partition("/")[2].rpartition(".")[0] == name


def _is_own(node: NodeId, ref: BlobRef | None, *kinds: BlobKind) -> bool:
    """Whether a reference leads to a file of the run's folder of this kind; flights lie in files of their node."""
    if ref is None:
        return True
    folder, _, name = ref.path.partition("/")
    parts = name.split("/")
    is_inside = folder == ref.kind.value and all(part not in ("", ".", "..") for part in parts)
    has_name = is_inside and ref.path.isprintable() and _is_named(ref.path) and _is_named(ref.digest)
    has_place = all(0 <= value <= MOST_BYTES for value in (ref.size, ref.offset, ref.number))
    is_of_node = ref.kind is not BlobKind.FLIGHT or name.startswith(f"{node}-")
    return ref.kind in kinds and has_name and has_place and is_of_node


def _is_named(name: str) -> bool:
    return len(name) <= NAME_LIMIT


def _is_short(text: str) -> bool:
    return len(text) <= TEXT_LIMIT


def _is_duration(seconds: float) -> bool:
    return math.isfinite(seconds) and 0 <= seconds <= LONGEST_S

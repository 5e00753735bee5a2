"""The events of a simulated run: one readable line each, and one hash of all lines."""

import hashlib
from dataclasses import dataclass, field

from spotlight.core import messages as m

SHOWN = 40
"""Events that a failure prints."""


@dataclass
class MessageTrace:
    """Grows with the run; tens of thousands of short lines at most."""

    lines: list[str] = field(default_factory=list)
    is_kept: bool = True
    """Off in long simulations: formatting a line costs more than most events."""

    def add(self, now: float, what: str) -> None:
        if self.is_kept:
            self.lines.append(f"{len(self.lines):6d} {now:9.3f}  {what}")

    def last(self) -> str:
        return "\n".join(self.lines[-SHOWN:])

    def digest(self) -> str:
        hasher = hashlib.blake2b(digest_size=16)
        for line in self.lines:
            hasher.update(line.encode())
        return hasher.hexdigest()


def line_of(message: m.AnyMessage) -> str:
    """One line that describes a message."""
    name = type(message).__name__
    match message:
        case m.Grant():
            return f"Grant {', '.join(f'{one.request.id}#{one.attempt}@{one.step}' for one in message.leases)}"
        case m.Commit() | m.HandBack():
            return f"{name} {message.request}#{message.attempt}@{message.step}"
        case m.Result() | m.Fenced():
            return f"{name} {message.request}#{message.attempt}"
        case m.Failed():
            return f"Failed {message.request}#{message.attempt}: {message.problem}"
        case m.Recall():
            return f"Recall {', '.join(message.requests)}"
        case m.Held() | m.Load() | m.PublishedWeights():
            return f"{name} {message.weights} = {message.digest}"
        case m.Train() | m.Stepped() | m.Save() | m.Saved() | m.Restore():
            return f"{name} step {message.step}"
        case m.Warned():
            left = "no time" if message.seconds is None else f"{message.seconds:.1f} s"
            return f"Warned {message.kind.value} {'withdrawn' if message.withdrawn else left}"
        case m.Gone():
            return f"Gone {message.worker}: {message.cause}"
        case m.Pull():
            return f"Pull {message.free_rows}"
        case _:
            return name

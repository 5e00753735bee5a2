"""Orders to a live run from another terminal: one line of JSON in, one out, on a socket in the run's private folder.

`spotlight drain RUN` finishes the iteration, saves and stops; `spotlight drill RUN` kills workers; `spotlight token RUN
--new` revokes the token.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from spotlight.core.errors import InputError

SOCKET = "orders.sock"
LINE_LIMIT = 1 << 16
ANSWER_S = 30.0


class DrainRun(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Stop at the end of the iteration, resumably."""


class DrillRun(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Kill this share of the workers, at least one; reserved ones too if `reserved`."""

    share: float
    reserved: bool = False


class RenewToken(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Revoke the run's token and make a new one; machines that are connected stay."""


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Reply to an order, with the workers concerned."""

    sentence: str
    workers: tuple[str, ...] = ()
    seq: int = 0
    """Number of the next journal record when the order arrived; its effects follow from there."""


RunOrder = DrainRun | DrillRun | RenewToken
_ORDER = msgspec.json.Decoder(RunOrder)
_DONE = msgspec.json.Decoder(Done)


async def listen(folder: Path, carry_out: Callable[[RunOrder], Awaitable[Done]]) -> None:
    """Serve orders until cancelled; a line that is not an order closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            done = await carry_out(_ORDER.decode(await reader.readline()))
            writer.write(msgspec.json.encode(done) + b"\n")
            await writer.drain()
        except (msgspec.MsgspecError, ConnectionError, ValueError):
            pass
        finally:
            writer.close()

    path = folder / SOCKET
    path.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(serve, str(path), limit=LINE_LIMIT)
    path.chmod(0o600)
    async with server:
        await server.serve_forever()


def give(folder: Path, word: str, order: RunOrder) -> Done:
    """Send one order to the run that a command calls `word`, and wait for the reply."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(ANSWER_S)
        try:
            sock.connect(str(folder / SOCKET))
        except OSError as error:
            raise InputError(
                f"the run {word} is not running on this machine ({error.strerror}), so it takes no orders; start it "
                f"with `spotlight resume {word}`."
            ) from error
        try:
            sock.sendall(msgspec.json.encode(order) + b"\n")
            reply = sock.makefile("rb").readline()
        except OSError:
            reply = b""
    if not reply:
        raise InputError(f"the run {word} did not reply, so it is ending or of another version; look at its status.")
    return _DONE.decode(reply)

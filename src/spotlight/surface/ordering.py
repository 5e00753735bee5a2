"""Orders to a live run, and why one cannot be given."""

from spotlight.core.errors import InputError
from spotlight.folder import RunFolder
from spotlight.orders import Done, RunOrder, give
from spotlight.pools.machine import sockets
from spotlight.presence import read_beat


def order(folder: RunFolder, given: RunOrder) -> Done:
    """Send an order and return the reply; refuses a run that is not, or not yet, able to take it."""
    try:
        return give(sockets(folder.path), folder.word, given)
    except InputError:
        beat = read_beat(folder.path)
        if beat is None or not beat.is_alive:
            raise
        what = "is ending" if beat.is_draining else "is still starting, or is ending"
        raise InputError(
            f"the run {folder.name} {what} and takes no orders now (process {beat.pid} on {beat.host}); try again in "
            "a moment, or look at its status."
        ) from None

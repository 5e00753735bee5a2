"""Ties the life of a process to its parent's, by the kernel, so that no orphan survives however the parent ends."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """SIGKILL for this process when the thread that started it ends. Does not pass on to children."""
    _set_parent_death_signal(signal.SIGKILL)


def outlive_parent() -> None:
    """Undo `die_with_parent`, for a process that watches its owner's pipe and has something to end first."""
    _set_parent_death_signal(0)


def _set_parent_death_signal(number: int) -> None:
    if _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, "prctl(PR_SET_PDEATHSIG) failed")

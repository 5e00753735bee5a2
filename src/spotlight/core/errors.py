"""One exception tree; the exit code of the command line is a property of the class.

    SpotlightError
    |-- InputError (2)            the user's input: recipe, prompt, file, option
    |   |-- ConfigError           impossible setting
    |   |   `-- UnknownSetting    a setting that does not exist
    |   |-- OtherVersion          a run folder of another version (core/run_version.py)
    |   |-- PromptError           a prompt that the encoder cannot encode
    |   |-- WeightsError          missing, truncated, altered or mismatched weights
    |   |-- RewardError           unknown reward, wrong number of scores, non-finite score
    |   |   `-- RewardUnavailable a reward that cannot score now
    |   |-- SizeError             an image size that the model does not support
    |   |-- SealError             a flight or payload that is damaged or another sample's (compute/rollout/sealed.py)
    |   `-- JournalCorrupt        a damaged record in the middle of a journal (core/segments.py)
    |-- EnvironmentProblem (3)    missing software, disk space or memory
    |-- Stopped (4)               stopped, and resumable
    |   |-- StopRequested         the user requested a stop, or a budget is spent
    |   |-- Diverged              the model produces or trains on non-finite numbers
    |   `-- JournalUnwritable     the disk is full or fails (core/journal.py)
    |-- NothingToDo (0)           the requested work is done already
    |-- InvariantBroken           the controller's state is inconsistent: a defect (control/ledger/states.py)
    |-- WireError                 bytes on a socket that are not a valid frame (core/wire.py)
    |-- CrewBroken                a group failed and is dropped (compute/parallel/group.py)
    |-- RankLost                  an exchange of a gang failed
    |-- RestartNeeded             a rank with sharded weights must restart (compute/train/sharded.py)
    |-- StaleForward              a forward of an earlier crew (compute/parallel/crew_adapter.py)
    `-- StoreError                a group store that refuses or is late (compute/parallel/store_wire.py)

A message is one sentence in three parts: what is wrong, with the values; why; what to do.
"""

import difflib
import errno
from collections.abc import Iterable


class SpotlightError(Exception):
    """Root of the tree; the `spotlight` command returns `exit_code`."""

    exit_code = 1


class InputError(SpotlightError):
    exit_code = 2


class ConfigError(InputError):
    pass


class UnknownSetting(ConfigError):
    def __init__(self, message: str, setting: str = "") -> None:
        super().__init__(message)
        self.setting = setting


class PromptError(InputError):
    pass


class WeightsError(InputError):
    pass


class RewardError(InputError):
    pass


class RewardUnavailable(RewardError):
    """A reward cannot score now, but may later: its endpoint is down, slow or answers nonsense."""


class SizeError(InputError):
    pass


class EnvironmentProblem(SpotlightError):
    exit_code = 3


class Stopped(SpotlightError):
    exit_code = 4


class StopRequested(Stopped):
    pass


class Diverged(Stopped):
    pass


class RankLost(SpotlightError):
    """An exchange of a gang failed, and the gang is dropped."""

    def __init__(self, message: str, waited_for: int | None = None) -> None:
        super().__init__(message)
        self.waited_for = waited_for
        """Rank that was waited for, if known."""


class RestartNeeded(SpotlightError):
    """This process holds a share of the weights for a gang that is gone; it must exit and start anew."""


class NothingToDo(SpotlightError):
    exit_code = 0


def error_of(exit_code: int, sentence: str) -> SpotlightError:
    """Rebuild another process's error, with the exit code that it had there."""
    kinds: dict[int, type[SpotlightError]] = {2: InputError, 3: EnvironmentProblem, 4: Stopped}
    return kinds.get(exit_code, SpotlightError)(sentence)


def exit_code_of(error: BaseException) -> int:
    """Exit code of the command for this error; a full disk and exhausted memory count as environment problems."""
    if isinstance(error, SpotlightError):
        return error.exit_code
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENOMEM)
    # torch.OutOfMemoryError, which this module must not import.
    is_out_of_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return EnvironmentProblem.exit_code if is_full or is_out_of_memory else SpotlightError.exit_code


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """Return the "did you mean" half of an error message: the closest known name, else all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(wrong, names, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"choose one of: {', '.join(names)}."


def describe(error: Exception) -> str:
    """Text of an error for another process: a SpotlightError's sentence, other errors with their class."""
    return str(error) if isinstance(error, SpotlightError) else f"{type(error).__name__}: {error}"

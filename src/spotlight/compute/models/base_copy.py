"""A run's own copy of the weights that it trains from, made when the run starts.

The weights may belong to another run, which deletes its older sets, so only a copy keeps the new run resumable. The
copy is a weights file with a digest. Adapters are merged once, into this copy, because another processor may merge
them to other last bits. A separate process (`base_writer.py`) writes it, because the controller never loads torch.
"""

import subprocess
import sys
from pathlib import Path

from spotlight.core.errors import EnvironmentProblem, InputError

WRITER = "spotlight.compute.models.base_writer"


def copy_base(name: str, target: Path) -> None:
    """Write the weights that the name resolves to, whole, verified and checked against their family, to `target`."""
    # With -P nothing is imported from the working folder.
    command = [sys.executable, "-P", "-m", WRITER, name, str(target)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode == InputError.exit_code:
        raise InputError(done.stderr.strip())
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        raise EnvironmentProblem(
            f"the weights '{name}' could not be copied to {target} ({last}), and a run trains from this copy; check "
            "that the folder has room and that the machine has memory for the model."
        )

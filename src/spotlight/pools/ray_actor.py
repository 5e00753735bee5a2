"""The Ray actor of one node: hosts the machine's side of `spotlight join` (`pools/joining.py`).

Free of ray: `pools/ray_driver.py` makes it an actor. Its processes die with it, however it ends.
"""

import asyncio
import logging
import os
import tempfile
from pathlib import Path

import msgspec

from spotlight.core.errors import EnvironmentProblem, SpotlightError
from spotlight.pools.joining import JoiningMachine, JoinOptions
from spotlight.pools.ray_lines import ActorEnd, ActorLaunch
from spotlight.pools.tokens import TokenFile

log = logging.getLogger("spotlight.ray")


class MachineActor:
    """One call of `serve` is the life of the machine."""

    def ready(self) -> bool:
        """The actor has its resources."""
        return True

    def serve(self, launch: bytes) -> bytes:
        """Serve in the main thread: signals arrive there, and the node's processes die with the thread."""
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
        found = msgspec.json.decode(launch, type=ActorLaunch)
        try:
            options = JoinOptions(
                token_file=msgspec.json.decode(found.token_file, type=TokenFile),
                name=found.name,
                slot_class=found.slot_class,
                slots=found.slots,
                zone=found.zone,
                folder=_own_folder() / f"{found.folder}-{found.name}",
            )
            asyncio.run(JoiningMachine(options, log.info).serve())
        except SpotlightError as error:
            return msgspec.json.encode(ActorEnd(exit_code=error.exit_code, problem=str(error)))
        return msgspec.json.encode(ActorEnd())


def _own_folder() -> Path:
    """A folder in the temporary folder that only this user can write."""
    folder = Path(tempfile.gettempdir()) / f"spotlight-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise EnvironmentProblem(
            f"the folder {folder} belongs to another user or is open to others, so files there could be replaced; "
            "remove it, or set TMPDIR on the Ray nodes."
        )
    return folder

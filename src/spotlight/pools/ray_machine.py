"""The machine on a Ray node: `spotlight join` without a command line, below the node's actor.

python -m spotlight.pools.ray_machine       # ActorLaunch on stdin, ActorEnd on stdout
"""

import asyncio
import logging
import os
import sys
import tempfile
from pathlib import Path

import msgspec

from spotlight.core.errors import EnvironmentProblem, SpotlightError
from spotlight.node.newborn import die_with_parent
from spotlight.pools.joining import JoiningMachine, JoinOptions
from spotlight.pools.ray_lines import ActorEnd, ActorLaunch
from spotlight.pools.tokens import TokenFile

log = logging.getLogger("spotlight.ray")


def own_folder() -> Path:
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


def serve(launch: ActorLaunch) -> ActorEnd:
    """Let this machine work for the run until either ends."""
    try:
        options = JoinOptions(
            token_file=msgspec.json.decode(launch.token_file, type=TokenFile),
            name=launch.name,
            slot_class=launch.slot_class,
            slots=launch.slots,
            zone=launch.zone,
            from_ray=True,
            folder=own_folder() / f"{launch.folder}-{launch.name}",
        )
        asyncio.run(JoiningMachine(options, log.info).serve())
    except SpotlightError as error:
        return ActorEnd(exit_code=error.exit_code, problem=str(error))
    return ActorEnd()


def main() -> None:
    die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    launch = msgspec.json.decode(sys.stdin.buffer.read(), type=ActorLaunch)
    sys.stdout.buffer.write(msgspec.json.encode(serve(launch)))


if __name__ == "__main__":
    main()

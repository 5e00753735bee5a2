"""The Ray actor of one node: starts the machine's process (`pools/ray_machine.py`) and waits for its end.

Free of ray: `pools/ray_driver.py` makes it an actor. The machine is a process of its own, because Ray kills the
children of an actor that dies, but not theirs: as its only child, the machine's process takes them with it
(`pools/machine.py`).
"""

import os
import subprocess
import sys


class MachineActor:
    """One call of `serve` is the life of the machine."""

    def ready(self) -> bool:
        """The actor has its resources."""
        return True

    def serve(self, launch: bytes) -> bytes:
        """Exchange an ActorLaunch for an ActorEnd; the machine's log is that of Ray's worker."""
        command = [sys.executable, "-m", "spotlight.pools.ray_machine"]
        done = subprocess.run(
            command, input=launch, stdout=subprocess.PIPE, env=os.environ | {"PYTHONSAFEPATH": "1"}, check=False
        )
        if done.returncode:
            raise RuntimeError(
                f"the machine's process ended with status {done.returncode}, see the log of Ray's worker"
            )
        return done.stdout

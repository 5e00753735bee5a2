"""A real run whose workers are forked from a nursery that is there: python lent_run.py SOCKET train recipe.yaml ..."""

import sys
from pathlib import Path

from spotlight.pools.machine import Machine
from spotlight.surface.cli.main import main


async def _link(self: Machine) -> None:
    if not self._nursery_socket.is_symlink():
        self._nursery_socket.symlink_to(lent)


if __name__ == "__main__":
    lent = Path(sys.argv.pop(1))
    Machine.ensure_nursery = _link  # type: ignore[method-assign]
    main()

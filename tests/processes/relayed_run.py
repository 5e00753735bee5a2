"""A real run whose own agents reach the controller over TCP, at the ports of relays.

    python relayed_run.py '{"spot-1": 4711}' train recipe.yaml ...

The controller's own port is written to `door.port` of the working folder. Nodes that are not named connect to it.
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from spotlight.controller.door import Door
from spotlight.pools.local import LocalPool
from spotlight.surface.cli.main import main

PORT_FILE = "door.port"


async def _open(self: Door, path: Path, hub: Any) -> None:
    port = await self.listen("127.0.0.1", 0, hub)
    written = Path(PORT_FILE).with_suffix(".part")
    written.write_text(str(port))
    written.rename(PORT_FILE)


def _launch_of(self: LocalPool, spec: Any, node: Any, plain: Any = LocalPool.launch_of) -> Any:
    port = relays.get(spec.name) or Path(PORT_FILE).read_text()
    return msgspec.structs.replace(plain(self, spec, node), controller=f"127.0.0.1:{port}")


if __name__ == "__main__":
    relays = json.loads(sys.argv.pop(1))
    Door.open = _open  # type: ignore[method-assign]
    LocalPool.launch_of = _launch_of  # type: ignore[method-assign]
    main()

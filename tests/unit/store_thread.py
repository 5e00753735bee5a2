"""The agent's group store on a loop of its own, for members that block while they form."""

import asyncio
import threading
from pathlib import Path
from typing import Any

from spotlight.core.crew_messages import GroupToken
from spotlight.node.group_store import GroupStore


class StoreThread:
    """A group store; starts when built."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self.store = GroupStore(path)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._do(self.store.start())

    def open(self, token: GroupToken) -> None:
        async def act() -> None:
            self.store.open(token)

        self._do(act())

    def close(self, token: GroupToken) -> None:
        async def act() -> None:
            self.store.close(token)

        self._do(act())

    def stop(self) -> None:
        """Stop the store; a second call does nothing."""
        if not self._thread.is_alive():
            return
        self._do(self.store.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _do(self, action: Any) -> None:
        asyncio.run_coroutine_threadsafe(action, self._loop).result(10)

"""Counts the bytes of live tensors, on any device and also on `meta`, as a GPU's allocator would."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages that operations made inside the block and that are still alive, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        known = {id(tensor.untyped_storage()) for tensor in tree_iter((args, kwargs)) if torch.is_tensor(tensor)}
        for tensor in tree_iter(made):
            if torch.is_tensor(tensor):
                self._add(tensor.untyped_storage(), known)
        return made

    def _add(self, storage: torch.UntypedStorage, known: set[int]) -> None:
        key, size = id(storage), storage.nbytes()
        if key in known or key in self._seen:
            return

        def gone(_: object) -> None:
            self._seen.pop(key, None)
            self.now -= size

        self._seen[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)

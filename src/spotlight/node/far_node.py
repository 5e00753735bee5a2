"""What a node on another machine than the run's folder has besides: a mirror of files that its workers read, and a
server of its weights for the next node.

The mirror has the run's own base weights and the embeddings of its prompts. They are there before a worker needs them:
the base and the embeddings that every sample needs before the first worker starts, those of a prompt before its grant.

Invariant (tests/unit/test_far_node.py): a worker finds every file that it reads under the mirror, as under the run's
folder. Training reads and writes more, so training ranks run on the machine of the run's folder.
"""

import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from spotlight.compute.models.catalogue import facts_of
from spotlight.compute.models.embeddings import EmbeddingFolder
from spotlight.core import messages as m
from spotlight.core.blobs import BlobSource
from spotlight.core.run_files import EMBEDDINGS
from spotlight.core.tls import Identity
from spotlight.node.blob_client import BlobAddress
from spotlight.node.blob_server import BlobServer, knows
from spotlight.node.far import FarFiles, FarStore
from spotlight.node.launch import AgentLaunch
from spotlight.node.shared_files import SharedFiles
from spotlight.node.worker_settings import WorkerSettings


class FarNode:
    """`open`, then `prepare` before the first worker starts."""

    def __init__(self, launch: AgentLaunch, shared: SharedFiles) -> None:
        server = BlobAddress(launch.blobs, launch.fingerprint, launch.blob_token)
        self._home = Path(launch.home)
        self._settings = WorkerSettings.model_validate_json(launch.settings)
        self._embeddings: EmbeddingFolder | None = None
        """None before `prepare`, and for models without embeddings on disk."""
        self._always: tuple[str, ...] = ()
        """Texts whose embeddings any sample may need."""
        self.files = FarFiles(server, launch.node, shared, launch.peer_token)
        self.store = FarStore(server, launch.node, self._ensure)
        self.serves: BlobSource | None = None

    @classmethod
    async def open(cls, launch: AgentLaunch) -> Self:
        """Serve this node's weights, at the address with which it reaches the controller."""
        shared = SharedFiles()
        node = cls(launch, shared)
        identity = Identity.make(Path(launch.shared) / f"{launch.spec.name}-tls")
        host = _own_address(launch.blobs)
        server = BlobServer(shared, knows(launch.peer_token), identity.server_context())
        port = await server.listen(host)
        node.serves = BlobSource(f"{host}:{port}", identity.fingerprint)
        return node

    async def prepare(self) -> None:
        """Bring what every worker needs."""
        model = self._settings.model
        name = Path(model.name)
        if name.is_relative_to(self._home):
            for path in await self.files.listed(str(name.relative_to(self._home))):
                await self.files.ensure(path, self._home / path)
        facts = facts_of(model.name)
        if facts.real is None:
            return
        self._embeddings = EmbeddingFolder.of(self._home / EMBEDDINGS, facts, model)
        longest = self._settings.rows.prompt if self._settings.rows is not None else None
        self._always = tuple(text for text in (facts.real.negative_prompt, longest) if text is not None)
        await self._bring(self._always)

    async def _ensure(self, grant: m.Grant) -> None:
        await self._bring(lease.prompt.text for lease in grant.leases)

    async def _bring(self, texts: Iterable[str]) -> None:
        folder = self._embeddings
        if folder is None:
            return
        wanted = dict.fromkeys(texts)
        missing = [file for text in wanted if not (file := folder.file(text)).exists()]
        for file in missing:
            await self.files.ensure(f"{EMBEDDINGS}/{file.name}", file)
        if missing:
            folder.trim(int(self._settings.model.embeddings_gb * 1e9), {*self._always, *wanted})


def _own_address(server: str) -> str:
    """The address of this machine on the way to the server; nothing is sent."""
    host, _, port = server.rpartition(":")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host.strip("[]"), int(port)))
        return str(probe.getsockname()[0])

"""What a node on another machine than the run's folder has besides: its store and files behind the run's blob server, a
mirror of what its workers read, and a server of its weights for the next node of the chain."""

import socket
from pathlib import Path
from typing import Self

from spotlight.core.blobs import BlobSource
from spotlight.core.tls import Identity
from spotlight.node.blob_client import BlobAddress
from spotlight.node.blob_server import BlobServer, knows
from spotlight.node.far import FarFiles, FarStore
from spotlight.node.launch import AgentLaunch
from spotlight.node.mirror import Mirror
from spotlight.node.shared_files import SharedFiles
from spotlight.node.worker_settings import WorkerSettings


class FarNode:
    """`open` it, then `mirror.prepare` before the first worker starts."""

    def __init__(self, launch: AgentLaunch, shared: SharedFiles, serves: BlobSource) -> None:
        server = BlobAddress(launch.blobs, launch.fingerprint, launch.blob_token)
        settings = WorkerSettings.model_validate_json(launch.settings)
        longest = settings.rows.prompt if settings.rows is not None else None
        self.files = FarFiles(server, launch.node, shared, launch.peer_token)
        self.mirror = Mirror(Path(launch.home), settings.model, longest, self.files)
        self.store = FarStore(server, launch.node, self.mirror.ensure)
        self.serves = serves

    @classmethod
    async def open(cls, launch: AgentLaunch) -> Self:
        """Serve this node's weights, at the address with which it reaches the run's server."""
        shared = SharedFiles()
        identity = Identity.make(Path(launch.shared) / f"{launch.spec.name}-tls")
        host = _own_address(launch.blobs)
        server = BlobServer(shared, knows(launch.peer_token), identity.server_context())
        port = await server.listen(host)
        return cls(launch, shared, BlobSource(f"{host}:{port}", identity.fingerprint))


def _own_address(server: str) -> str:
    """The address of this machine on the way to the server; nothing is sent."""
    host, _, port = server.rpartition(":")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host.strip("[]"), int(port)))
        return str(probe.getsockname()[0])

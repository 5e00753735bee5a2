"""Blob servers on loopback, with their folders, for tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from spotlight.core.blobs import BlobSource
from spotlight.core.tls import Identity
from spotlight.core.types import NodeId
from spotlight.node.blob_client import BlobAddress, BlobClient
from spotlight.node.blob_server import BlobServer, HomeFiles, Serves, knows

TOKEN = "secret"
NODE = NodeId("spot-1.1")


@asynccontextmanager
async def serving(files: Serves, folder: Path) -> AsyncIterator[BlobAddress]:
    """A server over TLS, for clients with the common token."""
    identity = Identity.make(folder / "tls")
    server = BlobServer(files, knows(TOKEN), identity.server_context())
    port = await server.listen("127.0.0.1")
    try:
        yield BlobAddress(f"127.0.0.1:{port}", identity.fingerprint, TOKEN)
    finally:
        await server.close()


@asynccontextmanager
async def home(folder: Path) -> AsyncIterator[tuple[BlobAddress, Path]]:
    """The server of a run's folder."""
    run = folder / "run"
    run.mkdir(exist_ok=True)
    async with serving(HomeFiles(run), folder / "home") as address:
        yield address, run


def client_of(address: BlobAddress, patience_s: float = 1.0) -> BlobClient:
    return BlobClient(address, NODE, patience_s)


def source_of(address: BlobAddress) -> BlobSource:
    return BlobSource(address.address, address.fingerprint)

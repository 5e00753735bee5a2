"""One server of the benchmark: the run's, or a node that copies the file and serves it on."""

import asyncio
import hashlib
import json
import sys
from pathlib import Path

from benchmarks.bandwidth.run import PATH
from spotlight.core import messages as m
from spotlight.core.blobs import BlobSource
from spotlight.core.tls import Identity
from spotlight.core.types import NodeId
from spotlight.node.blob_client import BlobAddress
from spotlight.node.blob_server import BlobServer, HomeFiles, Serves, knows
from spotlight.node.far import FarFiles
from spotlight.node.shared_files import SharedFiles

TOKEN = "token of the benchmark"


class Limited:
    """Answers no faster than its rate."""

    def __init__(self, files: Serves, bytes_per_s: float) -> None:
        self._files = files
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    async def answer(self, node: NodeId, request: m.AnyMessage, blob: bytes) -> tuple[m.AnyMessage, bytes]:
        reply, data = await self._files.answer(node, request, blob)
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + len(data) / self._bytes_per_s
        await asyncio.sleep(self._free_at - now)
        return reply, data


async def main(name: str, folder: Path, rate: float, host: str = "127.0.0.1") -> None:
    shared = SharedFiles()
    files: Serves = HomeFiles(folder / "run") if name == "home" else shared
    identity = Identity.make(folder / f"{name}-tls")
    server = BlobServer(Limited(files, rate * 1e6), knows(TOKEN), identity.server_context())
    address = f"{host}:{await server.listen(host)}"
    print(json.dumps([address, identity.fingerprint]), flush=True)
    line = await asyncio.to_thread(sys.stdin.readline)
    if not line:
        return
    order = json.loads(line)
    home, fingerprint = order["home"]
    node = FarFiles(BlobAddress(home, fingerprint, TOKEN), NodeId(name), shared, TOKEN)
    target = folder / name
    await node.bring(PATH, target, [BlobSource(*source) for source in order["sources"]])
    print(await asyncio.to_thread(_digest, target), flush=True)
    # It serves until the benchmark ends.
    await asyncio.to_thread(sys.stdin.read)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:]))

"""Weights pass from node to node: the run's server sends them once."""

import asyncio
import os
from contextlib import AsyncExitStack

import pytest
from blob_servers import TOKEN, client_of, home, serving, source_of

from spotlight.core.types import NodeId
from spotlight.node import blob_client, shared_files
from spotlight.node.blob_server import HomeFiles
from spotlight.node.far import FarFiles
from spotlight.node.shared_files import SharedFiles
from spotlight.node.unloading import BlobError

PATH = "weights/behaviour-1.safetensors"


class Counted(HomeFiles):
    """The run's folder, and the number of bytes that it has sent."""

    sent = 0

    async def answer(self, node, request, blob):
        reply, data = await super().answer(node, request, blob)
        self.sent += len(data)
        return reply, data


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(blob_client, "PART", 1000)
    monkeypatch.setattr(shared_files, "PATIENCE_S", 1.0)


def published(folder) -> bytes:
    content = os.urandom(50_500)
    (folder / "run/weights").mkdir(parents=True)
    (folder / "run" / PATH).write_bytes(content)
    return content


def test_chain_of_nodes_receives_a_file_that_the_run_sends_once(tmp_path):
    async def story():
        content, files = published(tmp_path), Counted(tmp_path / "run")
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(serving(files, tmp_path / "home"))
            sources, copies = (), []
            for number in range(4):
                shared = SharedFiles()
                node = FarFiles(server, NodeId(f"spot-{number}.1"), shared, TOKEN)
                target = tmp_path / f"copy-{number}"
                copies.append((target, asyncio.create_task(node.bring(PATH, target, sources))))
                address = await stack.enter_async_context(serving(shared, tmp_path / f"node-{number}"))
                sources = (source_of(address),)
            await asyncio.gather(*(task for _, task in copies))
            assert [target.read_bytes() for target, _ in copies] == [content] * 4
            assert files.sent == len(content)

    asyncio.run(story())


def test_rest_of_a_file_comes_from_the_run_when_the_node_before_is_lost(tmp_path):
    async def story():
        content, files = published(tmp_path), Counted(tmp_path / "run")
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(serving(files, tmp_path / "home"))
            stuck = SharedFiles()
            half = tmp_path / "half"
            half.write_bytes(content[:20_000])
            stuck.begin(PATH, half, len(content))
            stuck.has(PATH, 20_000)
            before = await stack.enter_async_context(serving(stuck, tmp_path / "node"))
            target = tmp_path / "copy"
            node = FarFiles(server, NodeId("spot-2.1"), SharedFiles(), TOKEN)
            await node.bring(PATH, target, (source_of(before),))
            assert target.read_bytes() == content
            assert files.sent == len(content) - 20_000

    asyncio.run(story())


def test_unreachable_node_before_costs_nothing_but_the_attempt(tmp_path):
    async def story():
        content = published(tmp_path)
        async with home(tmp_path) as (server, _):
            async with serving(SharedFiles(), tmp_path / "node") as gone:
                pass
            target = tmp_path / "copy"
            await FarFiles(server, NodeId("spot-2.1"), SharedFiles(), TOKEN).bring(PATH, target, (source_of(gone),))
            assert target.read_bytes() == content

    asyncio.run(story())


def test_dropped_file_and_other_requests_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_files, "PATIENCE_S", 0.05)

    async def story():
        shared, copy = SharedFiles(), tmp_path / "copy"
        copy.write_bytes(b"weights")
        shared.begin(PATH, copy, 7)
        shared.has(PATH, 7)
        copy.unlink()
        async with serving(shared, tmp_path / "node") as address:
            client = client_of(address)
            assert await client.fetch(PATH, tmp_path / "again") == 7
            with pytest.raises(BlobError, match="weights alone"):
                await client.append(b"x")
            shared.dropped(PATH)
            with pytest.raises(BlobError, match="does not arrive"):
                await client.size(PATH)
            client.close()

    asyncio.run(story())

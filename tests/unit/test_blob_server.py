"""Bytes between machines: stored, read and refused by a blob server."""

import asyncio
import os
import threading
import zlib

import pytest
from blob_servers import client_of, home

from spotlight.core import blob_messages as b
from spotlight.core.blobs import BlobKind, BlobRef
from spotlight.core.errors import Stopped
from spotlight.core.tls import WrongFingerprint
from spotlight.core.types import NodeId
from spotlight.node import blob_client
from spotlight.node.blob_server import HomeFiles
from spotlight.node.blob_store import BlobStore
from spotlight.node.unloading import BlobError


def test_stored_blobs_are_files_of_the_run_and_come_back_whole(tmp_path):
    async def story():
        async with home(tmp_path) as (address, run):
            client = client_of(address)
            sample = await client.put(BlobKind.PAYLOAD, "000001/0000-7-1.safetensors", b"tensors")
            parts = [await client.append(data) for data in (b"two,", b"four")]
            assert (run / "payloads/000001/0000-7-1.safetensors").read_bytes() == b"tensors"
            assert [await client.get(ref) for ref in (sample, *parts)] == [b"tensors", b"two,", b"four"]
            client.close()

    asyncio.run(story())


def test_file_arrives_whole_in_parts_and_continues_where_another_server_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(blob_client, "PART", 1000)

    async def story():
        async with home(tmp_path) as (address, run):
            content, seen = os.urandom(12_345), []
            (run / "weights").mkdir()
            (run / "weights" / "v1").write_bytes(content)
            client, target = client_of(address), tmp_path / "copy"
            assert await client.fetch("weights/v1", target, arrived=seen.append) == len(content)
            assert target.read_bytes() == content
            assert seen == sorted(seen)
            assert seen[-1] == len(content)
            target.write_bytes(content[:3500])
            await client.fetch("weights/v1", target, begin=3500)
            assert target.read_bytes() == content
            assert await client.listed("weights") == ("weights/v1",)
            client.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    "path",
    ["journal/0", "config.json", "../secret", "weights/../config.json", "/etc/passwd", "weights//v1", "", "weights/.x"],
)
def test_files_that_other_machines_may_not_read_are_refused(tmp_path, path):
    async def story():
        async with home(tmp_path) as (address, run):
            (run / "config.json").write_text("{}")
            with pytest.raises(BlobError, match=r"no file that other machines may use|no name"):
                await client_of(address).size(path)

    asyncio.run(story())


def test_links_in_the_run_folder_are_not_followed(tmp_path):
    async def story():
        async with home(tmp_path) as (address, run):
            (tmp_path / "secret").write_text("secret")
            (run / "weights").mkdir()
            (run / "weights" / "v1").symlink_to(tmp_path / "secret")
            with pytest.raises(BlobError, match="cannot be read"):
                await client_of(address).size("weights/v1")

    asyncio.run(story())


@pytest.mark.parametrize("name", ["../../config.json", "/tmp/x", "000001/../../journal/0", "a/\0"])
def test_names_that_lead_out_of_their_folder_are_not_written(tmp_path, name):
    async def story():
        async with home(tmp_path) as (address, run):
            with pytest.raises(BlobError):
                await client_of(address).put(BlobKind.PAYLOAD, name, b"x")
            assert not [path for path in run.rglob("*") if path.is_file()]

    asyncio.run(story())


def test_client_without_the_token_or_with_another_certificate_gets_nothing(tmp_path):
    async def story():
        async with home(tmp_path) as (address, run):
            with pytest.raises(BlobError, match="wrong token"):
                await client_of(address._replace(token="guessed")).append(b"x")
            with pytest.raises((BlobError, WrongFingerprint), match="fingerprint"):
                await client_of(address._replace(fingerprint="0" * 64)).append(b"x")
            assert not list(run.iterdir())

    asyncio.run(story())


def test_damaged_bytes_are_neither_stored_nor_delivered(tmp_path):
    async def story():
        async with home(tmp_path) as (address, run):
            client = client_of(address)
            with pytest.raises(BlobError, match="damaged"):
                await client._request(b.AppendBlob(id="one", crc=zlib.crc32(b"sent")), b"sank")
            assert not list(run.rglob("flights/*"))
            client.close()

    asyncio.run(story())


def test_reply_that_was_damaged_on_its_way_is_asked_for_again(tmp_path, monkeypatch):
    answer, damaged = HomeFiles.answer, []

    async def flipped(self, node, request, blob):
        reply, data = await answer(self, node, request, blob)
        if isinstance(request, b.ReadBlob) and not damaged:
            damaged.append(data)
            return reply, b"?" + data[1:]
        return reply, data

    monkeypatch.setattr(HomeFiles, "answer", flipped)

    async def story():
        async with home(tmp_path) as (address, _):
            client = client_of(address)
            ref = await client.append(b"flight")
            assert await client.get(ref) == b"flight"
            assert damaged
            client.close()

    asyncio.run(story())


@pytest.mark.parametrize("breaks", ["after it is stored", "while it is stored"])
def test_part_whose_reply_was_lost_is_stored_once(tmp_path, monkeypatch, breaks):
    """The connection breaks before the reply, and the client repeats its request on another one."""
    answer, append = HomeFiles.answer, BlobStore.append
    is_stored, requests = threading.Event(), []

    def slowly(self, data):
        ref = append(self, data)
        is_stored.wait(5.0 if breaks == "while it is stored" and len(requests) == 1 else 0.0)
        return ref

    async def broken(self, node, request, blob):
        requests.append(request)
        if len(requests) > 1:
            asyncio.get_running_loop().call_later(0.1, is_stored.set)
            return await answer(self, node, request, blob)
        if breaks == "after it is stored":
            await answer(self, node, request, blob)
        else:
            storing.append(asyncio.create_task(answer(self, node, request, blob)))
            await asyncio.sleep(0.05)
        raise ConnectionResetError

    storing = []
    monkeypatch.setattr(BlobStore, "append", slowly)
    monkeypatch.setattr(HomeFiles, "answer", broken)

    async def story():
        async with home(tmp_path) as (address, run):
            client = client_of(address, patience_s=10.0)
            first = await client.append(b"flight")
            assert [request.id for request in requests] == [requests[0].id] * 2
            # The same bytes in another request are another part.
            second = await client.append(b"flight")
            assert [(ref.number, ref.offset) for ref in (first, second)] == [(1, 0), (2, 6)]
            (file,) = run.glob("flights/*")
            assert file.read_bytes() == b"flightflight"
            client.close()

    asyncio.run(story())


def test_nodes_that_came_and_went_leave_no_file_open_and_each_continues_its_own(tmp_path):
    files = HomeFiles(tmp_path)

    def stored(node: str, number: int) -> BlobRef:
        data = f"{node} {number}".encode()
        reply, _ = files._answer(NodeId(node), b.AppendBlob(id=f"{node}-{number}", crc=zlib.crc32(data)), data)
        return reply.ref

    refs = [stored(f"box.{count}", number) for number in (1, 2) for count in range(8)]
    opened = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
    assert not [path for path in opened if path.startswith(str(tmp_path))]
    assert [(ref.path, ref.number) for ref in refs[::8]] == [("flights/box.0-0", 1), ("flights/box.0-0", 2)]
    assert BlobStore(tmp_path).get(refs[-1]) == b"box.7 2"


def test_full_disk_of_the_run_stops_it_resumably(tmp_path, monkeypatch):
    def full(self, data):
        raise Stopped("no space left; free some")

    monkeypatch.setattr("spotlight.node.blob_store.BlobStore.append", full)

    async def story():
        async with home(tmp_path) as (address, _):
            with pytest.raises(Stopped, match="no space left"):
                await client_of(address).append(b"x")

    asyncio.run(story())


def test_request_survives_a_broken_connection_and_ends_if_the_server_stays_away(tmp_path):
    async def story():
        async with home(tmp_path) as (address, _):
            client = client_of(address)
            ref = await client.append(b"flight")
            client._streams[1].transport.abort()
            assert await client.get(ref) == b"flight"
        client._drop()
        with pytest.raises(BlobError, match="does not answer"):
            await client.get(ref)

    asyncio.run(story())


def test_garbage_drops_its_connection_alone(tmp_path):
    async def story():
        async with home(tmp_path) as (address, _):
            client = client_of(address)
            ref = await client.append(b"flight")
            host, port = address.address.split(":")
            for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + os.urandom(200)):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(garbage)
                await reader.read()
                writer.close()
            assert await client.get(ref) == b"flight"
            missing = BlobRef(kind=BlobKind.FLIGHT, path="flights/none", digest="", size=3)
            with pytest.raises(BlobError, match="cannot be read"):
                await client.get(missing)
            client.close()

    asyncio.run(story())

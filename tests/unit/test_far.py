"""A node on another machine stores and reads through the run's server."""

import asyncio

import msgspec
import pytest
from agent_stories import lease
from blob_servers import NODE, TOKEN, home

from spotlight.core import messages as m
from spotlight.core.blobs import BlobKind, BlobRef
from spotlight.core.errors import EnvironmentProblem
from spotlight.node.far import FarFiles, FarStore
from spotlight.node.shared_files import SharedFiles


async def nothing(grant: m.Grant) -> None:
    pass


def test_flights_are_stored_in_order_and_read_with_their_grant(tmp_path):
    async def story():
        async with home(tmp_path) as (address, run):
            store, stored = FarStore(address, NODE, nothing), asyncio.Queue()
            for data in (b"two,", b"four"):
                store.append(data, stored.put_nowait)
            parts = (await stored.get(), await stored.get())
            assert b"".join(path.read_bytes() for path in run.glob("flights/*")) == b"two,four"
            lost = BlobRef(kind=BlobKind.FLIGHT, path="flights/lost", digest="", size=1)
            resumed, broken = (
                msgspec.structs.replace(lease(1), step=4, flight=parts),
                msgspec.structs.replace(lease(2), step=4, flight=(lost,)),
            )
            fetched = asyncio.get_running_loop().create_future()
            store.fetch(m.Grant(leases=(resumed, broken)), fetched.set_result)
            flights, unread = await fetched
            assert msgspec.msgpack.decode(flights) == {resumed.request.id: b"two,four"}
            assert [each.request.id for each, _ in unread] == [broken.request.id]

    asyncio.run(story())


def test_threads_store_samples_and_copy_files(tmp_path):
    async def story():
        async with home(tmp_path) as (address, run):
            store, files = FarStore(address, NODE, nothing), FarFiles(address, NODE, SharedFiles(), TOKEN)
            ref = await asyncio.to_thread(store.put, BlobKind.PAYLOAD, "000001/x", b"tensors")
            assert await asyncio.to_thread(store.get, ref) == b"tensors"
            (run / "weights").mkdir()
            (run / "weights/v1").write_bytes(b"weights")
            assert await asyncio.to_thread(files.size, "weights/v1") == 7
            await asyncio.to_thread(files.copy, "weights/v1", tmp_path / "copy", ())
            assert (tmp_path / "copy").read_bytes() == b"weights"
            with pytest.raises(EnvironmentProblem, match="not there"):
                await asyncio.to_thread(files.size, "weights/v2")

    asyncio.run(story())


def test_leases_whose_files_do_not_come_have_failed(tmp_path):
    async def absent(grant: m.Grant) -> None:
        raise EnvironmentProblem("its embedding is not there")

    async def story():
        async with home(tmp_path) as (address, _):
            fetched = asyncio.get_running_loop().create_future()
            FarStore(address, NODE, absent).fetch(m.Grant(leases=(lease(1),)), fetched.set_result)
            assert [problem for _, problem in (await fetched).unread] == ["its embedding is not there"]

    asyncio.run(story())

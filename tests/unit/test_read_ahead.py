"""Weights are in the page cache before a worker reads them; models that are not here, small or too large are left."""

import asyncio
import ctypes
import json
import mmap
import os
import threading
import time
from pathlib import Path

import pytest

from spotlight.config import load_config
from spotlight.control.market.prices import PriceTable
from spotlight.core import host_memory
from spotlight.pools import read_ahead
from spotlight.pools.machine import Machine, MachineSettings
from spotlight.pools.read_ahead import ReadAhead, files_of
from spotlight.run import Run

SIZE = 32 << 20
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NO_ERROR = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


def folder(at: Path) -> Path:
    """A model in diffusers layout, whose transformer has two shards."""
    for component, names in (("transformer", ("a.safetensors", "b.safetensors")), ("vae", ("model.safetensors",))):
        (at / component).mkdir(parents=True)
        for name in names:
            (at / component / name).write_bytes(os.urandom(SIZE))
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (at / "transformer" / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    (at / "text_encoder").mkdir()
    (at / "text_encoder" / "model.safetensors").write_bytes(os.urandom(SIZE))
    return at


def evict(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if is_cached(path):
        pytest.skip("this file system keeps all pages in memory")


def is_cached(path: Path) -> bool:
    """Whether most of the file's pages are in memory; looking does not read them."""
    size = path.stat().st_size
    pages = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), pages)
        del first
    assert not failed
    return sum(page & 1 for page in pages) > len(pages) / 2


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setattr(read_ahead, "WORTH", 1)
    made = folder(tmp_path / "model")
    for path in made.glob("*/*.safetensors"):
        evict(path)
    return made


def finish(model: str) -> None:
    ahead = ReadAhead(model)
    ahead.begin()
    ahead.join()


def machine_of(model: Path, folder: Path) -> Machine:
    settings = MachineSettings(
        folder=folder, home=folder, entry="os:abort", is_bare=True, model=str(model), drain_s=0.1
    )
    return Machine(settings, lambda end: None)


def test_all_shards_that_workers_load_are_cached_and_the_text_encoder_is_not_read(model):
    finish(str(model))
    cached = {str(path.relative_to(model)) for path in model.glob("*/*.safetensors") if is_cached(path)}
    assert cached == {"transformer/a.safetensors", "transformer/b.safetensors", "vae/model.safetensors"}


def test_weights_that_do_not_fit_into_free_memory_are_not_read(model, tmp_path, monkeypatch):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: 9000000 kB\nMemAvailable: {3 * SIZE // 1024} kB\n")
    monkeypatch.setattr(host_memory, "MEMINFO", meminfo)
    finish(str(model))
    assert not any(is_cached(path) for path in model.glob("*/*.safetensors"))


def test_small_weights_are_left_to_their_worker(model, monkeypatch):
    monkeypatch.setattr(read_ahead, "WORTH", 3 * SIZE + 1)
    finish(str(model))
    assert not any(is_cached(path) for path in model.glob("*/*.safetensors"))


def test_reading_ends_when_it_is_stopped(model, monkeypatch):
    monkeypatch.setattr(read_ahead, "BLOCK", 4096)
    ahead = ReadAhead(str(model))
    ahead.stop()
    ahead.begin()
    ahead.join()
    assert not any(is_cached(path) for path in model.glob("*/*.safetensors"))


@NO_ERROR
@pytest.mark.parametrize("name", ["words", "random:qwen-image", "owner/not-fetched", "/no/such/folder", "a/b/c"])
def test_model_that_is_no_file_of_this_machine_is_no_error(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert files_of(name) == []
    finish(name)


def test_model_in_the_hubs_cache_is_found_although_files_that_are_not_fetched_are_missing(model, tmp_path, monkeypatch):
    home = tmp_path / "hub" / "models--owner--name"
    snapshot = home / "snapshots" / COMMIT
    snapshot.parent.mkdir(parents=True)
    model.rename(snapshot)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(COMMIT)
    listed = [str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file()]
    files = {name: {"size": 1, "blob_id": "0"} for name in [*listed, "README.md", ".gitattributes"]}
    (home / "trees").mkdir()
    (home / "trees" / f"{COMMIT}.json").write_text(json.dumps({"format_version": 1, "files": files}))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert [path.name for path in files_of("owner/name")] == ["a.safetensors", "b.safetensors", "model.safetensors"]
    next(snapshot.glob("transformer/*.safetensors")).unlink()
    assert files_of("owner/name") == [], "the worker fetches what is missing"


@NO_ERROR
def test_folder_without_weights_is_no_error(tmp_path):
    (tmp_path / "transformer").mkdir()
    finish(str(tmp_path))


@pytest.mark.parametrize(("pace", "model"), [((), "words"), (("cluster.pace=h200-qwen-image-512",), "")])
def test_run_names_its_model_to_its_machine_unless_no_worker_loads_it(tmp_path, pace, model):
    config = load_config("words-nft", [f"output.folder={tmp_path}", *pace])
    run = Run.start(config, "words-nft", PriceTable.load(None))
    assert run.pool_settings("token").machine().model == model


def test_machine_reads_the_model_of_its_run_ahead_before_it_has_a_worker(model, tmp_path):
    async def story() -> None:
        machine = machine_of(model, tmp_path / "run")
        try:
            await machine.start()
            async with asyncio.timeout(60):
                while not is_cached(model / "vae" / "model.safetensors"):
                    await asyncio.sleep(0.01)
        finally:
            await machine.stop()

    asyncio.run(story())


def test_machine_that_stops_reads_no_further(model, tmp_path, monkeypatch):
    read: list[int] = []

    def slowly(descriptor: int, rooms: list[bytearray], start: int) -> int:
        read.append(start)
        time.sleep(0.01)
        return len(rooms[0])

    async def story() -> None:
        machine = machine_of(model, tmp_path / "run")
        try:
            await machine.start()
            async with asyncio.timeout(60):
                while not read:
                    await asyncio.sleep(0.01)
        finally:
            await machine.stop()

    monkeypatch.setattr(read_ahead, "BLOCK", 4096)
    monkeypatch.setattr("os.preadv", slowly)
    asyncio.run(story())
    reading = [thread for thread in threading.enumerate() if thread.name == "read-ahead"]
    for thread in reading:
        thread.join(10)
    assert not any(thread.is_alive() for thread in reading)
    assert len(read) < 3 * SIZE // 4096

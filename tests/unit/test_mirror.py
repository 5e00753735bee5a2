"""The mirror of a node on another machine: its workers find base weights and embeddings under it."""

import asyncio

import msgspec
import pytest
from agent_stories import lease
from blob_servers import NODE, TOKEN, home

from spotlight.compute.models.catalogue import facts_of
from spotlight.compute.models.config import ModelConfig
from spotlight.compute.models.embeddings import EmbeddingFolder
from spotlight.compute.models.family_registry import FAMILIES
from spotlight.compute.models.random_weights import write_tiny
from spotlight.core import messages as m
from spotlight.core.types import Prompt
from spotlight.node.far import FarFiles, FarStore
from spotlight.node.mirror import Mirror
from spotlight.node.shared_files import SharedFiles
from spotlight.node.unloading import BlobError

LONGEST = "the longest prompt of the run"


def grant_of(text: str) -> m.Grant:
    return m.Grant(leases=(msgspec.structs.replace(lease(1), prompt=Prompt(text=text)),))


def encode(run, model: ModelConfig, *texts: str) -> None:
    """Files as the run's text encoder leaves them."""
    folder = EmbeddingFolder.of(run / "embeddings", facts_of(model.name), model)
    folder.path.mkdir(exist_ok=True)
    for text in texts:
        folder.file(text).write_text(text)


def test_base_is_mirrored_before_workers_start_and_embeddings_before_their_grants(tmp_path):
    async def story():
        async with home(tmp_path) as (address, run):
            write_tiny(FAMILIES["sd3"], run / "base")
            model = ModelConfig(name=str(run / "base"), device="cpu")
            facts = facts_of(model.name)
            encode(run, model, facts.real.negative_prompt, LONGEST, "a cat")
            there = tmp_path / "mirror"
            moved = model.model_copy(update={"name": str(there / "base")})
            mirror = Mirror(there, moved, LONGEST, FarFiles(address, NODE, SharedFiles(), TOKEN))
            await mirror.prepare()
            files = [path.relative_to(run) for path in (run / "base").rglob("*") if path.is_file()]
            assert all((there / path).read_bytes() == (run / path).read_bytes() for path in files)
            folder = EmbeddingFolder.of(there / "embeddings", facts_of(moved.name), moved)
            assert folder.missing([facts.real.negative_prompt, LONGEST, "a cat"]) == ["a cat"]
            fetched = asyncio.get_running_loop().create_future()
            FarStore(address, NODE, mirror.ensure).fetch(grant_of("a cat"), fetched.set_result)
            assert not (await fetched).unread
            assert folder.file("a cat").read_text() == "a cat"
            with pytest.raises(BlobError, match="cannot be read"):
                await mirror.ensure(grant_of("a dog"))

    asyncio.run(story())

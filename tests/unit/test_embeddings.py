"""Prompts are encoded once, ahead of the iterations that need them, and no file that is needed is removed."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from journal_stories import HandClock
from tiny_qwen_image import conditioning, qwen_scheduler, tiny_transformer, tiny_vae

from spotlight.compute.models.adapter import Conditioning
from spotlight.compute.models.embeddings import EmbeddingFolder
from spotlight.compute.models.qwen_image import QwenImageAdapter
from spotlight.compute.models.text_encoding import read_conditioning, write_conditioning
from spotlight.controller.encoded_ahead import EncodedAhead, PromptTexts
from spotlight.core.errors import EnvironmentProblem, WeightsError
from spotlight.core.events import Encoded
from spotlight.core.types import Prompt

ITERATIONS, PER_ITERATION = 40, 3


def texts_of(iteration: int) -> list[str]:
    return [f"prompt {iteration}.{number}" for number in range(PER_ITERATION)]


class Encoder:
    """Writes files of ten bytes, one batch at a time, and counts them."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = EmbeddingFolder(folder, "encoder")
        folder.mkdir()
        self.counts: Counter[str] = Counter()
        self.events: list[object] = []
        self.checkpoint = 0
        self.error: Exception | None = None
        texts = PromptTexts(always=["", "held out"], of=texts_of, iterations=ITERATIONS)
        self.ahead = EncodedAhead(
            self.folder, limit, texts, lambda: self.checkpoint, self.encode, HandClock(), self.events.append
        )

    async def encode(self, texts: Sequence[str], progress: Callable[[str], None]) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        for text in texts:
            self.folder.file(text).write_bytes(bytes(10))
            self.counts[text] += 1


def needed(first: int, iteration: int) -> list[str]:
    return ["", "held out", *(text for each in range(first, min(iteration + 3, ITERATIONS)) for text in texts_of(each))]


@pytest.mark.parametrize("limit", [10**6, 300, 30])
def test_every_prompt_is_there_from_its_checkpoint_until_after_its_iteration(tmp_path, limit):
    encoder = Encoder(tmp_path / "embeddings", limit)

    async def story() -> None:
        for iteration in range(ITERATIONS):
            encoder.checkpoint = iteration // 5 * 5
            await encoder.ahead.ready(iteration)
            assert encoder.folder.missing(needed(encoder.checkpoint, iteration)) == []
            await asyncio.sleep(0)

    asyncio.run(story())
    assert set(encoder.counts.values()) == {1}, "a prompt was encoded twice"
    assert sum(event.prompts for event in encoder.events if isinstance(event, Encoded)) == len(encoder.counts)


def test_files_beyond_the_limit_are_removed_the_oldest_first(tmp_path):
    encoder = Encoder(tmp_path / "embeddings", 300)

    async def story() -> None:
        for iteration in range(ITERATIONS):
            encoder.checkpoint = iteration
            await encoder.ahead.ready(iteration)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    asyncio.run(story())
    assert encoder.folder.missing(texts_of(0)) == texts_of(0)
    assert encoder.folder.missing(["held out", *texts_of(ITERATIONS - 1)]) == []


def test_failure_of_the_encoder_ends_the_wait_of_the_iteration_that_needs_it(tmp_path):
    encoder = Encoder(tmp_path / "embeddings", 10**6)
    encoder.error = EnvironmentProblem("the device is full")
    with pytest.raises(EnvironmentProblem, match="the device is full"):
        asyncio.run(encoder.ahead.ready(0))


def test_name_of_a_file_depends_on_the_encoder_and_the_text(tmp_path):
    one, other = EmbeddingFolder(tmp_path, "one"), EmbeddingFolder(tmp_path, "other")
    assert len({one.file("a"), one.file("b"), other.file("a"), other.file("b")}) == 4


@pytest.mark.parametrize("pooled", [None, torch.arange(4.0)])
def test_conditioning_is_read_back_bit_for_bit(tmp_path, pooled):
    made = Conditioning(torch.randn(5, 8, dtype=torch.bfloat16), pooled)
    write_conditioning(tmp_path / "x.safetensors", made)
    read = read_conditioning(tmp_path / "x.safetensors")
    assert read.embeds.dtype == torch.bfloat16
    assert torch.equal(read.embeds, made.embeds)
    assert (read.pooled is None) if pooled is None else torch.equal(read.pooled, pooled)


def test_lost_or_damaged_embedding_is_reported_with_what_to_do(tmp_path):
    (tmp_path / "cut.safetensors").write_bytes(b"cut")
    for name in ("cut", "lost"):
        with pytest.raises(WeightsError, match=r"cannot be read .*; delete it if it exists, and resume the run"):
            read_conditioning(tmp_path / f"{name}.safetensors")


def test_model_that_reads_embeddings_never_loads_its_text_encoder(tmp_path):
    prompts = [Prompt(text="a red boat"), Prompt(text="a red boat on a lake")]
    made = [conditioning(5, seed=1), conditioning(9, seed=2)]
    folder = EmbeddingFolder(tmp_path, "encoder")
    for prompt, each in zip(prompts, made, strict=True):
        write_conditioning(folder.file(prompt.text), each)
    parts = (tiny_transformer(), tiny_vae(), qwen_scheduler())
    worker = QwenImageAdapter(*parts, load_text=lambda: pytest.fail("loaded the text encoder"))
    worker.read_embeddings(folder)
    for read, each in zip(worker.encode(prompts), made, strict=True):
        assert torch.equal(read.embeds, each.embeds)
    with pytest.raises(WeightsError, match="workers do not encode prompts"):
        worker.encode([Prompt(text="a blue boat")])

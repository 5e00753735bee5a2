"""The files of a run's folder that workers read, on a machine that does not have that folder.

The mirror has the run's own base weights and the embeddings of its prompts. They are there before a worker needs them:
the base and the embeddings that every sample needs before the first worker starts, those of a prompt before its grant.

Invariant (tests/unit/test_mirror.py): a worker finds every file that it reads under the mirror, as under the run's
folder. Training reads and writes more, so training ranks run on the machine of the run's folder.
"""

from collections.abc import Iterable
from pathlib import Path

from spotlight.compute.models.catalogue import facts_of
from spotlight.compute.models.config import ModelConfig
from spotlight.compute.models.embeddings import EmbeddingFolder
from spotlight.core import messages as m
from spotlight.core.run_files import EMBEDDINGS
from spotlight.node.far import FarFiles


class Mirror:
    """`prepare` before the first worker starts, `ensure` before each grant."""

    def __init__(self, folder: Path, model: ModelConfig, longest_prompt: str | None, files: FarFiles) -> None:
        """`model` names its base under `folder`, if the run's folder has it."""
        self._folder = folder
        self._model = model
        self._longest_prompt = longest_prompt
        self._files = files
        self._embeddings: EmbeddingFolder | None = None
        """None before `prepare`, and for models without embeddings on disk."""
        self._always: tuple[str, ...] = ()
        """Texts whose embeddings any sample may need."""

    async def prepare(self) -> None:
        """Bring what every worker needs."""
        name = Path(self._model.name)
        if name.is_relative_to(self._folder):
            for path in await self._files.listed(str(name.relative_to(self._folder))):
                await self._files.ensure(path, self._folder / path)
        facts = facts_of(self._model.name)
        if facts.real is None:
            return
        self._embeddings = EmbeddingFolder.of(self._folder / EMBEDDINGS, facts, self._model)
        texts = (facts.real.negative_prompt, self._longest_prompt)
        self._always = tuple(text for text in texts if text is not None)
        await self._bring(self._always)

    async def ensure(self, grant: m.Grant) -> None:
        """Bring what the samples of a grant need."""
        await self._bring(lease.prompt.text for lease in grant.leases)

    async def _bring(self, texts: Iterable[str]) -> None:
        folder = self._embeddings
        if folder is None:
            return
        wanted = dict.fromkeys(texts)
        missing = [file for text in wanted if not (file := folder.file(text)).exists()]
        for file in missing:
            await self._files.ensure(f"{EMBEDDINGS}/{file.name}", file)
        if missing:
            folder.trim(int(self._model.embeddings_gb * 1e9), {*self._always, *wanted})

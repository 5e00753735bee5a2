"""The accepted samples of a run, with prompt, rewards and picture."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from spotlight.core.events import Accepted, Dropped, Issued, Reopened
from spotlight.core.journal import read
from spotlight.core.work import Request, RequestId, Work
from spotlight.folder import RunFolder
from spotlight.surface.media import PictureFolder


class RunSample(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted sample."""

    work: Work
    """Trained on (rollout), measured previews (audit), or held out (evaluation)."""
    iteration: int
    group: int
    prompt: str
    """The text; the prompt's id if the run's prompts are gone."""
    seed: int
    version: int
    """Policy that drew it: the number of its publication."""
    reward: float
    """NaN if no reward could score it."""
    components: dict[str, float]
    """Scores of the reward's parts."""
    worker: str
    picture: Path | None
    """Picture or video of a held-out sample, if the file is still there."""


def samples_of(folder: RunFolder, work: Work | None = None) -> Iterator[RunSample]:
    """Samples in the order of their acceptance; one that was made again later counts once, as it was at last."""
    prompts, media = _texts(folder), PictureFolder(folder.path)
    undone = {
        event.request: record.seq
        for record in read(folder.journal)
        if isinstance(event := record.event, Reopened | Dropped)
    }
    requests: dict[RequestId, Request] = {}
    for record in read(folder.journal):
        event = record.event
        if isinstance(event, Issued):
            requests |= {each.id: each for each in event.requests if work in (None, each.work)}
        elif isinstance(event, Accepted) and record.seq > undone.get(event.request, -1):
            request = requests.pop(event.request, None)
            if request is not None:
                yield _sample(request, event, prompts, media)


def _texts(folder: RunFolder) -> dict[str, str]:
    if not folder.prompts.exists():
        return {}
    found = folder.read_prompts()
    return {prompt.id: prompt.text for prompt in (*found.training, *found.held_out)}


def _sample(request: Request, accepted: Accepted, prompts: dict[str, str], media: PictureFolder) -> RunSample:
    return RunSample(
        work=request.work,
        iteration=request.iteration,
        group=request.group,
        prompt=prompts.get(request.sample.prompt, request.sample.prompt),
        seed=request.sample.seed,
        version=request.sample.version,
        reward=accepted.reward,
        components=dict(accepted.components),
        worker=accepted.worker,
        picture=media.find(accepted.payload or ""),
    )

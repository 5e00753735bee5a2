"""The accepted samples of a run, with prompt, rewards and picture."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from spotlight.core.events import Accepted, Dropped, Issued, Reopened
from spotlight.core.journal import read
from spotlight.core.work import Request, RequestId, Work
from spotlight.folder import RunFolder
from spotlight.surface.projections import PICTURE_SUFFIX


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
    """PNG of a held-out sample, if the file is still there."""


def samples_of(folder: RunFolder, work: Work | None = None) -> Iterator[RunSample]:
    """Samples in the order of their acceptance; one that was made again later counts once, as it was at last."""
    prompts = _texts(folder)
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
                yield _sample(request, event, prompts, folder.path)


def _texts(folder: RunFolder) -> dict[str, str]:
    if not folder.prompts.exists():
        return {}
    found = folder.read_prompts()
    return {prompt.id: prompt.text for prompt in (*found.training, *found.held_out)}


def _sample(request: Request, accepted: Accepted, prompts: dict[str, str], run: Path) -> RunSample:
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
        picture=_picture(accepted.payload or "", run),
    )


def _picture(payload: str, run: Path) -> Path | None:
    """The file, if it is a picture inside the run's folder: a journal may come from an untrusted source."""
    path = run / payload
    if not payload.endswith(PICTURE_SUFFIX) or not path.resolve().is_relative_to(run):
        return None
    return path if path.is_file() else None

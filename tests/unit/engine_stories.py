"""Engines over the tiny model, and requests for them."""

from collections.abc import Iterable, Mapping

import msgspec
from tiny_models import PROMPTS, RUN_SEED, sample_of, tiny_adapter, tiny_sampling

from spotlight.compute.models.pixels import PixelAdapter
from spotlight.compute.rollout.engine import Engine, Finished
from spotlight.compute.weights.resident import Resident
from spotlight.core.types import Prompt, Sampling, Version
from spotlight.core.work import Request, RequestId, Work

BASE_DIGEST = "b" * 32
BY_ID = {prompt.id: prompt for prompt in PROMPTS}


def wanted(
    seed: int = 0,
    sampling: Sampling | None = None,
    prompt: Prompt = PROMPTS[0],
    work: Work = Work.ROLLOUT,
    version: int = 0,
) -> Request:
    sample = msgspec.structs.replace(sample_of(prompt, seed, sampling or tiny_sampling()), version=Version(version))
    return Request(work=work, iteration=0, group=PROMPTS.index(prompt), sample=sample)


def engine(
    adapter: PixelAdapter | None = None, rows: int = 8, padded: bool = True, base_digest: str = BASE_DIGEST
) -> Engine:
    adapter = adapter or tiny_adapter()
    return Engine(adapter, Resident(adapter.transformer, base_digest), RUN_SEED, rows, padded)


def admit(to: Engine, *requests: Request, attempt: int = 1, commit_every: int = 0, flight: bytes | None = None) -> None:
    for request in requests:
        to.admit(request, BY_ID[request.sample.prompt], attempt, commit_every, flight)


def finish(by: Engine) -> dict[RequestId, Finished]:
    """Step until nothing is in flight."""
    done: dict[RequestId, Finished] = {}
    while by.free_rows < by.rows:
        done |= {finished.request.id: finished for finished in by.step().finished}
    return done


def made_alone(request: Request, rows: int = 8, adapter: PixelAdapter | None = None) -> Finished:
    """The sample with no neighbours and no interruption, in a forward of `rows` rows."""
    alone = engine(adapter, rows)
    admit(alone, request)
    return finish(alone)[request.id]


def bits(finished: Finished) -> Mapping[str, bytes]:
    """All tensors of a finished sample, to be compared to the last bit."""
    payload = finished.payload
    tensors = (payload.x0_SC, payload.path_KSC, payload.log_prob_K, payload.mean_KSC)
    return {str(index): tensor.numpy().tobytes() for index, tensor in enumerate(tensors)}


def steps_of(by: Engine) -> dict[RequestId, int]:
    return {progress.request: progress.step for progress in by.progress()}


def take_steps(by: Engine, count: int) -> None:
    for _ in range(count):
        by.step()


def ids(requests: Iterable[Request]) -> list[RequestId]:
    return [request.id for request in requests]

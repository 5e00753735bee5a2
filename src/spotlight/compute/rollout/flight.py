"""A sample between two steps (flight), and a finished one (payload), as bytes for any worker or trainer.

Invariant: a flight continued on any worker gives the bits of the uninterrupted sample
(tests/processes/test_flight_processes.py). It is refused unless its request, its weights and the tensors of its step
are the expected ones (tests/unit/test_flight.py). It holds only the window steps already taken, and the previous
velocity only where the sampler needs it.

The record of a window step never changes, so a commit omits the records of earlier commits. Inside the window the end
of the path equals the latents, so it is not written twice. The bytes of a whole flight are such parts one after the
other; each has its own seal and names the step and the seal of the previous part.
Shapes: S image tokens, C channels, K window steps, R of them taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from spotlight.compute.rollout.denoise import Rollout, recorded_steps
from spotlight.compute.rollout.seal import read_place
from spotlight.compute.rollout.sealed import SealError, Stack, sealed, unsealed, unsealed_parts
from spotlight.compute.rollout.stored_flights import FLIGHT_SCHEMA, FlightFacts
from spotlight.core.types import SamplerKind, Sampling
from spotlight.core.work import Request

PAYLOAD_SCHEMA = "spotlight-payload-1"


class _PayloadFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    request: Request
    weights_digest: str


@dataclass(frozen=True, kw_only=True)
class Flight:
    """One sample after `step` steps; recorded tensors hold the window steps taken after step `since`."""

    request: Request
    attempt: int
    step: int
    since: int = 0
    """Earlier parts hold the records up to this step; 0: the flight is whole."""
    base: str = ""
    """Seal of the part of step `since`."""
    recorded_at: int = 0
    """Step of the last part with records; set by `from_bytes`."""
    recorded_seal: str = ""
    """Seal of that part."""
    weights_digest: str
    x_SC: Tensor
    velocity_SC: Tensor | None = None
    """Velocity of the last step; only of second-order samples."""
    path_RSC: Stack
    """Latents before the window's first step and after each step taken: R + 1 of them, none if R is 0."""
    log_prob_R: Stack
    mean_RSC: Stack

    def to_bytes(self) -> bytes:
        facts = FlightFacts(
            request=self.request,
            attempt=self.attempt,
            step=self.step,
            since=self.since,
            base=self.base,
            weights_digest=self.weights_digest,
        )
        path_RSC = self.path_RSC[:-1] if _ends_path(self.request.sample.sampling, self.step) else self.path_RSC
        stacks = {"path": path_RSC, "log_prob": self.log_prob_R, "mean": self.mean_RSC}
        tensors: dict[str, Stack] = {"x": self.x_SC}
        if self.velocity_SC is not None:
            tensors["velocity"] = self.velocity_SC
        return sealed(FLIGHT_SCHEMA, facts, tensors | {name: rows for name, rows in stacks.items() if len(rows)})

    @classmethod
    def from_bytes(cls, data: bytes, request: Request, weights_digest: str, shape: tuple[int, int]) -> "Flight":
        """Read the flight of this request for a model with these weights and latents of this shape (S, C)."""
        empty = torch.zeros(0, *shape)
        path, log_prob, mean = [empty], [torch.zeros(0)], [empty]
        before = recorded = _Link(0, "")
        for facts, tensors, seal in unsealed_parts(FLIGHT_SCHEMA, data, FlightFacts):
            _check_part(facts, tensors, request, weights_digest, shape, before)
            before = _Link(facts.step, seal)
            if "mean" in tensors:
                recorded = before
                path.append(tensors.get("path", empty))
                if _ends_path(request.sample.sampling, facts.step):
                    path.append(tensors["x"].unsqueeze(0))
                log_prob.append(tensors["log_prob"])
                mean.append(tensors["mean"])
        return cls(
            request=facts.request,
            attempt=facts.attempt,
            step=facts.step,
            recorded_at=recorded.step,
            recorded_seal=recorded.seal,
            weights_digest=facts.weights_digest,
            x_SC=tensors["x"],
            velocity_SC=tensors.get("velocity"),
            path_RSC=torch.cat(path),
            log_prob_R=torch.cat(log_prob),
            mean_RSC=torch.cat(mean),
        )


class _Link(NamedTuple):
    """What the next part of a flight names of the one before."""

    step: int
    seal: str


def _check_part(
    facts: FlightFacts,
    tensors: dict[str, Tensor],
    request: Request,
    weights_digest: str,
    shape: tuple[int, int],
    before: _Link,
) -> None:
    """Refuse a part that is not this flight's next one after the part `before`."""
    label = f"a flight of {facts.request.id} at step {facts.step}"
    if facts.request != request:
        raise SealError(
            f"{label} came for {request.id}, but a flight continues only the sample it was made for; resume it "
            "there, or start this one from its first step.",
            request.id,
        )
    if facts.weights_digest != weights_digest:
        raise SealError(
            f"{label} was made with weights {facts.weights_digest} but this worker holds {weights_digest} as "
            f"{request.weights}, and no sample may mix two; load the weights of the flight.",
            request.id,
        )
    sampling = request.sample.sampling
    if not 0 < facts.step < sampling.steps:
        raise SealError(
            f"{label} of {sampling.steps} is not between two steps; start it from its first step.", request.id
        )
    if (facts.since, facts.base) != before:
        raise SealError(
            f"{label} builds on the part {facts.base!r} of step {facts.since} but follows {before.seal!r} of step "
            f"{before.step}, so a part is missing or doubled, or of another attempt; start the sample from its first "
            "step.",
            request.id,
        )
    earlier, taken = (window_steps_taken(sampling, step) for step in (before.step, facts.step))
    wanted: dict[str, tuple[int, ...]] = {"x": shape}
    if sampling.sampler is SamplerKind.ODE2:
        wanted["velocity"] = shape
    if taken > earlier:
        wanted |= _recorded_shapes(shape, taken - earlier)
        # The latents before the window belong to its first step; those after the last step may be x.
        entries = taken - earlier + (not earlier) - _ends_path(sampling, facts.step)
        wanted["path"] = (entries, *shape)
        if not entries:
            del wanted["path"]
    _check_tensors(label, request, tensors, wanted)


@dataclass(frozen=True, kw_only=True)
class Payload:
    """Tensors of one finished sample for training, on the host: row i of a Rollout."""

    request: Request
    weights_digest: str
    x0_SC: Tensor
    path_KSC: Tensor
    log_prob_K: Tensor
    mean_KSC: Tensor

    def to_bytes(self) -> bytes:
        facts = _PayloadFacts(request=self.request, weights_digest=self.weights_digest)
        tensors = {"x0": self.x0_SC, "path": self.path_KSC, "log_prob": self.log_prob_K, "mean": self.mean_KSC}
        return sealed(PAYLOAD_SCHEMA, facts, tensors)

    @classmethod
    def from_bytes(cls, data: bytes, request: Request) -> "Payload":
        try:
            facts, tensors = unsealed(PAYLOAD_SCHEMA, data, _PayloadFacts)
        except SealError as problem:
            raise SealError(f"the tensors of {request.id} are unusable: {problem}", request.id) from problem
        if facts.request != request:
            raise SealError(
                f"the tensors of {facts.request.id} came for {request.id}, and would train the wrong sample; name the "
                "file of that sample.",
                request.id,
            )
        shape = tuple(tensors["x0"].shape) if "x0" in tensors else ()
        label = f"the payload of {request.id}"
        recorded = _recorded_shapes(shape, recorded_steps(request.sample.sampling))
        _check_tensors(label, request, tensors, {"x0": shape, **recorded})
        return cls(
            request=facts.request,
            weights_digest=facts.weights_digest,
            x0_SC=tensors["x0"],
            path_KSC=tensors["path"],
            log_prob_K=tensors["log_prob"],
            mean_KSC=tensors["mean"],
        )


def join_payloads(requests: Sequence[Request], payloads: Sequence[bytes | Path], device: torch.device) -> Rollout:
    """Join finished samples into one rollout, in the order of the requests; a path is read as a file."""
    read = [
        Payload.from_bytes(_read(request, payload), request)
        for request, payload in zip(requests, payloads, strict=True)
    ]
    return Rollout(
        samples=tuple(request.sample for request in requests),
        x0_BSC=_stacked([payload.x0_SC for payload in read], device),
        path_BKSC=_stacked([payload.path_KSC for payload in read], device),
        log_prob_BK=_stacked([payload.log_prob_K for payload in read], device),
        mean_BKSC=_stacked([payload.mean_KSC for payload in read], device),
    )


def _stacked(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    return torch.stack(list(tensors)).to(device)


def _read(request: Request, payload: bytes | Path) -> bytes:
    if isinstance(payload, bytes):
        return payload
    try:
        return read_place(payload)
    except OSError as problem:
        raise SealError(
            f"the tensors of {request.id} cannot be read from {payload} ({problem}), so the file was lost; make the "
            "sample again.",
            request.id,
        ) from problem


def window_steps_taken(sampling: Sampling, step: int) -> int:
    """R: number of window steps among the first `step` steps."""
    return min(max(step - sampling.window.start, 0), recorded_steps(sampling))


def _ends_path(sampling: Sampling, step: int) -> bool:
    """Whether the latents after `step` steps equal the last entry of the path."""
    return step <= sampling.window.stop


def _recorded_shapes(shape: tuple[int, ...], taken: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the records of the first `taken` window steps."""
    return {
        "path": (taken + 1 if taken else 0, *shape),
        "log_prob": (taken,),
        "mean": (taken, *shape),
    }


def _check_tensors(
    label: str, request: Request, tensors: dict[str, Tensor], wanted: dict[str, tuple[int, ...]]
) -> None:
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    types = sorted({str(tensor.dtype) for tensor in tensors.values()})
    if found != wanted or types != ["torch.float32"]:
        raise SealError(
            f"{label} holds tensors {found} of {', '.join(types)}, but {request.sample.sampling} needs {wanted} of "
            "torch.float32; make it again with this version of the code.",
            request.id,
        )

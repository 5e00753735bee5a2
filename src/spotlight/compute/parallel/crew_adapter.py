"""An adapter shared by a crew: the leader's `velocity` runs on all members, invisibly to the engine.

    leader:    send(Forward) -> broadcast inputs -> sharded forward(s) -> send(ForwardDone)
    follower:  receive Forward -> follow: check, receive inputs, the same forward(s); its result is discarded

Invariant: a member computes with the weights that the leader names by id and digest, or not at all. Any error on any
member drops its group at once, which fails the group on all members, and leaves the member in a crew of one with its
model unchanged (tests/processes/test_parallel_crew.py). `velocity` raises before the engine changes any state, so that
the same step can be taken again at another degree.

A follower enters an exchange only after it receives a Forward; the group's limit bounds every wait.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from spotlight.compute.fast.fast_model import FastModel
from spotlight.compute.models.adapter import Adapter, ConditionBatch, Conditioning, of_one_width
from spotlight.compute.parallel.group import CrewBroken, CrewGroup
from spotlight.compute.parallel.sharding import Sharding
from spotlight.compute.weights.resident import Resident
from spotlight.core.crew_messages import Forward, ForwardDone
from spotlight.core.errors import ConfigError, SpotlightError, WeightsError
from spotlight.core.types import Prompt, Size


class StaleForward(SpotlightError):
    """A forward of another epoch was refused; no state has changed."""


class SharedAdapter:
    """The adapter protocol by delegation; a crew of one until a group is bound, and after any error of that group."""

    def __init__(self, adapter: Adapter, send: Callable[[Forward | ForwardDone], None], resident: Resident) -> None:
        self._adapter = adapter
        self._send = send
        self._resident = resident
        # Installed with the first group: a model that cannot be split still works at degree 1.
        self._sharding: Sharding | None = None
        self._group: CrewGroup | None = None
        self._number = 0
        self.family = adapter.family
        self.transformer: nn.Module = adapter.transformer
        self.heads = adapter.heads
        self.lora_targets: Sequence[str] = adapter.lora_targets

    @property
    def device(self) -> torch.device:
        return self._adapter.device

    @property
    def degree(self) -> int:
        return 1 if self._group is None else self._group.degree

    def bind(self, group: CrewGroup | None) -> None:
        """Use this group from the next step on, or none; drops the group bound before."""
        before, self._group = self._group, None
        if before is not None and before is not group:
            before.drop()
        if self._sharding is None and group is not None:
            self._sharding = Sharding(self.transformer)
        if self._sharding is not None:
            self._sharding.bind(group)
        fast: FastModel | None = getattr(self._adapter, "fast", None)
        if fast is not None:
            fast.is_split = group is not None
        self._group, self._number = group, 0

    def encode(self, prompts: Sequence[Prompt]) -> list[Conditioning]:
        return self._adapter.encode(prompts)

    def unconditional(self) -> Conditioning:
        return self._adapter.unconditional()

    def collate(self, conditionings: Sequence[Conditioning], width: int | None = None) -> ConditionBatch:
        return self._adapter.collate(conditionings, width)

    def latent_shape(self, size: Size) -> tuple[int, int]:
        return self._adapter.latent_shape(size)

    def schedule(self, size: Size, steps: int) -> Tensor:
        return self._adapter.schedule(size, steps)

    def decode(self, x0_BSC: Tensor, size: Size) -> Tensor:
        return self._adapter.decode(x0_BSC, size)

    def velocity(
        self,
        x_BSC: Tensor,
        sigma_B: Tensor,
        cond: ConditionBatch,
        uncond: ConditionBatch | None,
        guidance: float,
        size: Size,
    ) -> Tensor:
        group = self._group
        if group is None:
            return self._adapter.velocity(x_BSC, sigma_B, cond, uncond, guidance, size)
        if not group.leads:
            raise ConfigError(
                f"rank {group.rank} of group {group.token} cannot start a step, because only the leader {group.leader} "
                "does; bind no group first."
            )
        with self._drop_group_on_error():
            if uncond is not None:
                # One width describes both.
                cond, uncond = of_one_width(cond, uncond)
            forward = self._forward(group, x_BSC, cond, uncond, guidance, size)
            self._send(forward)
            group.broadcast(_packed(x_BSC, sigma_B, cond, uncond))
            v_BSC = self._adapter.velocity(x_BSC, sigma_B, cond, uncond, guidance, size)
            self._number += 1
            group.limit_s = group.steady_limit_s
            self._send(ForwardDone(token=group.token, number=forward.number))
        return v_BSC

    def follow(self, forward: Forward, held_digest: str) -> None:
        """Run a follower's half of the leader's `velocity`, inside `resident.use(forward.weights, forward.is_exact)`.

        `held_digest` is the digest of the weights in use here. StaleForward changes nothing; any other error drops the
        group.
        """
        group = self._group
        if group is None or forward.token != group.token or group.leads:
            raise StaleForward(
                f"forward {forward.number} of group {forward.token} is refused, because this worker "
                f"{'has no group' if group is None else f'is rank {group.rank} of group {group.token}'}; its leader "
                "must drop that group."
            )
        with self._drop_group_on_error():
            self._check(group, forward, held_digest)
            inputs = torch.empty(_length(forward), device=self.device)
            x_BSC, sigma_B, cond, uncond = _unpacked(group.broadcast(inputs), forward)
            self._adapter.velocity(x_BSC, sigma_B, cond, uncond, forward.guidance, forward.size)
            self._number += 1
            group.limit_s = group.steady_limit_s

    @contextmanager
    def _drop_group_on_error(self) -> Iterator[None]:
        """Drop the group on any error, so that no member waits for this one.

        An error of the device or the library, such as out of memory, becomes CrewBroken: the step may work at degree 1.
        """
        group = self._group
        try:
            yield
        except RuntimeError as error:
            self.bind(None)
            raise CrewBroken(
                f"a forward of group {group.token if group is not None else None} failed here ({error}); the group is "
                "dropped: report it and wait for the agent's next order."
            ) from error
        except BaseException:
            self.bind(None)
            raise

    def _forward(
        self,
        group: CrewGroup,
        x_BSC: Tensor,
        cond: ConditionBatch,
        uncond: ConditionBatch | None,
        guidance: float,
        size: Size,
    ) -> Forward:
        weights = self._resident.in_use
        if weights is None:
            raise WeightsError(
                f"group {group.token} cannot take a step without weights in use, because followers need their id; wrap "
                "the step in `resident.use`."
            )
        rows, tokens, channels = x_BSC.shape
        return Forward(
            token=group.token,
            number=self._number,
            weights=weights,
            digest=self._resident.digest_of(weights),
            is_exact=self._resident.is_exact,
            rows=rows,
            tokens=tokens,
            channels=channels,
            text_width=cond.embeds.shape[1],
            text_dimension=cond.embeds.shape[2],
            pooled=0 if cond.pooled is None else cond.pooled.shape[1],
            guidance=guidance,
            guided=uncond is not None,
            size=size,
        )

    def _check(self, group: CrewGroup, forward: Forward, held_digest: str) -> None:
        if forward.number != self._number:
            raise CrewBroken(
                f"rank {group.rank} of group {group.token} received forward {forward.number} but is at {self._number}, "
                "because a message was lost; the group is dropped: wait for the agent's next order.",
                group.leader,
            )
        if held_digest != forward.digest or self._resident.in_use != forward.weights:
            raise WeightsError(
                f"{forward.weights} has digest {forward.digest} at the leader of group {group.token} but "
                f"{self._resident.in_use} with {held_digest} is in use here, so the crew would mix two models; load "
                "the published set again."
            )


def _packed(x_BSC: Tensor, sigma_B: Tensor, cond: ConditionBatch, uncond: ConditionBatch | None) -> Tensor:
    """Pack all inputs into one row of fp32, which holds bf16 and masks exactly: one exchange instead of seven."""
    tensors = [x_BSC, sigma_B]
    for batch in (cond, uncond):
        if batch is not None:
            tensors += [batch.embeds, batch.mask, *([] if batch.pooled is None else [batch.pooled])]
    return torch.cat([tensor.to(device=x_BSC.device, dtype=torch.float32).flatten() for tensor in tensors])


def _shapes(forward: Forward) -> list[tuple[int, ...]]:
    rows, width = forward.rows, forward.text_width
    text: list[tuple[int, ...]] = [(rows, width, forward.text_dimension), (rows, width)]
    text += [(rows, forward.pooled)] if forward.pooled else []
    return [(rows, forward.tokens, forward.channels), (rows,), *text, *(text if forward.guided else [])]


def _length(forward: Forward) -> int:
    return sum(torch.Size(shape).numel() for shape in _shapes(forward))


def _unpacked(row: Tensor, forward: Forward) -> tuple[Tensor, Tensor, ConditionBatch, ConditionBatch | None]:
    """Unpack the inputs; embeddings stay fp32, and adapters cast them to their compute type."""
    shapes = _shapes(forward)
    flat = row.split([torch.Size(shape).numel() for shape in shapes])
    x_BSC, sigma_B, *text = (part.view(shape) for part, shape in zip(flat, shapes, strict=True))
    batches = [text] if not forward.guided else [text[: len(text) // 2], text[len(text) // 2 :]]
    cond, uncond = [_batch(part) for part in batches] + [None] * (2 - len(batches))
    assert cond is not None
    return x_BSC, sigma_B, cond, uncond


def _batch(parts: list[Tensor]) -> ConditionBatch:
    embeds_BTD, mask_BT, *pooled = parts
    return ConditionBatch(embeds_BTD, mask_BT.bool(), pooled[0] if pooled else None)

"""Training with the weights divided between the ranks: FSDP2, per transformer block and for the rest.

    join --the first gang--> sharded --the gang breaks--> the process must restart (RestartNeeded)

With adapters only the frozen base is divided: adapters stay whole on every rank, and their gradients are summed once
per optimizer step. In full fine-tuning theta, its copies and the moments are divided as well; FSDP2 sums their
gradients in every backward, without dividing by the number of ranks.

FSDP2 needs a default world, which exists in this mode only. It cannot be formed again in the same process, because
FSDP2 keeps its groups. All forwards gather weights, so every rank runs equally many, of the same weight sets, in the
same order (`part.py`), and a rank of a sharded gang cannot roll out alone.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from spotlight.compute.parallel.gang_group import GangGroup
from spotlight.compute.parallel.links import ExchangeFailure, first_line
from spotlight.compute.train.boxes import box_of
from spotlight.compute.weights.digest import fingerprint_of, partial_totals

NORM_EPS = 1e-6
"""Added to the norm when gradients are clipped, as in torch."""


def shard(transformer: nn.Module, gang: GangGroup) -> None:
    """Divide the weights between the ranks of the gang; adapters stay whole."""
    device = next(transformer.parameters()).device.type
    trained = {parameter for parameter in transformer.parameters() if parameter.requires_grad}
    frozen = {parameter for parameter in transformer.parameters() if not parameter.requires_grad}
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=PrefixStore("world", gang.store),
        rank=gang.rank,
        world_size=gang.ranks,
        timeout=timedelta(seconds=gang.links.limit_s),
    )
    mesh = init_device_mesh(device, (gang.ranks,))
    # Gradients of half-precision weights are summed in fp32.
    is_double = any(parameter.dtype is torch.float64 for parameter in trained)
    policy = MixedPrecisionPolicy(reduce_dtype=None if is_double else torch.float32)
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": policy,
        # Frozen forwards use other weights: what they gathered must not stay.
        "reshard_after_forward": True,
        "ignored_params": trained if frozen else None,
    }
    blocks = [block for child in transformer.children() if isinstance(child, nn.ModuleList) for block in child]
    for module in (*blocks, transformer):
        made: Any = fully_shard(module, **options)
        made.set_gradient_divide_factor(1.0)
        # Only NCCL has a reduction that also scales.
        made.set_force_sum_reduction_for_comms(True)


def abort_world() -> None:
    """End NCCL's exchanges of FSDP2 under way, from any thread; gloo's end when a peer's process ends."""
    if dist.is_initialized() and dist.get_backend() == "nccl":
        dist.distributed_c10d._abort_process_group()


def holds_shares(theta: Mapping[str, Tensor]) -> bool:
    """Whether the trained weights themselves are divided, as in full fine-tuning."""
    return any(isinstance(parameter, DTensor) for parameter in theta.values())


def sharded_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """This rank's rows of a whole tensor, divided as the parameter is."""
    if not isinstance(parameter, DTensor):
        return tensor
    box = box_of(parameter.detach())
    rows = tensor[box.offsets[0] : box.offsets[0] + len(box.data)].clone()
    return DTensor.from_local(
        rows, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
    )


def clip_sharded(gradients: list[Tensor], most: float, gang: GangGroup) -> Tensor:
    """Scale divided gradients down to this norm over all ranks; returns the norm, equal on all ranks."""
    rows = [box_of(gradient).data for gradient in gradients]
    own = sum(float(row.double().square().sum()) for row in rows)
    norm = torch.tensor(sum(gang.gather(own)), dtype=torch.float64).sqrt()
    scale = most / (norm + NORM_EPS)
    if scale < 1:
        for row in rows:
            row.mul_(float(scale))
    return norm


def whole(tensor: Tensor) -> Tensor:
    """A whole tensor from the rows of all ranks, which call this together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sharded_fingerprint(weights: Mapping[str, Tensor], gang: GangGroup) -> str:
    """Fingerprint of the whole weights, from sums over the rows of each rank."""
    boxes = {name: box_of(tensor.detach()) for name, tensor in weights.items()}
    starts = {name: box.offsets[0] * math.prod(box.shape[1:]) for name, box in boxes.items()}
    own = partial_totals({name: box.data for name, box in boxes.items()}, starts)
    totals = gang.gather(own)
    return fingerprint_of(weights, [sum(each) for each in zip(*totals, strict=True)])


@contextmanager
def exchanging(gang: GangGroup, operation: str) -> Iterator[None]:
    """Turn a failed exchange of FSDP2 into RankLost; gloo's errors have no class of their own."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).lower()
        if not (isinstance(error, dist.DistError) or "gloo" in text or "nccl" in text):
            raise
        raise gang.lost(operation, ExchangeFailure(None, first_line(error))) from None

"""Boxes of a trainer's tensors: a plain tensor is whole on this rank, a sharded one (a DTensor) is some of its rows."""

from collections.abc import Mapping

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Shard as Sharded

from spotlight.compute.weights.shards import Shard


def box_of(tensor: Tensor) -> Shard:
    """This rank's box of a tensor; it aliases the tensor."""
    if not isinstance(tensor, DTensor):
        return Shard.whole(tensor)
    shape, local = tuple(tensor.shape), tensor.to_local()
    # fully_shard divides the first dimension as torch.chunk does: all pieces but the last are equally long.
    assert tensor.placements == (Sharded(0),), f"{tensor.placements} is not a division of rows"
    piece = -(-shape[0] // tensor.device_mesh.size())
    start = min(piece * tensor.device_mesh.get_local_rank(), shape[0])
    return Shard(local, (start, *(0 for _ in shape[1:])), shape)


def own_boxes(state: Mapping[str, Tensor], rank: int, ranks: int) -> dict[str, Shard]:
    """Boxes that this rank writes: its rows of sharded tensors, and some of the others, divided by bytes."""
    plain = {name: tensor for name, tensor in state.items() if not isinstance(tensor, DTensor)}
    owner = owners({name: tensor.nbytes for name, tensor in plain.items()}, ranks)
    boxes = {name: box_of(tensor) for name, tensor in state.items() if owner.get(name, rank) == rank}
    return {name: box for name, box in boxes.items() if box.data.numel() or name in plain}


def owners(sizes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """Rank that writes each tensor: the largest first, each to the rank with the fewest bytes so far."""
    loads = [0] * ranks
    owner = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owner[name] = loads.index(min(loads))
        loads[owner[name]] += sizes[name]
    return owner

"""Who gets which tokens and which heads: contiguous, in rank order, as even as can be; free of torch.

Invariant: spans cover everything once, in order, and sizes differ by at most one unit, which is one head or
`TOKEN_MULTIPLE` tokens (tests/property/test_splits_property.py).
"""

from spotlight.core.errors import ConfigError

TOKEN_MULTIPLE = 4
"""Tokens are dealt in fours where there are enough of them: CPU matrix kernels may compute left-over rows by another
kernel, which moves the last bits (the rule for the rows of a forward, see compute/rollout/engine.py). On the processor
measured for this (AMD EPYC, torch 2.13) units of 1, 4 and 8 were all bit-identical at degrees 2 to 6, for 48, 255, 1020
and 1024 tokens in batches of 1 to 8 rows; four is kept for those where it matters."""


def split_sizes(length: int, parts: int, multiple: int = 1) -> tuple[int, ...]:
    """Sizes of `parts` contiguous pieces of `length`, the larger ones first.

    All are multiples of `multiple` but the last, which takes what is over; where there are too few for every part to
    get one such block, they are dealt one by one.
    """
    blocks, over = divmod(length, multiple)
    if blocks < parts:
        blocks, over, multiple = length, 0, 1
    share, extra = divmod(blocks, parts)
    sizes = [multiple * (share + (rank < extra)) for rank in range(parts)]
    sizes[-1] += over
    return tuple(sizes)


def spans(sizes: tuple[int, ...]) -> tuple[slice, ...]:
    """Where each piece lies in the whole."""
    starts = [sum(sizes[:rank]) for rank in range(len(sizes))]
    return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))


def legal_degrees(heads: int, slots: int) -> tuple[int, ...]:
    """Degrees that a crew can have: every rank needs a head of its own and a slot of its own."""
    return tuple(range(1, min(heads, slots) + 1))


def check_degree(degree: int, heads: int, slots: int) -> None:
    """Refuse a degree that this model or this node cannot have, and name those that they can."""
    legal = legal_degrees(heads, slots)
    if degree in legal:
        return
    limits = [f"the model has {heads} attention heads"] if degree > heads else []
    limits += [f"the node has {slots} slots"] if degree > slots else []
    reason = " and ".join(limits) or "a crew has at least one member"
    raise ConfigError(
        f"a crew of degree {degree} cannot be formed, because {reason} and every rank needs one of each; use a degree "
        f"from {', '.join(map(str, legal)) or 'a node with slots'}."
    )

"""Split of tokens and heads between ranks: contiguous, in rank order, as even as possible; free of torch.

Invariant: spans cover everything once, in order, and sizes differ by at most one unit, which is one head or
`TOKEN_MULTIPLE` tokens (tests/property/test_splits_property.py).
"""

from spotlight.core.errors import ConfigError

TOKEN_MULTIPLE = 4
"""Tokens are split in fours where there are enough of them: CPU matrix libraries may compute left-over rows by another
kernel, which moves the last bits (the rule for the rows of a forward, see compute/rollout/engine.py). On the measured
processor (AMD EPYC, torch 2.13) units of 1, 4 and 8 were all bit-identical at degrees 2 to 6, for 48, 255, 1020 and
1024 tokens in batches of 1 to 8 rows; other processors may need four."""


def split_sizes(length: int, parts: int, multiple: int = 1) -> tuple[int, ...]:
    """Sizes of `parts` contiguous pieces of `length`, the larger ones first.

    All but the last are multiples of `multiple`; the last also takes the remainder. If there are fewer blocks than
    parts, `multiple` is 1.
    """
    blocks, over = divmod(length, multiple)
    if blocks < parts:
        blocks, over, multiple = length, 0, 1
    share, extra = divmod(blocks, parts)
    sizes = [multiple * (share + (rank < extra)) for rank in range(parts)]
    sizes[-1] += over
    return tuple(sizes)


def spans(sizes: tuple[int, ...]) -> tuple[slice, ...]:
    """Slice of each piece in the whole."""
    starts = [sum(sizes[:rank]) for rank in range(len(sizes))]
    return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))


def legal_degrees(heads: int, slots: int) -> tuple[int, ...]:
    """Possible degrees of a crew: every rank needs its own head and its own slot."""
    return tuple(range(1, min(heads, slots) + 1))


def check_degree(degree: int, heads: int, slots: int) -> None:
    """Refuse a degree that this model or node cannot have; the error lists the legal ones."""
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

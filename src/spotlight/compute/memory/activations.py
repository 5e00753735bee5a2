"""Bytes of activations by rows, size and recomputed blocks, from the structure of the blocks; free of torch.

A block with two streams normalises and modulates each of them, attends over both together, and runs a feed-forward
layer on each. Per token, with c bytes of the compute type and 4 of float32, and D the model's width, autograd keeps:

    residuals         2 D c    inputs of both norms
    attention         4 D c    queries, keys, values and output
    norms of q and k           2 D c; in Python code also their squares' input, 2 D 4
    feed-forward      4 D c    input of the activation function
    adapted layers             their inputs in float32: one copy per layer in half precision, one per distinct input
                               otherwise, and the rank of each
    full fine-tuning  7 D 4    inputs of all linear layers and factors of scales and gates; 4 D 4 after the activation

A recomputed block keeps its input only (D c). While a block runs, further tensors are alive (`transient`,
`forward_bytes`). The counts are those of torch's allocator on the three families, also in the released sizes
(tests/unit/test_memory_activations.py).
"""

from dataclasses import dataclass

from spotlight.compute.models.blocks import TransformerShape

FLOAT = 4


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Tokens of one row."""

    image: int
    text: int

    @property
    def all(self) -> int:
        return self.image + self.text


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Bytes of the activations of one model in one precision."""

    shape: TransformerShape
    compute: int
    """Bytes of a number of the compute type."""
    rank: int | None
    """Rank of the adapters; None trains all weights."""

    def kept(self, tokens: Tokens) -> tuple[float, float]:
        """Bytes per row that the backward pass needs: of a block with two streams (the mean) and of a single one."""
        shape = self.shape
        image = tokens.image * self._dual() * shape.dual_blocks / max(1, shape.blocks)
        return tokens.all * self._double() + image, tokens.all * self._single() if shape.single_blocks else 0.0

    def input_bytes(self, tokens: Tokens) -> float:
        """Bytes per row of a block's input, which a recomputed block keeps."""
        return tokens.all * self.shape.width * self.compute

    def transient(self, tokens: Tokens) -> tuple[float, float]:
        """Bytes per row that are alive while a block runs forward or backward, beside those that are kept."""
        shape, width, hidden, compute = self.shape, self.shape.width, self.shape.hidden, self.compute
        if self.rank is None:
            double, single = 4 * width * FLOAT, 8 * width * FLOAT
        else:
            forward = 0
            if shape.structure.adapts_feed_forward:
                output = hidden * compute if compute < FLOAT else 0
                forward = output + shape.structure.alive_trained * width * compute + 2 * width * FLOAT
            double, single = max(forward, 2 * hidden * compute), (5 * width + 2 * hidden) * compute
        return tokens.image * double, tokens.all * single if shape.single_blocks else 0

    def forward_bytes(self, tokens: Tokens) -> float:
        """Peak per row of a forward without gradients."""
        shape, compute, structure = self.shape, self.compute, self.shape.structure
        width, hidden = shape.width, shape.hidden
        if self.rank is not None and structure.adapts_feed_forward:
            # An adapted layer in half precision: its result, a copy of its input and two float32 results.
            feed_forward = hidden * (compute + 2 * FLOAT) + (width * FLOAT if compute < FLOAT else 0)
        else:
            feed_forward = 2 * hidden * compute
        alive = structure.alive + (2 if shape.dual_blocks else 0)
        double = tokens.image * (alive * width * compute + feed_forward)
        double += tokens.text * structure.alive_text * width * compute
        single = tokens.all * (7 * width + 2 * hidden) * compute if shape.single_blocks else 0
        return max(double, single)

    def training_bytes(self, tokens: Tokens, rows: int, recomputed: int, halves: int = 1) -> int:
        """Peak of a forward and backward of `rows` rows where the first `recomputed` blocks are computed twice.

        Blocks are recomputed when all later ones have released theirs. `halves` is 2 where both halves of a guided
        velocity have gradients.
        """
        kept, transient = self.kept(tokens), self.transient(tokens)
        inputs = halves * recomputed * self.input_bytes(tokens)
        peak = inputs + halves * sum(self._kept_blocks(tokens, recomputed)) + max(transient)
        again = inputs + max(map(sum, zip(kept, transient, strict=True))) if recomputed else 0.0
        return round(rows * max(peak, again))

    def _kept_blocks(self, tokens: Tokens, recomputed: int) -> tuple[float, float]:
        """Bytes of all double and of all single blocks that are not recomputed; the first ones are."""
        double, single = self.kept(tokens)
        left = max(0, self.shape.blocks - recomputed)
        left_single = self.shape.all_blocks - max(recomputed, self.shape.blocks)
        return left * double, max(0, left_single) * single

    def _statistics(self) -> int:
        """Sums of the attention and both norms, per head."""
        return 3 * self.shape.heads * FLOAT

    def _norms(self) -> float:
        """Norms of queries and keys."""
        width, compute = self.shape.width, self.compute
        if self.shape.structure.fused_norms:
            return 2 * width * compute
        if self.rank is None:
            return 4 * width * FLOAT
        return 2 * width * (FLOAT + compute if compute < FLOAT else FLOAT)

    def _double(self) -> float:
        """Kept per token of a block with two streams."""
        width, hidden, compute = self.shape.width, self.shape.hidden, self.compute
        kept = 6 * width * compute + self._norms() + hidden * compute + self._statistics()
        if self.rank is None:
            return kept + 7 * width * FLOAT + hidden * FLOAT
        is_narrow = compute < FLOAT
        kept += (4 if is_narrow else 2) * width * FLOAT + 4 * self.rank * FLOAT
        if self.shape.structure.adapts_feed_forward:
            kept += (width + hidden) * FLOAT + 2 * self.rank * FLOAT
        return kept

    def _single(self) -> float:
        """Kept per token of a block with one stream; adapters change its queries, keys and values."""
        width, hidden, compute = self.shape.width, self.shape.hidden, self.compute
        kept = 5 * width * compute + self._norms() + hidden * compute + self._statistics()
        if self.rank is None:
            # Scales, gates and inputs; the last layer takes attention and feed-forward side by side.
            return kept + (3 + 5) * width * FLOAT
        return kept + (3 if compute < FLOAT else 1) * width * FLOAT + 3 * self.rank * FLOAT

    def _dual(self) -> float:
        """Kept per image token by a second attention, which adapters do not change."""
        kept = 4 * self.shape.width * self.compute + self._norms() + self._statistics()
        return kept + (2 * self.shape.width * FLOAT if self.rank is None else 0)

"""Section `model` of a recipe; free of torch."""

from spotlight.core.section import Section


class ModelConfig(Section):
    """Which weights are post-trained, and where."""

    name: str = "words"
    """A shipped family (words, words-large, scenes), a weights file, or what a run made: RUN, RUN/weights/FILE or
    RUN/checkpoints/STEP. A run copies all but the first into its folder when it starts."""
    device: str = "cpu"
    """cpu or cuda."""
    tf32: bool = False
    """On CUDA, let fp32 matmuls round their inputs to TF32: much faster; replayed log-probs then agree to 1e-5."""
    compile: bool = False
    """Compile the transformer: a minute at the start, then a batch of a given size runs up to 1.7 times faster."""

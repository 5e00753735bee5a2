"""Section `data` of a recipe; free of torch."""

from spotlight.core.section import Section


class DataConfig(Section):
    """Prompts of a run (docs/data_and_rewards.md)."""

    prompts: str = "train"
    """Training prompts: a split of the family (train, test), or a file. A .txt file has a prompt per line; the text
    between its only two double quotes is the target. A line of a .jsonl file is {"prompt": ..., "target": ...}, where
    the target may be left out likewise, or GenEval metadata."""
    size: str | None = None
    """Size of the images, HEIGHTxWIDTH in pixels; None: the model's usual size."""
    held_out: str = "test"
    """Prompts of the run's evaluations, named likewise. An evaluation uses `eval.prompts` of them, and repeats prompts
    with other seeds where there are fewer."""

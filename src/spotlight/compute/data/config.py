"""Section `data` of a recipe; free of torch."""

from pydantic import field_validator

from spotlight.core.section import Section


class DataConfig(Section):
    """Prompts of a run (docs/data_and_rewards.md)."""

    prompts: str = "train"
    """Training prompts: a split of the family (train, test), a shipped set (signs, objects,
    pictures), a file or a dataset. A .txt file has a prompt per line;
    the text between its only two double quotes is the target. A line of a .jsonl file is {"prompt": ..., "target":
    ...}, where the target may be left out likewise, or GenEval metadata. A .parquet file and a dataset (hf:owner/name,
    hf:owner/name:split, or a folder made by save_to_disk) have a column prompt and may have a column target."""
    size: str | None = None
    """Size of the images, HEIGHTxWIDTH in pixels; None: the model's usual size."""
    held_out: str | float = "test"
    """Prompts of the run's evaluations: named likewise, or a share between 0 and 1 of `prompts`, which is then not
    trained on. An evaluation uses `eval.prompts` of them, and repeats prompts with other seeds where there are
    fewer."""

    @field_validator("held_out")
    @classmethod
    def _is_a_share(cls, held_out: str | float) -> str | float:
        if isinstance(held_out, float) and not 0 < held_out < 1:
            raise ValueError("a share is between 0 and 1, so that both sets have prompts")
        return held_out

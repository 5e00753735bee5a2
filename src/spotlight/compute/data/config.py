"""Section `data` of a recipe; free of torch."""

from spotlight.core.section import Section


class DataConfig(Section):
    """What is drawn (docs/data_and_rewards.md)."""

    prompts: str = "train"
    """Prompts that are trained on: a split of the family (train, test), or a file. A .txt file has a prompt per line;
    what stands between its only two double quotes is the target. A line of a .jsonl file is {"prompt": ..., "target":
    ...}, where the target may be left out likewise, or GenEval metadata."""
    held_out: str = "test"
    """Prompts of the run's evaluations, named likewise; `eval.prompts` of them are drawn, and where there are fewer
    they are drawn again with other seeds."""

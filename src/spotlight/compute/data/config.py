"""Section `data` of a recipe; free of torch."""

from spotlight.core.section import Section


class DataConfig(Section):
    """What is drawn."""

    prompts: str = "train"
    """A split of the family's prompts (train, test), or a file: .txt with a prompt per line, .jsonl in GenEval's
    format."""

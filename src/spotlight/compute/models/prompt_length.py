"""Length of a prompt in tokens, as the pipeline of its family counts them; free of torch."""

from typing import Any

from spotlight.compute.models.family_registry import Family


def problem_with(family: Family, tokenizer: Any, text: str, most_tokens: int) -> str | None:
    """Why the prompt cannot be encoded; None if it can. `tokenizer` is the one that `family.tokenizer` names."""
    tokens = len(tokenizer(family.prompt_template.format(text)).input_ids) - family.template_tokens
    if tokens <= most_tokens:
        return None
    return (
        f"The prompt '{text[:40]}...' has {tokens} tokens, more than the {most_tokens} that can be encoded, "
        "because a prompt is never cut off; shorten it."
    )

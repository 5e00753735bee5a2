"""A plain function as a reward; parameters without a default distinguish it from a factory.

None: a factory, which returns a Reward. Two: a scoring function, called as f(images, prompts). Others are refused.
"""

import functools
import hashlib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spotlight.compute.rewards.protocol import Image, ScoringFunction
from spotlight.core.errors import RewardError
from spotlight.core.types import Prompt


class FunctionReward:
    """Scores by calling the function; its return value is checked as any reward's (`answers.py`)."""

    def __init__(self, name: str, function: ScoringFunction) -> None:
        self.name = name
        self.version = source_version(function)
        self._function = function

    def score(self, images: Sequence[Image], prompts: Sequence[Prompt]) -> Any:
        return self._function(images, prompts)


def is_scoring_function(name: str, found: Any) -> bool:
    """True if `found` is called with images and prompts; False for a factory."""
    if not callable(found):
        raise RewardError(
            f"'{name}' is a {type(found).__name__}, which cannot be called; name a function of (images, prompts), or a "
            "function or class without parameters that returns a reward."
        )
    if inspect.isclass(found):
        return False
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError:
        # Some functions in C have no signature.
        return False
    needed = [each.name for each in parameters if each.default is each.empty and each.kind not in VARIADIC]
    by_keyword = [each.name for each in parameters if each.name in needed and each.kind is each.KEYWORD_ONLY]
    if len(needed) not in (0, 2) or by_keyword:
        raise RewardError(
            f"'{name}' has {len(needed)} parameters without a default ({', '.join(needed)}), but a scoring function "
            "has two, images and prompts, passed by position, and a function that returns a reward has none; give the "
            "others defaults."
        )
    return bool(needed)


VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def source_version(function: Callable[..., object]) -> str:
    """Digest of the function's source file: any change there may change a score. Imported files are not covered."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    try:
        path = inspect.getsourcefile(function if inspect.isfunction(function) else type(function))
    except TypeError:
        path = None
    if path is None or not Path(path).is_file():
        return "source unknown"
    return f"source {hashlib.blake2b(Path(path).read_bytes(), digest_size=6).hexdigest()}"

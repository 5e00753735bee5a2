"""A plain function as a reward; parameters by position without a default distinguish it from a factory.

None: a factory, which returns a Reward. Two: a scoring function, called as f(images, prompts). Others are refused.
All other parameters are options, passed by keyword; those without a default are required.
"""

import functools
import hashlib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spotlight.compute.rewards.config import Options
from spotlight.compute.rewards.protocol import Image, ScoringFunction
from spotlight.core.errors import RewardError, suggestion
from spotlight.core.types import Prompt


class FunctionReward:
    """Scores by calling the function; its return value is checked as any reward's (`answers.py`)."""

    def __init__(self, name: str, function: ScoringFunction, options: Options) -> None:
        self.name = name
        self.version = source_version(function)
        self._function = functools.partial(function, **options)

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
    needed = [each.name for each in _parameters(found) if each.default is each.empty and each.kind in BY_POSITION]
    if len(needed) not in (0, 2):
        raise RewardError(
            f"'{name}' has {len(needed)} parameters by position without a default ({', '.join(needed)}), but a scoring "
            "function has two, images and prompts, and a function that returns a reward has none; give the others "
            "defaults, or make them options by keyword, after a `*`."
        )
    return bool(needed)


def check_options(name: str, found: Any, options: Options) -> None:
    """Raise if the factory or function does not take one of the options, or requires another one."""
    parameters = _parameters(found)
    known = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    taken = [each.name for each in known if each.default is not each.empty or each.kind is each.KEYWORD_ONLY]
    for option in options:
        if option not in taken and not any(each.kind is each.VAR_KEYWORD for each in parameters):
            advice = suggestion(option, taken) if taken else "it takes none."
            raise RewardError(f"the reward '{name}' does not take the option '{option}': {advice}")
    missing = [each.name for each in known if each.default is each.empty and each.kind is each.KEYWORD_ONLY]
    missing = [option for option in missing if option not in options]
    if missing:
        raise RewardError(
            f"the reward '{name}' needs the option '{missing[0]}', which is not set; set it in reward.options, or in "
            "the options of its entry in reward.terms."
        )


def _parameters(found: Any) -> list[inspect.Parameter]:
    """Parameters of a function, or of a class's constructor; none if it has no signature, as some functions in C."""
    try:
        return list(inspect.signature(found).parameters.values())
    except ValueError:
        return []


BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


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

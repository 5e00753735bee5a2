"""Spotlight: reinforcement-learning post-training of Diffusion Transformers on reserved and spot GPUs.

    import spotlight

    run = spotlight.train(spotlight.load_recipe("words-nft", iterations=4))
    run.status().state, run.curve()

The functions are loaded at their first use: every process of a run imports this package, and most need none of them.
"""

from typing import TYPE_CHECKING

from spotlight.core.processor import set_strict_rounding

if TYPE_CHECKING:
    from spotlight.core.errors import ConfigError as ConfigError
    from spotlight.core.errors import EnvironmentProblem as EnvironmentProblem
    from spotlight.core.errors import InputError as InputError
    from spotlight.core.errors import NothingToDo as NothingToDo
    from spotlight.core.errors import SpotlightError as SpotlightError
    from spotlight.core.errors import Stopped as Stopped
    from spotlight.surface.api import ComparedSetups as ComparedSetups
    from spotlight.surface.api import Recipe as Recipe
    from spotlight.surface.api import compare as compare
    from spotlight.surface.api import load_recipe as load_recipe
    from spotlight.surface.api import open as open
    from spotlight.surface.api import plan as plan
    from spotlight.surface.api import simulate as simulate
    from spotlight.surface.api import train as train
    from spotlight.surface.planning import Forecast as Forecast
    from spotlight.surface.run_handle import CurveRow as CurveRow
    from spotlight.surface.run_handle import IterationRow as IterationRow
    from spotlight.surface.run_handle import RunHandle as RunHandle
    from spotlight.surface.run_samples import RunSample as RunSample
    from spotlight.surface.status import Status as Status
else:
    _PUBLIC = {
        "spotlight.core.errors": (
            "ConfigError", "EnvironmentProblem", "InputError", "NothingToDo", "SpotlightError", "Stopped",
        ),
        "spotlight.surface.api": (
            "ComparedSetups", "Recipe", "compare", "load_recipe", "open", "plan", "simulate", "train",
        ),
        "spotlight.surface.planning": ("Forecast",),
        "spotlight.surface.run_handle": ("CurveRow", "IterationRow", "RunHandle"),
        "spotlight.surface.run_samples": ("RunSample",),
        "spotlight.surface.status": ("Status",),
    }  # fmt: skip
    _HOMES = {name: module for module, names in _PUBLIC.items() for name in names}

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'spotlight' has no attribute '{name}'")
        from importlib import import_module

        globals()[name] = found = getattr(import_module(_HOMES[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})


__version__ = "0.1.0"

# Here, because every process imports this before it computes anything.
set_strict_rounding()

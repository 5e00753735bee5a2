"""A real run whose nursery imports nothing, as on a machine with a GPU: python bare_run.py train recipe.yaml ..."""

from dataclasses import replace
from typing import Any

from spotlight.run import Run
from spotlight.surface.cli.main import main


def _bare(self: Run, token: str, plain: Any = Run.pool_settings) -> Any:
    return replace(plain(self, token), is_bare=True)


if __name__ == "__main__":
    Run.pool_settings = _bare  # type: ignore[method-assign]
    main()

"""Section `budget` of a recipe, and the limits that stop a run so that it can be resumed."""

from collections.abc import Callable

from pydantic import Field

from spotlight.core.errors import StopRequested
from spotlight.core.section import Section


class BudgetConfig(Section):
    """Limits of a run; None is no limit."""

    max_hours: float | None = Field(default=None, gt=0)
    """Hours since the run first started, over all its restarts."""
    max_dollars: float | None = Field(default=None, gt=0)
    """Dollars at list prices."""


class Budget:
    """Checked between iterations."""

    def __init__(
        self, config: BudgetConfig, hours: Callable[[], float], dollars: Callable[[], float], name: str
    ) -> None:
        self._config = config
        self._hours = hours
        self._dollars = dollars
        self._name = name
        self.drain_asked = False

    def check(self) -> None:
        """Raise StopRequested if the budget is spent or a drain was requested."""
        hours = self._hours()
        if self.drain_asked:
            raise StopRequested(f"the run was asked to drain; `spotlight resume {self._name}` continues it.")
        if self._config.max_hours is not None and hours >= self._config.max_hours:
            raise StopRequested(
                f"the run has used {hours:.2f} of its {self._config.max_hours:g} hours (budget.max_hours), so it "
                f"stops; `spotlight resume {self._name} --set budget.max_hours=H` continues it."
            )
        # The cost is added up only if there is a limit.
        if self._config.max_dollars is not None and (dollars := self._dollars()) >= self._config.max_dollars:
            raise StopRequested(
                f"the run has cost ${dollars:.2f} of its ${self._config.max_dollars:g} (budget.max_dollars), so it "
                f"stops; `spotlight resume {self._name} --set budget.max_dollars=D` continues it."
            )

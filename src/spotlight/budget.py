"""Section `budget` of a recipe, and the limits that stop a run so that it can be resumed."""

from collections.abc import Callable

from pydantic import Field

from spotlight.compute.train.config import AUTO
from spotlight.control.market.allowance import Allowance
from spotlight.control.market.bill import HOUR_S
from spotlight.control.market.prices import PriceTable
from spotlight.core.errors import ConfigError, StopRequested
from spotlight.core.section import Section
from spotlight.core.work import SlotClass
from spotlight.pools.config import ClusterConfig, MarketConfig
from spotlight.pools.market import Purse


class BudgetConfig(Section):
    """Limits of a run; None is no limit."""

    max_hours: float | None = Field(default=None, gt=0)
    """Hours since the run first started, over all its restarts."""
    max_dollars: float | None = Field(default=None, gt=0)
    """Dollars at list prices."""

    def check_fallback(self, market: MarketConfig) -> None:
        """Refuse stand-ins by limits in a run without limits."""
        if market.fallback_s == AUTO and self.max_hours is None and self.max_dollars is None:
            raise ConfigError(
                "market.fallback_s is auto but neither budget.max_hours nor budget.max_dollars is set, so nothing says "
                "when an on-demand price is worth paying; set one of them, or market.fallback_s to seconds or null."
            )


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

    def purse(self, iterations: int, cluster: ClusterConfig, market: MarketConfig, prices: PriceTable) -> Purse | None:
        """What may be spent on stand-ins; None unless these limits decide about them."""
        if market.fallback_s != AUTO:
            return None
        limits, per_slot = self._config, prices[market.reserved_price].per_gpu_hour(SlotClass.RESERVED)
        allowance = Allowance(
            iterations=iterations,
            max_s=None if limits.max_hours is None else limits.max_hours * HOUR_S,
            max_dollars=limits.max_dollars,
            dollars_per_s=(cluster.reserved + cluster.spot) * cluster.slots * per_slot / HOUR_S,
        )
        return Purse(allowance, self._dollars)

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

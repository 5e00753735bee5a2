"""Budgets stop a run so that it can be resumed."""

import pytest

from spotlight.budget import Budget, BudgetConfig
from spotlight.core.errors import Stopped


def budget(config: BudgetConfig, hours: float = 0.0, dollars: float = 0.0) -> Budget:
    return Budget(config, lambda: hours, lambda: dollars, "demo-1")


def test_run_within_its_budget_goes_on() -> None:
    within = [
        budget(BudgetConfig(max_hours=2, max_dollars=3), hours=1.9, dollars=2.9),
        budget(BudgetConfig(), hours=1e6, dollars=1e6),
    ]
    assert [each.check() for each in within] == [None, None]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (BudgetConfig(max_hours=2), r"2.50 of its 2 hours .* `spotlight resume demo-1 --set budget.max_hours"),
        (BudgetConfig(max_dollars=3), r"\$4.00 of its \$3 .* `spotlight resume demo-1 --set budget.max_dollars"),
    ],
)
def test_spent_budget_stops_the_run_and_names_how_to_resume(config: BudgetConfig, sentence: str) -> None:
    with pytest.raises(Stopped, match=sentence) as stopped:
        budget(config, hours=2.5, dollars=4.0).check()
    assert stopped.value.exit_code == 4


def test_drain_stops_the_run_whatever_the_budget() -> None:
    asked = budget(BudgetConfig())
    asked.drain_asked = True
    with pytest.raises(Stopped, match="asked to drain; `spotlight resume demo-1`"):
        asked.check()

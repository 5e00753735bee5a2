"""What a run will take, before it is run: `forecast` of a workload on a fleet."""

from spotlight.control.forecast.asked import NEEDED, Durations, Evaluations, Fleet, Rates, Workload
from spotlight.control.forecast.forecast import Forecast, Phases, for_spot_counts, forecast

__all__ = [
    "NEEDED",
    "Durations",
    "Evaluations",
    "Fleet",
    "Forecast",
    "Phases",
    "Rates",
    "Workload",
    "for_spot_counts",
    "forecast",
]

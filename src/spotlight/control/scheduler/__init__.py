"""The pull scheduler: order of service, shares by speed, stragglers and notices."""

from spotlight.control.scheduler.pulls import Assignment, Lease, Recalled
from spotlight.control.scheduler.scheduler import Scheduler
from spotlight.control.scheduler.settings import SchedulerSettings

__all__ = ["Assignment", "Lease", "Recalled", "Scheduler", "SchedulerSettings"]

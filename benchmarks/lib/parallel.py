"""Independent tasks in several processes; a task that ended leaves its own file, so a repeated command resumes."""

import multiprocessing
import os
from argparse import _ActionsContainer
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

from rich.console import Console
from rich.progress import track

TaskT = TypeVar("TaskT")


def add_jobs(parser: _ActionsContainer) -> None:
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes; default: all cores")


def run_all(work: Callable[[TaskT], None], tasks: Sequence[TaskT], jobs: int, what: str) -> None:
    """Run `work` on every task, in their order, in at most `jobs` processes; one job runs in this process.

    Processes are spawned, so that each may use a GPU. After a task that fails the others still run; then its error is
    raised.
    """
    console = Console(stderr=True)
    if jobs <= 1 or len(tasks) <= 1:
        for task in track(tasks, what, console=console):
            work(task)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=context) as processes:
        waiting = [processes.submit(work, task) for task in tasks]
        ended = list(track(as_completed(waiting), what, len(tasks), console=console))
    for future in ended:
        future.result()

"""One process of a `Company`: a slot that computes or rests on order.

    python -m spotlight.compute.profiling.neighbour MODEL THREADS

Reads orders from standard input and acknowledges them on standard output (`company.py`). While it computes it polls for
an order between two steps; at rest it waits for one.
"""

import os
import select
import signal
import sys

from spotlight.compute.profiling.company import REST, WORK
from spotlight.compute.profiling.provenance import use_threads
from spotlight.compute.profiling.slot_at_work import SlotAtWork
from spotlight.compute.profiling.subject import tiny_subject

ROWS = 8
"""Rows of every step: about the efficient batch of one core."""
STDIN, STDOUT, STDERR = 0, 1, 2


def main(model: str, threads: str) -> None:
    # A terminal sends SIGINT to all its processes, but this one ends when its owner's pipe closes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The reward process inherits standard output, and must not keep the pipe open after this process ends.
    answers = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    use_threads(int(threads))
    subject = tiny_subject(model, "cpu")
    assert subject.world is not None
    with SlotAtWork(subject, subject.world) as slot:
        # The second wave includes scoring, so that every code path has run once before a measurement.
        slot.wave(ROWS)
        slot.wave(ROWS)
        _serve(slot, answers)


def _serve(slot: SlotAtWork, answers: int) -> None:
    order = REST
    os.write(answers, order)
    while True:
        if order == WORK and not select.select([STDIN], [], [], 0)[0]:
            slot.step(ROWS)
            continue
        order = os.read(STDIN, 1)
        if not order:
            return
        os.write(answers, order)


if __name__ == "__main__":
    main(*sys.argv[1:])

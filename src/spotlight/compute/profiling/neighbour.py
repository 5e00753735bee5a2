"""One of a company: a slot that works while it is told to.

    python -m spotlight.compute.profiling.neighbour MODEL THREADS

Orders come in by standard input and are answered by standard output, as `company.py` says. Between two steps it looks
for an order; at rest it waits for one.
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
"""Of every step: about as many as a core denoises efficiently."""
STDIN, STDOUT, STDERR = 0, 1, 2


def main(model: str, threads: str) -> None:
    # A terminal interrupts all its processes: this one leaves when its owner does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The judge inherits standard output, and must not keep it open when this process is gone.
    answers = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    use_threads(int(threads))
    subject = tiny_subject(model, "cpu")
    assert subject.world is not None
    with SlotAtWork(subject, subject.world) as slot:
        # Judged when the second wave ends: nothing is done for the first time while somebody is timed.
        slot.wave(ROWS)
        slot.wave(ROWS)
        _obey(slot, answers)


def _obey(slot: SlotAtWork, answers: int) -> None:
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

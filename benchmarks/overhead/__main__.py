"""Cost of commits and scheduling relative to the rollout itself, on `words`: one worker, the real controller's code.

    python -m benchmarks.overhead [--json] [--out docs/results/overhead]

One worker rolls out batch after batch. Its denoising steps are timed separately from everything that exists only
because machines may vanish: flights at every second step, messages over a socket and back, ledger, scheduler and
journal (on disk, synced as a run does by default). Both are in one process and one run; the figure is their ratio.
Scoring and decoding are left out: they are needed anyway.
"""

from benchmarks.lib.command import parser, start


def main() -> None:
    args = parser("overhead", __doc__).parse_args()
    from benchmarks.lib.report import publish, summary_of
    from benchmarks.overhead.run import REPEATS, SETTINGS, figures

    publish(summary_of("overhead", figures(), range(REPEATS), settings=SETTINGS), args.out, args.json)


if __name__ == "__main__":
    start("overhead", main)

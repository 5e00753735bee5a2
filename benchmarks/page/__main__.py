"""How smooth the live page's timeline is with 64 slots and 24 hours, in a headless Chromium.

    python -m benchmarks.page [--slots 64] [--hours 24] [--json] [--out docs/results/page]

A journal of that size is made up: iterations of 40 s with rollouts, previews and training, and a spot machine that goes
every ten minutes. The page is opened, and a script zooms and moves for some hundred frames. Measured are the time that
the page needs to draw a frame, the time from frame to frame, and the server's processor time for a window. The same is
done with 4 slots and 10 minutes: the ratio says what size costs. Needs playwright and a Chromium.
"""

from benchmarks.lib.command import parser, start


def main() -> None:
    arguments = parser("page", __doc__)
    arguments.add_argument("--slots", type=int, default=64, help="slots of the large run, an eighth of them reserved")
    arguments.add_argument("--hours", type=float, default=24.0, help="run time of the large run")
    arguments.add_argument("--frames", type=int, default=300, help="frames per round")
    arguments.add_argument("--rounds", type=int, default=3, help="rounds of zooming and moving")
    args = arguments.parse_args()
    from benchmarks.lib.report import publish, summary_of
    from benchmarks.page.run import measure

    figures, facts = measure(args.slots, args.hours, args.frames, args.rounds)
    publish(summary_of("page", figures, range(args.rounds), **facts), args.out, args.json)


if __name__ == "__main__":
    start("page", main)

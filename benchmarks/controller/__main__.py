"""Processor time and memory of the controller, by the size of the samples' tensors and with a thousand agents.

    python -m benchmarks.controller [--agents 1000] [--json] [--out docs/results/controller]

The controller's own code (door, hub, dispatcher, ledger, scheduler, journal) runs in one process and is measured;
agents that compute nothing run in another and connect over loopback sockets. First 16 agents return samples at one
pace, with tensors of 0.1, 1 and 16 MB. Then a thousand agents take the seconds per step of the 512x512 profile (40
steps, 8 rows, a commit every 2 steps, heartbeats).
"""

from benchmarks.lib.command import parser, start


def main() -> None:
    arguments = parser("controller", __doc__)
    arguments.add_argument("--agents", type=int, default=1000, help="agents of the second part")
    arguments.add_argument("--seconds", type=float, default=60.0, help="measured seconds of the second part")
    arguments.add_argument("--repeats", type=int, default=3, help="repeats of the first part")
    args = arguments.parse_args()
    from benchmarks.controller.run import measure
    from benchmarks.lib.report import publish, summary_of

    figures = measure(args.agents, args.seconds, args.repeats)
    publish(summary_of("controller", figures, range(args.repeats), agents=args.agents), args.out, args.json)


if __name__ == "__main__":
    start("controller", main)

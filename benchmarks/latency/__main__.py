"""What latency and lost packets between machines cost a run: throughput and weights, beside the loopback device.

    python -m benchmarks.latency [--rounds 3] [--iterations 3] [--json] [--out docs/results/latency]

A run, paced by the profile of Qwen-Image at 512 pixels on an H200, is in one network namespace, and two machines that
join it in another. Between them is a link of `--mbit` that delays every packet by `--ms` in each direction and loses
`--loss` of them; a process relays the packets, so the kernel's TCP sees the losses. For the comparison the machines
join over the loopback device. Measured in turn: samples per second over whole iterations, rollouts of the two machines
per second, and the time of a file of `--megabytes` from the run's blob server, as published weights travel. They
depend on the congestion control of the system, which is in the result. Needs root, `ip` of iproute2 and /dev/net/tun.
"""

from benchmarks.lib.command import parser, start


def main() -> None:
    flags = parser("latency", __doc__)
    flags.add_argument("--rounds", type=int, default=3, help="pairs of runs; default 3")
    flags.add_argument("--iterations", type=int, default=3, help="measured iterations of a run; default 3")
    flags.add_argument("--ms", type=float, default=50.0, help="latency of each direction; default 50")
    flags.add_argument("--loss", type=float, default=0.01, help="share of lost packets; default 0.01")
    flags.add_argument("--mbit", type=float, default=100.0, help="bandwidth of each direction; default 100")
    flags.add_argument("--megabytes", type=int, default=50, help="size of the file; default 50")
    flags.add_argument("--control", default="", help="TCP congestion control; default the system's")
    args = flags.parse_args()
    from benchmarks.latency.run import Setup, figures_of, measure
    from benchmarks.lib.report import publish, summary_of

    setup = Setup(
        iterations=args.iterations,
        ms=args.ms,
        loss=args.loss,
        mbit=args.mbit,
        megabytes=args.megabytes,
        control=args.control,
    )
    control, rounds = measure(setup, args.rounds)
    summary = summary_of("latency", figures_of(rounds), range(args.rounds), settings=setup, congestion_control=control)
    publish(summary, args.out, args.json, rounds=rounds)


if __name__ == "__main__":
    start("latency", main)

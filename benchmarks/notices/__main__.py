"""How soon the scheduler acts on a preemption notice, and how often 5 seconds of notice suffice, with real processes.

    python -m benchmarks.notices [--tries 100] [--json] [--out docs/results/notices]

A run of `--nodes` spot nodes, paced by the profile of Qwen-Image at 512 pixels on an H200, reads notices from a fake
metadata service (AWS, GCP, Azure) and from a file, each node its own, in turn. A try begins while the node holds
samples: a notice of `--seconds` becomes visible, and is withdrawn after its deadline. Measured: the time from visible
to the scheduler, from withdrawn to the scheduler, and whether at the deadline the node holds no sample whose steps a
kill would lose, because each is finished or committed on the reserved node. Nothing is killed, and the bytes of paced
samples are small. With `--out`, finished tries are kept in OUT-tries.json, and a repeated command continues.
"""

from benchmarks.lib.command import parser, start


def main() -> None:
    flags = parser("notices", __doc__)
    flags.add_argument("--tries", type=int, default=100, help="number of notices; default 100")
    flags.add_argument("--nodes", type=int, default=4, help="spot nodes that are tried at once; default 4")
    flags.add_argument("--seconds", type=float, default=5.0, help="length of a notice; default 5")
    args = flags.parse_args()
    from benchmarks.lib.report import publish, summary_of
    from benchmarks.notices.run import Setup, figures_of, measure

    kept = args.out.with_name(f"{args.out.name}-tries.json") if args.out else None
    setup = Setup(nodes=args.nodes, seconds=args.seconds)
    tries = measure(setup, args.tries, kept)
    publish(summary_of("notices", figures_of(tries), [], settings=setup), args.out, args.json, tries=tries)


if __name__ == "__main__":
    start("notices", main)

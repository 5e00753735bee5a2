"""The whole product with a model of released size and random weights on one GPU, beside the profile's prediction.

    python -m benchmarks.real_model [--family qwen-image] [--json] [--out docs/results/real_model]

`spotlight train` runs a shipped recipe, cut to a few prompts and groups: one reserved and one spot process share the
GPU, idle ones preview, and the spot process is killed once, in mid-flight. The run must end with a clean audit. Seconds
of phases come from its journal; the peak of the GPU's memory and the share of time in which it ran a kernel come from
its driver. The prediction is the simulator's, with the shipped profile, which assumes a GPU of its own per process.
"""

from benchmarks.lib.command import parser, start


def main() -> None:
    arguments = parser("real_model", __doc__)
    arguments.add_argument("--family", default="qwen-image", help="a family of docs/models.md")
    arguments.add_argument("--tiny", action="store_true", help="random-tiny weights on a CPU, to try the benchmark")
    arguments.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the run")
    args = arguments.parse_args()
    from benchmarks.lib.report import publish, summary_of
    from benchmarks.real_model.run import measure

    figures, settings = measure(args.family, args.tiny, args.set)
    publish(summary_of("real_model", figures, [0], settings=settings), args.out, args.json)


if __name__ == "__main__":
    start("real_model", main)

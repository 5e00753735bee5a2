"""The shipped base models: held-out scores at 10 steps without guidance, and sampling speed on this machine.

python -m benchmarks.base_models [--json] [--out docs/results/base-models]
"""

from pathlib import Path

from benchmarks.lib.command import parser, start


def main() -> None:
    args = parser("base_models", __doc__, out=Path("runs/base-models")).parse_args()
    from benchmarks.base_models.run import figures
    from benchmarks.lib.report import publish, summary_of

    publish(summary_of("base_models", figures(), [0]), args.out, args.json)


if __name__ == "__main__":
    start("base_models", main)

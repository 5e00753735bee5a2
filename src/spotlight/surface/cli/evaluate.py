"""`spotlight evaluate`: the held-out score of a checkpoint, with its interval and a picture grid."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.core.errors import InputError
from spotlight.surface.cli.hints import hint
from spotlight.surface.cli.progress import PatientProgress
from spotlight.surface.json_output import print_json

if TYPE_CHECKING:
    from spotlight.compute.data.worlds import World
    from spotlight.compute.scores import Estimate, Evaluation
    from spotlight.core.types import Prompt

DEFAULT_COUNT = 192
GRID_COLUMNS = 8
GRID_PICTURES = 64


def evaluate(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help="words, words-large, scenes, a weights file, a run, one of its checkpoints, or the folder or hub id "
            "of a Qwen-Image."
        ),
    ],
    prompts: Annotated[
        str, typer.Option(help="A split (test, train), a .txt, .jsonl or .parquet file, or a dataset (hf:owner/name).")
    ] = "test",
    steps: Annotated[int, typer.Option(min=1, help="Denoising steps.")] = 10,
    count: Annotated[
        int | None, typer.Option(min=1, help=f"Pictures; default {DEFAULT_COUNT} of a split, or all of a file.")
    ] = None,
    guidance: Annotated[float, typer.Option(min=1.0, help="Scale of classifier-free guidance; 1 is without.")] = 1.0,
    size: Annotated[str | None, typer.Option(help="HEIGHTxWIDTH; default what the model was trained at.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Pictures per forward.")] = None,
    reward: Annotated[str | None, typer.Option(help="Name or package.module:function; default the family's.")] = None,
    judge: Annotated[bool, typer.Option(help="Also score with the family's second judge.")] = True,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    processes: Annotated[int, typer.Option(min=1, help="Reward processes.")] = 2,
    grid: Annotated[Path | None, typer.Option(help="Write the first pictures to this PNG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Score a checkpoint on fixed prompts and seeds. Equal checkpoints give equal figures."""
    _check_grid(grid)
    _check_reward(reward)
    with PatientProgress() as progress, _safe_path():
        progress.report("loading", 0, 1)
        from spotlight.compute.evaluation import evaluate as scored_on
        from spotlight.compute.models.loaded import load_checkpoint
        from spotlight.compute.rewards.reward_pool import RewardPool
        from spotlight.compute.rewards.tracebacks import named_tracebacks
        from spotlight.compute.scores import EVALUATION_SEED
        from spotlight.core.types import Sampling, Size

        model = load_checkpoint(checkpoint, device, Size.parse(size) if size else None)
        chosen = prompts_to_draw(prompts, model.world, count)
        model.adapter.encode(chosen)
        rewards = judges(model.world, reward, judge)
        sampling = Sampling(steps=steps, size=model.size, guidance=guidance)
        with named_tracebacks(), RewardPool(processes) as pool:
            versions = {name: pool.version(name) for name in rewards}
            progress.report("loading", 1, 1)
            scored = scored_on(
                model.adapter, chosen, sampling, rewards, pool, batch or model.batch,
                progress=lambda stage, done: progress.report(stage, done, len(chosen)),
            )  # fmt: skip
    if grid is not None:
        _write_grid(scored, grid)
    about = {
        "checkpoint": checkpoint, "weights": model.source.location, "digest": model.digest,
        "family": model.adapter.family, "prompts": prompts,
        "size": str(model.size), "count": len(chosen),
        "steps": steps, "guidance": guidance, "seed": EVALUATION_SEED, "rewards": versions,
    }  # fmt: skip
    _show(about, scored.figures(), rewards, as_json)


def judges(world: "World | None", reward: str | None, judged: bool) -> list[str]:
    """The named reward or the world's, then the world's second judge if it is requested."""
    if world is None:
        if reward is None:
            raise InputError("this model has no reward of its own, so nothing would be scored; name one with --reward.")
        return [reward]
    return [reward or world.reward, *([world.judge] if judged else [])]


def prompts_to_draw(source: str, world: "World | None", count: int | None) -> "list[Prompt]":
    """All prompts of a file, or `count` prompts in a fixed order that alternates tasks."""
    from spotlight.compute.data.order import PromptOrder
    from spotlight.compute.data.prompts import load_prompts
    from spotlight.compute.data.worlds import HELD_OUT_ORDER

    known = load_prompts(source, world)
    if count is None and Path(source).is_file():
        return known
    return PromptOrder(known, HELD_OUT_ORDER).take(0, count or DEFAULT_COUNT)


@contextmanager
def _safe_path() -> Iterator[None]:
    """Keep the working folder off the path of reward processes: it may be an untrusted run's folder."""
    name = "PYTHONSAFEPATH"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _check_reward(reward: str | None) -> None:
    from spotlight.compute.rewards import registry

    if reward is not None:
        registry.check_name(reward)


def _check_grid(grid: Path | None) -> None:
    """Before anything is drawn, so that a long evaluation is not lost to a misspelt path."""
    if grid is not None and grid.suffix.lower() != ".png":
        raise InputError(f"the grid {grid} is not named as a PNG, which is all that is written; end it in .png.")
    if grid is not None and not grid.parent.is_dir():
        raise InputError(f"the grid {grid} cannot be written: there is no folder {grid.parent}; make it first.")


def _write_grid(scored: "Evaluation", path: Path) -> None:
    from spotlight.compute.scores import picture_grid

    pictures = scored.images[:GRID_PICTURES]
    picture_grid(pictures, min(GRID_COLUMNS, len(pictures))).save(path)


def _show(about: Mapping[str, object], figures: "Mapping[str, Estimate]", rewards: list[str], as_json: bool) -> None:
    """Print one JSON line or a table."""
    if as_json:
        print_json({**about, "figures": {name: vars(figure) for name, figure in figures.items()}})
        return
    from rich.table import Table

    from spotlight.surface.terminal import terminal

    console = terminal()
    asked, found = Path(str(about["checkpoint"])), Path(str(about["weights"]))
    chosen = "" if asked.stem == found.stem else f" ({found.name})"
    settings = "{count} pictures of {prompts}, {steps} steps, guidance {guidance}".format(**about)
    console.print(f"{asked}{chosen}: {settings}", soft_wrap=True, highlight=False)
    table = Table()
    table.add_column("figure")
    table.add_column("mean", justify="right")
    table.add_column("95 % interval", justify="right")
    named = {"reward": f"reward ({rewards[0]})", "judge": f"judge ({rewards[-1]})", "geneval": "GenEval overall"}
    for name, figure in figures.items():
        table.add_row(named.get(name, name), f"{figure.value:.3f}", f"{figure.low:.3f} .. {figure.high:.3f}")
    console.print(table)
    hint("sample", asked, "--prompt", '"..."', why="pictures of it")

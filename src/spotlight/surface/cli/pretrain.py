"""`spotlight pretrain`: make the base weights of a tiny family from rendered pictures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.surface.json_output import print_json

if TYPE_CHECKING:
    from rich.console import Console

    from spotlight.compute.pretrain.pretrainer import PretrainCheckpoint, Pretrainer
    from spotlight.compute.rewards.reward_pool import RewardPool


def pretrain(
    family: Annotated[str, typer.Argument(help="words, words-large or scenes")],
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Folder for checkpoints; default runs/pretrain-FAMILY.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps at most.")] = 20_000,
    batch: Annotated[int, typer.Option(min=1, help="Pictures per step.")] = 512,
    bank: Annotated[int, typer.Option(min=1, help="Pictures rendered before training.")] = 150_000,
    lr: Annotated[float, typer.Option(min=1e-8, help="Learning rate after warm-up.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="Seed of data, weights and noise.")] = 0,
    evaluate_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints and evaluations.")] = 1000,
    until: Annotated[float | None, typer.Option(help="Stop at this strict held-out score.")] = None,
    processes: Annotated[int, typer.Option(min=1, help="Processes that render and score.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Pretrain a tiny family on rendered pictures. Run it again to resume."""

    from spotlight.compute.data.worlds import world
    from spotlight.compute.models.families import usable_device
    from spotlight.compute.pretrain.bank import render_bank
    from spotlight.compute.pretrain.config import PretrainConfig
    from spotlight.compute.pretrain.pretrainer import Pretrainer, check_resumable
    from spotlight.compute.rewards.reward_pool import RewardPool
    from spotlight.surface.terminal import terminal

    world(family)
    usable_device(device)
    folder = out or Path("runs") / f"pretrain-{family}"
    config = PretrainConfig(
        steps=steps, batch=batch, bank=bank, lr=lr, seed=seed, evaluate_every=evaluate_every, until=until
    )
    check_resumable(folder, family, config)
    console = terminal(stderr=True)
    with console.status(f"rendering {bank} pictures") as status, RewardPool(processes) as pool:
        pictures = render_bank(
            family, seed, bank, processes, lambda done: status.update(f"rendered {done} of {bank} pictures")
        )
        status.stop()
        trainer = Pretrainer(family, config, pictures, device)
        if trainer.resume(folder):
            console.print(f"resumed {folder} at step {trainer.step}")
        last = train(trainer, folder, pool, console)
    if as_json and last is not None:
        print_json(last)


def train(trainer: "Pretrainer", folder: Path, pool: "RewardPool", console: "Console") -> "PretrainCheckpoint | None":
    """Advance from checkpoint to checkpoint until the steps are done or the score is reached."""
    from rich.progress import Progress

    from spotlight.compute.pretrain.pretrainer import write_checkpoint

    config = trainer.config
    last: PretrainCheckpoint | None = None
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("pretraining", total=config.steps, completed=trainer.step)
        while trainer.step < config.steps:
            stop = min(config.steps, (trainer.step // config.evaluate_every + 1) * config.evaluate_every)
            trainer.advance(
                stop, lambda step, loss: progress.update(task, completed=step, description=f"loss {loss:.4f}")
            )
            last = write_checkpoint(trainer, folder, pool)
            strict = last.strict or 0.0
            console.print(f"step {last.step}  strict {strict:.3f}  graded {last.graded:.3f}", soft_wrap=True)
            if config.until is not None and strict >= config.until:
                break
    return last

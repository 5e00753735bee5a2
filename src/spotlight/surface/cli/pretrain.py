"""`spotlight pretrain`: make the base weights of a tiny family from rendered pictures."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from spotlight.compute.evaluation import Evaluation
    from spotlight.compute.pretrain.pretrainer import Pretrainer
    from spotlight.compute.rewards.pool import RewardPool


def pretrain(
    family: Annotated[str, typer.Argument(help="words, words-large or scenes")],
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Folder for checkpoints; default runs/pretrain-FAMILY.")] = None,
    steps: Annotated[int, typer.Option(help="Optimizer steps at most.")] = 20_000,
    batch: Annotated[int, typer.Option(help="Pictures per step.")] = 512,
    bank: Annotated[int, typer.Option(help="Pictures rendered before training.")] = 150_000,
    lr: Annotated[float, typer.Option(help="Learning rate after warm-up.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="Seed of data, weights and noise.")] = 0,
    evaluate_every: Annotated[int, typer.Option(help="Steps between checkpoints and evaluations.")] = 1000,
    until: Annotated[float | None, typer.Option(help="Stop at this strict held-out score.")] = None,
    processes: Annotated[int, typer.Option(help="Processes that render and score.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Pretrain a tiny family on rendered pictures; run it again to resume."""
    from rich.console import Console
    from rich.progress import Progress

    from spotlight.compute.data.worlds import world
    from spotlight.compute.pretrain.bank import render_bank
    from spotlight.compute.pretrain.config import PretrainConfig
    from spotlight.compute.pretrain.pretrainer import Pretrainer
    from spotlight.compute.rewards.pool import RewardPool

    world(family)
    folder = out or Path("runs") / f"pretrain-{family}"
    config = PretrainConfig(
        steps=steps, batch=batch, bank=bank, lr=lr, seed=seed, evaluate_every=evaluate_every, until=until
    )
    console = Console(stderr=True)
    with (
        Progress(console=console, disable=not console.is_terminal) as progress,
        RewardPool(processes) as pool,
    ):
        rendering = progress.add_task(f"rendering {bank} pictures", total=bank)
        pictures = render_bank(family, seed, bank, processes, lambda done: progress.update(rendering, completed=done))
        trainer = Pretrainer(family, config, pictures, device)
        if trainer.resume(folder):
            console.print(f"resumed {folder} at step {trainer.step}")
        training = progress.add_task("pretraining", total=steps, completed=trainer.step)
        result: dict[str, float | str] = {}
        while trainer.step < steps:
            stop = min(steps, (trainer.step // evaluate_every + 1) * evaluate_every)
            started = time.monotonic()
            begun = trainer.step
            trainer.advance(
                stop,
                lambda step, loss: progress.update(
                    training, completed=step, description=f"pretraining, loss {loss:.4f}"
                ),
            )
            rate = (trainer.step - begun) / (time.monotonic() - started)
            result = checkpoint(trainer, folder, pool)
            console.print(f"{rate:.1f} steps/s  " + "  ".join(f"{name} {value}" for name, value in result.items()))
            if until is not None and float(result["strict"]) >= until:
                break
    if as_json:
        print(json.dumps(result))


def checkpoint(trainer: "Pretrainer", folder: Path, pool: "RewardPool") -> "dict[str, float | str]":
    """Save the state, write the EMA weights, and score them on held-out prompts."""
    from spotlight.compute.evaluation import picture_grid
    from spotlight.compute.weights import files

    trainer.save(folder)
    adapter = trainer.ema_adapter()
    name = trainer.spec.family
    weights = {key: tensor.bfloat16() for key, tensor in adapter.transformer.state_dict().items()}
    digest = files.write(folder / f"{name}-{trainer.step:06d}.safetensors", name, weights)
    scored = held_out(trainer, pool)
    picture_grid(scored.images[:48], 6).save(folder / f"{name}-{trainer.step:06d}.png")
    strict = scored.geneval_overall() if name == "scenes" else scored.estimate(0, "exact").value
    record: dict[str, float | str] = {
        "step": trainer.step,
        "strict": round(strict, 4),
        "graded": round(scored.estimate().value, 4),
        "digest": digest,
    }
    with (folder / "evaluations.jsonl").open("a") as log:
        log.write(json.dumps(record) + "\n")
    return record


def held_out(trainer: "Pretrainer", pool: "RewardPool") -> "Evaluation":
    """The EMA weights on the first held-out prompts, 10 steps, no guidance."""
    from spotlight.compute.data.worlds import world
    from spotlight.compute.evaluation import evaluate
    from spotlight.core.types import Sampling

    shown = world(trainer.spec.family)
    prompts = shown.held_out(trainer.config.evaluation_prompts)
    sampling = Sampling(steps=10, size=trainer.spec.size)
    return evaluate(trainer.ema_adapter(), prompts, sampling, [shown.reward], pool)

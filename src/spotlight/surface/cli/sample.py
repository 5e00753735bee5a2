"""`spotlight sample`: pictures of a model or of a run, by prompt and seed, alone or beside the base model's."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.core.errors import InputError
from spotlight.surface.cli.hints import hint
from spotlight.surface.cli.progress import PatientProgress
from spotlight.surface.cli.report import AsJson
from spotlight.surface.json_output import print_json

if TYPE_CHECKING:
    from spotlight.compute.models.loaded import LoadedModel
    from spotlight.compute.models.sources import Source
    from spotlight.compute.rewards.protocol import Image
    from spotlight.core.types import Prompt, Sampling, Size

Pairs = Sequence[tuple["Prompt", int]]


def sample(
    model: Annotated[str, typer.Argument(help="A run, or any model that `spotlight evaluate` takes.")],
    prompt: Annotated[list[str], typer.Option(help="What to draw; several make a row each.")],
    seed: Annotated[list[int] | None, typer.Option(help="Seed of the noise; several make a column each.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Denoising steps; default the run's or the model's.")] = None,
    guidance: Annotated[float | None, typer.Option(min=1.0, help="Scale of guidance; default likewise.")] = None,
    size: Annotated[str | None, typer.Option(help="HEIGHTxWIDTH; default likewise.")] = None,
    to: Annotated[Path, typer.Option(help="The PNG to write.")] = Path("sample.png"),
    before_after: Annotated[
        bool, typer.Option("--before-after", help="Put the picture of the run's base model beside each picture.")
    ] = False,
    save_latents: Annotated[
        Path | None, typer.Option(help="Also write the initial latents, for `latents=` of a diffusers pipeline.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Draw pictures of a model or a run. The same prompt, seed and settings give the same picture."""
    _check_files(to, save_latents)
    seeds = seed or [0]
    with PatientProgress() as progress:
        progress.report("loading", 0, 1)
        from spotlight.compute.quiet import quiet_libraries

        quiet_libraries()
        from spotlight.compute.drawing import pipeline_latents
        from spotlight.compute.models.loaded import load_checkpoint
        from spotlight.compute.models.sources import resolve
        from spotlight.core.types import Prompt

        run = _run_of(resolve(model))
        if before_after and run is None:
            raise InputError(f"'{model}' is not a run, so there is no base model beside it; leave out --before-after.")
        loaded = load_checkpoint(model, device, _size(size, run))
        progress.report("loading", 1, 1)
        sampling = _sampling(run, loaded, steps, guidance)
        pairs = [(Prompt(text=text), number) for text in prompt for number in seeds]
        pictures = {"": _draw(loaded, pairs, sampling, progress, "drawing")}
        if save_latents is not None:
            from safetensors.torch import save_file

            save_file({"latents": pipeline_latents(loaded.adapter, pairs, sampling)}, save_latents)
        if before_after and run is not None:
            del loaded
            before = _draw(_load_base(run, device), pairs, sampling, progress, "drawing the base")
            pictures = {"base: ": before, "trained: ": pictures[""]}
    _write(to, pictures, pairs, columns=len(seeds) * len(pictures))
    if as_json:
        content = {
            "picture": str(to), "latents": None if save_latents is None else str(save_latents), "model": model,
            "prompts": prompt, "seeds": seeds, "size": str(sampling.size), "steps": sampling.steps,
            "guidance": sampling.guidance, "before_after": before_after,
        }  # fmt: skip
        print_json(content)
        return
    made = f"{len(pairs)} pictures" if len(pairs) > 1 else "1 picture"
    typer.echo(f"{to}: {made}, {sampling.size}, {sampling.steps} steps, guidance {sampling.guidance:g}")
    hint("evaluate", model, why="its held-out score")


def _check_files(to: Path, save_latents: Path | None) -> None:
    """Before anything is drawn, so that long work is not lost to a misspelt path."""
    for path, suffix in ((to, ".png"), (save_latents, ".safetensors")):
        if path is not None and path.suffix.lower() != suffix:
            raise InputError(f"the file {path} would not be a {suffix[1:]} file by its name; end it in {suffix}.")
        if path is not None and not path.absolute().parent.is_dir():
            raise InputError(f"the file {path} cannot be written: there is no folder {path.parent}; make it first.")


def _run_of(source: "Source") -> Path | None:
    """Folder of the run that trained these weights."""
    from spotlight.compute.models.sources import SourceKind

    return source.run if source.kind in (SourceKind.PUBLISHED, SourceKind.CHECKPOINT) else None


def _load_base(run: Path, device: str) -> "LoadedModel":
    from spotlight.compute.models.config import ModelConfig
    from spotlight.compute.models.loaded import load_source
    from spotlight.compute.models.sources import base_of, run_settings

    settings = ModelConfig.model_validate(run_settings(run, "model")).model_copy(update={"device": device})
    return load_source(base_of(run), settings, device)


def _size(given: str | None, run: Path | None) -> "Size | None":
    """The given size, else the run's; None: the model's own."""
    from spotlight.compute.models.sources import run_settings
    from spotlight.core.types import Size

    chosen = given or (run_settings(run, "data").get("size") if run is not None else None)
    return Size.parse(chosen) if chosen else None


def _sampling(run: Path | None, loaded: "LoadedModel", steps: int | None, guidance: float | None) -> "Sampling":
    """Given values, else those of the run's evaluations, else the model's own."""
    from spotlight.compute.drawing import default_guidance, default_steps
    from spotlight.compute.models.sources import run_settings
    from spotlight.core.types import Sampling

    settings = {} if run is None else run_settings(run, "eval")
    return Sampling(
        steps=steps or settings.get("steps") or default_steps(loaded.adapter),
        size=loaded.size,
        guidance=guidance or settings.get("guidance") or default_guidance(loaded.adapter),
    )


def _draw(
    loaded: "LoadedModel", pairs: Pairs, sampling: "Sampling", progress: PatientProgress, stage: str
) -> "list[Image]":
    from spotlight.compute.drawing import draw

    progress.report(stage, 0, len(pairs))
    return draw(loaded.adapter, pairs, sampling, lambda done: progress.report(stage, done, len(pairs)))


def _write(to: Path, pictures: "dict[str, list[Image]]", pairs: Pairs, columns: int) -> None:
    """A single picture as it is, several on a sheet; pictures of one prompt and seed side by side."""
    from PIL import Image as PilImage

    from spotlight.surface.contact_sheet import contact_sheet

    if len(pairs) == len(pictures) == 1:
        PilImage.fromarray(next(iter(pictures.values()))[0]).save(to)
        return
    cells = [
        (f"{label}{prompt.text}, seed {seed}", made[index])
        for index, (prompt, seed) in enumerate(pairs)
        for label, made in pictures.items()
    ]
    contact_sheet([picture for _, picture in cells], [text for text, _ in cells], columns).save(to)

"""`spotlight export`: the trained weights of a run as files for diffusers and ComfyUI, with a model card."""

import json
import os
import shutil
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spotlight.core.errors import EnvironmentProblem, InputError
from spotlight.surface.cli.hints import hint
from spotlight.surface.cli.progress import PatientProgress
from spotlight.surface.cli.report import AsJson, RunName
from spotlight.surface.json_output import print_json
from spotlight.surface.plain_text import plain

if TYPE_CHECKING:
    from spotlight.compute.export.trained import TrainedSet
    from spotlight.core.work import Policy
    from spotlight.folder import RunFolder
    from spotlight.surface.model_card import CardFacts

MARK = "export.json"
"""Written into every export; a folder without it is never replaced."""
CARD = "README.md"


class Exported(StrEnum):
    """Which weights of a run are exported."""

    EMA = "ema"
    LAST = "last"

    @property
    def policy(self) -> "Policy":
        from spotlight.core.work import Policy

        return {Exported.EMA: Policy.AVERAGE, Exported.LAST: Policy.BEHAVIOUR}[self]


def export(
    run: RunName,
    to: Annotated[Path | None, typer.Option(help="New folder; default RUN/export.")] = None,
    weights: Annotated[
        Exported,
        typer.Option(help="ema: the averaged weights that evaluations use; last: the newest that rolled out."),
    ] = Exported.EMA,
    merged: Annotated[bool, typer.Option("--merged", help="Write a whole transformer, not a LoRA.")] = False,
    complete: Annotated[
        bool, typer.Option("--complete", help="With a whole transformer: copy the base's other components too.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export in that folder.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the weights for diffusers and ComfyUI. With a model card."""
    from spotlight.folder import RunFolder

    folder = RunFolder.find(run)
    target = (to or folder.path / "export").absolute()
    _check_target(target, force)
    scratch, earlier = (target.with_name(f".{target.name}.{part}-{os.getpid()}") for part in ("part", "earlier"))
    with PatientProgress() as progress:
        progress.report("exporting", 0, 1)
        try:
            scratch.mkdir(parents=True)
            _write(folder, scratch, weights, merged, complete)
            if target.exists():
                target.rename(earlier)
            scratch.rename(target)
            shutil.rmtree(earlier, ignore_errors=True)
        except OSError as error:
            raise EnvironmentProblem(
                f"the export cannot be written to {target} ({error}); free space there, or choose another --to."
            ) from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        progress.report("exporting", 1, 1)
    if as_json:
        print_json({"folder": str(target), **json.loads((target / MARK).read_text())})
        return
    typer.echo(f"{plain(target)}: {', '.join(sorted(path.name for path in target.iterdir()))}")
    hint("sample", run, "--prompt", '"..."', "--before-after", why="pictures of base and trained model")


def _check_target(target: Path, force: bool) -> None:
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not (target / MARK).is_file():
        raise InputError(
            f"the folder {target} exists and is not an export (it has no {MARK}), so it is not replaced; choose a new "
            "folder with --to."
        )
    if not force:
        raise InputError(
            f"the folder {target} has an earlier export, which is not replaced unasked; add --force, or choose another "
            "folder with --to."
        )


def _write(folder: "RunFolder", scratch: Path, weights: Exported, merged: bool, complete: bool) -> None:
    from spotlight.compute.quiet import quiet_libraries

    quiet_libraries()
    from spotlight.compute.export import export_files
    from spotlight.compute.export.trained import read_trained
    from spotlight.control.market.prices import PriceTable
    from spotlight.surface.kept_view import latest
    from spotlight.surface.model_card import CURVE, draw_curve, model_card

    trained = read_trained(folder.path, weights.policy)
    is_whole = merged or trained.lora is None
    if complete and (trained.family is None or not is_whole):
        raise InputError(
            "--complete copies the components around a whole transformer, and this export has none; add --merged, or "
            "leave it out."
        )
    if trained.family is None:
        export_files.write_weights_file(trained, scratch)
    elif is_whole:
        export_files.write_transformer(trained, trained.family, scratch)
        if complete:
            export_files.copy_components(trained, trained.family, scratch)
    else:
        export_files.write_lora(trained, trained.family, scratch)
    view = latest(folder.journal)
    name = view.headline()
    if name is not None:
        draw_curve(name, view.curve(name), scratch / CURVE)
    facts = _facts(folder, trained, weights, view.facts.recipe, sorted(path.name for path in scratch.iterdir()))
    (scratch / CARD).write_text(model_card(facts, view, PriceTable.load()))
    mark = {"run": facts.run, "weights": facts.weights, "version": facts.version, "files": facts.files}
    (scratch / MARK).write_text(json.dumps(mark, indent=2) + "\n")


def _facts(folder: "RunFolder", trained: "TrainedSet", weights: Exported, recipe: str, files: list[str]) -> "CardFacts":
    from spotlight.surface.model_card import CardFacts

    settings = folder.read_config()
    return CardFacts(
        run=folder.name,
        base=_base_name(trained),
        family=trained.source.family,
        real=trained.family,
        weights=weights.value,
        version=trained.version,
        lora=None if trained.lora is None else (trained.lora.rank, trained.lora.alpha),
        files=tuple(files),
        settings=settings,
        changes=_changes(settings, recipe),
    )


def _base_name(trained: "TrainedSet") -> str:
    """Name of the base model for people: a hub id, a model name, or the name of a folder, without its path."""
    from spotlight.compute.models.fetched import RANDOM_TINY
    from spotlight.core.run_files import BASE, BASE_FOLDER

    path = Path(trained.model)
    if not path.is_absolute():
        return trained.model
    if path.name in (BASE, BASE_FOLDER):
        return f"{RANDOM_TINY}{trained.source.family}" if trained.family else trained.source.family
    # The hub's cache: models--OWNER--NAME/snapshots/REVISION.
    cached = next((part for part in path.parts if part.startswith("models--")), None)
    return cached.removeprefix("models--").replace("--", "/", 1) if cached else path.name


def _changes(settings: dict[str, Any], recipe: str) -> list[tuple[str, Any]]:
    """Settings that differ from the recipe, or from the defaults if the recipe is gone; without names and places."""
    from spotlight.config import RunConfig, load_config
    from spotlight.folder import differences

    try:
        before = load_config(recipe, is_stored=True)
    except InputError:
        before = RunConfig()
    found = differences(before.model_dump(mode="json"), settings)
    return [(key, now) for key, _, now in found if not key.startswith(("output.", "model.name"))]

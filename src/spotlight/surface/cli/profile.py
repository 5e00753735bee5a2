"""`spotlight profile`: measure every operation of a run on this machine, for `sim` and `plan`."""

import shlex
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.compute.profiling.speed import Speed
from spotlight.core.errors import ConfigError, EnvironmentProblem, InputError, suggestion
from spotlight.surface.cli.hints import hint
from spotlight.surface.cli.progress import PatientProgress
from spotlight.surface.json_output import print_json

if TYPE_CHECKING:
    from spotlight.compute.profiling.company import Company
    from spotlight.compute.profiling.stopwatch import Stopwatch
    from spotlight.compute.profiling.subject import ProfiledModel
    from spotlight.control.profiles import Operation, Profile, Times

REPEATS, QUICK_REPEATS = 7, 2
PATIENCE_S = 3.0
"""Time per figure; slow operations are repeated less often."""
LEAST_S = 2.0
"""Least time per figure on a processor: other processes may use its cores, so its speed changes between seconds."""


def profile(
    model: Annotated[str, typer.Option(help="words, words-large, scenes, a weights file, or qwen-image.")] = "words",
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Make qwen-image from random weights.")
    ] = False,
    width: Annotated[int, typer.Option(min=1, help="Pixels; only qwen-image has a choice.")] = 512,
    height: Annotated[int, typer.Option(min=1, help="Pixels; only qwen-image has a choice.")] = 512,
    only: Annotated[str | None, typer.Option(help="Operations to measure, with commas; default all.")] = None,
    like: Annotated[
        Path | None, typer.Option(help="Take what is not measured, and does not depend on the size, from this profile.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads; use the number of a worker.")] = 1,
    tf32: Annotated[bool, typer.Option("--tf32", help="As with model.tf32 in a recipe: fp32 matmuls in TF32.")] = False,
    speed: Annotated[
        Speed | None, typer.Option(help="Default compiled for qwen-image on a GPU, and eager for any other.")
    ] = None,
    beside: Annotated[
        int, typer.Option(min=0, help="Other slots at work meanwhile, as in a run that uses the whole machine.")
    ] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Two batches, two repeats: for a first look.")] = False,
    out: Annotated[Path | None, typer.Option(help="Default profile-MODEL.json; written after each operation.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile instead of a table.")] = False,
) -> None:
    """Measure how long each operation takes on this machine."""
    from spotlight.control.profiles import Profile

    path = out or Path(f"profile-{Path(model).stem}.json")
    _check_path(path)
    wanted = _operations(only)
    base = None if like is None else Profile.load(like)
    with PatientProgress() as progress:
        progress.report("loading", 0, 1)
        import msgspec

        from spotlight.compute.profiling.operations import LeftOut, measurements
        from spotlight.compute.profiling.provenance import use_tf32, use_threads

        use_threads(threads)
        use_tf32(tf32)
        _check_company(model, device, beside)
        subject = _subject(model, device, random_weights, width, height, quick)
        watch = _stopwatch(subject, quick)
        found = _empty(path.stem, subject, base, _conditions(watch, beside) + _made_fast(subject, watch, speed))
        with _company(model, threads, beside) as company:
            progress.report("loading", 1, 1)
            began, reasons = time.monotonic(), list[str]()
            for done, (operation, outcome) in enumerate(measurements(subject, watch, wanted, company), start=1):
                if isinstance(outcome, LeftOut):
                    reasons.append(outcome.why)
                    print(f"{operation} is left out: {outcome.why}", file=sys.stderr)
                else:
                    found = msgspec.structs.replace(found, operations={**found.operations, operation: outcome})
                    _write(found, path)
                    print(f"{operation} known after {time.monotonic() - began:.0f} s", file=sys.stderr)
                progress.report("measuring", done, len(wanted))
    _check_measured(wanted, reasons, path)
    _show(found, path, as_json)


def _stopwatch(subject: "ProfiledModel", quick: bool) -> "Stopwatch":
    from spotlight.compute.profiling.stopwatch import Stopwatch

    device, repeats = subject.adapter.device, QUICK_REPEATS if quick else REPEATS
    least_s = LEAST_S if device.type == "cpu" and not quick else 0.0
    return Stopwatch(device=device, repeats=repeats, patience_s=PATIENCE_S, least_s=least_s)


def _check_measured(wanted: "list[Operation]", reasons: list[str], path: Path) -> None:
    if len(reasons) == len(wanted):
        raise EnvironmentProblem(
            f"none of the operations ({', '.join(wanted)}) can be measured here, because {reasons[0].rstrip('.')}; "
            f"{path} was not written; name another --device or other operations with --only."
        )


def _made_fast(subject: "ProfiledModel", watch: "Stopwatch", speed: Speed | None) -> str:
    """Compile the model if requested, and return what it took before, for the notes."""
    from spotlight.compute.profiling.on_device import eager_seconds
    from spotlight.compute.profiling.subject import QWEN_IMAGE

    is_large = subject.model == QWEN_IMAGE and subject.adapter.device.type == "cuda"
    chosen = speed or (Speed.COMPILED if is_large else Speed.EAGER)
    if chosen is Speed.EAGER:
        return ""
    before = eager_seconds(subject, watch)
    subject.make_fast(fp8_previews=chosen is Speed.FP8)
    return f"; before it was compiled: {before}"


def _operations(only: str | None) -> "list[Operation]":
    from spotlight.control.profiles import Operation

    if only is None:
        return list(Operation)
    names = [name.strip() for name in only.split(",")]
    for name in names:
        if name not in list(Operation):
            raise InputError(f"there is no operation '{name}': {suggestion(name, list(Operation))}")
    return [Operation(name) for name in names]


def _check_path(path: Path) -> None:
    """Check the path before anything is measured, so that a misspelt one loses no measurement."""
    if path.suffix != ".json":
        raise InputError(f"the profile {path} is not named as JSON, which is what is written; end it in .json.")
    if not path.parent.is_dir():
        raise InputError(f"the profile {path} cannot be written: there is no folder {path.parent}; make it first.")


def _write(found: "Profile", path: Path) -> None:
    """Replace the file atomically, so that an interrupted measurement leaves its figures so far."""
    found.check(str(path))
    scratch = path.with_name(f"{path.name}.part")
    scratch.write_bytes(found.to_json())
    scratch.replace(path)


def _subject(model: str, device: str, random_weights: bool, width: int, height: int, quick: bool) -> "ProfiledModel":
    from spotlight.compute.models.families import usable_device
    from spotlight.compute.profiling.subject import QUICK_BATCHES, QWEN_IMAGE, random_qwen_image, tiny_subject
    from spotlight.core.types import Size

    batches = QUICK_BATCHES if quick else None
    if model == QWEN_IMAGE:
        if not random_weights:
            raise InputError(
                "qwen-image is profiled with random weights, because no duration depends on them and none are shipped; "
                "add --random-weights."
            )
        return random_qwen_image(usable_device(device), Size(height, width), batches=batches)
    if random_weights:
        raise InputError(
            f"'{model}' has weights of its own, so it is never made from random ones; drop --random-weights."
        )
    return tiny_subject(model, device, batches)


def _check_company(model: str, device: str, beside: int) -> None:
    from spotlight.compute.profiling.subject import QWEN_IMAGE

    if beside and (model == QWEN_IMAGE or device != "cpu"):
        raise InputError(
            f"--beside is {beside} for {model} on {device}, but only slots of a tiny model on a CPU share cores; drop "
            "it."
        )


def _company(model: str, threads: int, beside: int) -> "AbstractContextManager[Company | None]":
    """The other slots at work, if any are requested."""
    from spotlight.compute.profiling.company import Company

    return Company(model, threads, beside) if beside else nullcontext()


def _empty(name: str, subject: "ProfiledModel", base: "Profile | None", conditions: str) -> "Profile":
    """A profile of this machine, with the applicable operations of `base`."""
    from spotlight.compute.profiling.provenance import busyness, commit, hardware
    from spotlight.control.profiles import Profile

    here = hardware(subject.adapter.device)
    lent = {} if base is None else _lent(base, subject, here)
    source = f" {', '.join(sorted(lent))} may be those of the profile '{base.name}'." if base and lent else ""
    return Profile(
        name=name,
        model=subject.model,
        width=subject.size.width,
        height=subject.size.height,
        tokens=subject.tokens,
        hardware=here,
        date=datetime.now(UTC).date().isoformat(),
        commit=commit(),
        notes=f"{conditions}; {busyness()}.{source}",
        operations=lent,
    )


def _conditions(watch: "Stopwatch", beside: int) -> str:
    if watch.least_s:
        watched = f"Repeats of at least {watch.least_s:g} s per figure"
    else:
        watched = f"Up to {watch.repeats} repeats per figure, {watch.patience_s:g} s at most"
    others = f"; with --beside {beside}, where an entry says so" if beside else ""
    return f"{watched}{others}"


def _lent(base: "Profile", subject: "ProfiledModel", here: str) -> "dict[Operation, Times]":
    """Operations of `base` that hold at this picture size too."""
    from spotlight.control.profiles import Operation

    if (base.model, base.hardware) != (subject.model, here):
        raise ConfigError(
            f"the profile '{base.name}' is of {base.model} on {base.hardware}, but {subject.model} is to be measured "
            f"on {here}, so its figures would be another model's or machine's; choose one of the same."
        )
    by_size = {
        Operation.DENOISE_STEP, Operation.PREVIEW_STEP, Operation.FP8_PREVIEW_STEP, Operation.TRAIN_TIMESTEP,
        Operation.DECODE, Operation.REWARD,
    }  # fmt: skip
    same_size = (base.width, base.height) == (subject.size.width, subject.size.height)
    return {operation: times for operation, times in base.operations.items() if same_size or operation not in by_size}


def _show(found: "Profile", path: Path, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    from rich.table import Table

    from spotlight.surface.terminal import terminal

    console = terminal()
    title = f"{found.name}: {found.model} at {found.width}x{found.height} on {found.hardware}"
    console.print(title, soft_wrap=True, highlight=False)
    table = Table()
    for column in ("operation", "batch", "degree", "p50 s", "p99 s", "provenance"):
        table.add_column(column, justify="left" if column in ("operation", "provenance") else "right")
    for operation, times in sorted(found.operations.items()):
        for series in times.series:
            for point in series.points:
                figures = (str(point.batch), str(point.degree), f"{point.p50:.4g}", f"{point.p99:.4g}")
                table.add_row(operation.value, *figures, series.provenance.value)
    console.print(table)
    console.print(f"written to {path}, digest {found.digest}", soft_wrap=True, highlight=False)
    hint("plan", "words-nft", "--profile", shlex.quote(str(path)), why="time and cost of a run on this machine")

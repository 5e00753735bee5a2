"""`spotlight doctor`: can this machine run Spotlight, and does a recipe fit it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.surface.cli import completions
from spotlight.surface.cli.hints import hint
from spotlight.surface.cli.overrides import Overrides
from spotlight.surface.cli.report import AsJson
from spotlight.surface.json_output import print_json
from spotlight.surface.plain_text import plain

if TYPE_CHECKING:
    from spotlight.preflight.machine_state import Examined
    from spotlight.preflight.memory_check import RunMemory


def doctor(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="Also plan the memory and the disk space of this recipe.", autocompletion=completions.recipes
        ),
    ] = None,
    overrides: Overrides = None,
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Examine this machine. Software, GPUs, memory, disk, ports, services; exit code 3 if a run would fail."""
    from spotlight.preflight.machine_state import Health, MachineFacts, examine
    from spotlight.preflight.service_state import ServiceFacts, examine_services
    from spotlight.surface.cli.progress import PatientProgress

    with PatientProgress() as progress:
        progress.report("examining this machine", 0, 1)
        findings = [*examine(MachineFacts(runs=runs)), *examine_services(ServiceFacts())]
        progress.report("examining this machine", 1, 1)
        memory = None
        if recipe is not None:
            progress.report("examining the recipe", 0, 1)
            found, memory = _recipe(recipe, overrides or [])
            findings += found
    if as_json:
        _print_json(findings, memory)
    else:
        _print(findings, memory, recipe or "")
    if any(finding.state is Health.PROBLEM for finding in findings):
        raise typer.Exit(3)
    if not as_json:
        hint("train", recipe or "demo", *([] if recipe is None else ["--dry-run"]))


def _recipe(recipe: str, overrides: list[str]) -> "tuple[list[Examined], RunMemory | None]":
    """Findings about one recipe: its devices, its memory plan and its space on disk."""
    from spotlight.config import load_config
    from spotlight.core.errors import SpotlightError
    from spotlight.preflight import PlannedRun, memory_of
    from spotlight.preflight.machine_state import Examined, Health
    from spotlight.preflight.this_machine import check_disk, check_ray, disk_bytes
    from spotlight.run import devices_of

    subject = PlannedRun.new(load_config(recipe, overrides), recipe)
    findings: list[Examined] = []
    try:
        memory = memory_of(subject, devices_of(subject.config))
    except SpotlightError as error:
        return [_problem("devices", str(error))], None
    if memory.problem:
        findings.append(_problem("memory plan", memory.problem))
    elif memory.warning:
        what, _, mend = memory.warning.rpartition("; ")
        findings.append(Examined("memory plan", Health.WARNING, what, _sentence(mend)))
    else:
        findings.append(Examined("memory plan", Health.OK, "every process fits its device"))
    try:
        findings += [Examined("ray cluster of the run", Health.OK, remark) for remark in check_ray(subject)]
    except SpotlightError as error:
        findings.append(_problem("ray cluster of the run", str(error)))
    try:
        remarks = list(check_disk(subject))
    except SpotlightError as error:
        findings.append(_problem("disk of the run", str(error)))
    else:
        size = sum(disk_bytes(subject).values()) / 1e9
        state, mend = (
            (Health.WARNING, "Free more space, or lower output.checkpoint_every.") if remarks else (Health.OK, "")
        )
        findings.append(Examined("disk of the run", state, f"about {size:.2f} GB at most", mend))
    return findings, memory


def _problem(subject: str, sentence: str) -> "Examined":
    """A refusal: what is wrong before its last semicolon, what to do after it."""
    from spotlight.preflight.machine_state import Examined, Health

    what, _, mend = sentence.rpartition("; ")
    return Examined(subject, Health.PROBLEM, what, _sentence(mend))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _print_json(findings: "list[Examined]", memory: "RunMemory | None") -> None:

    plans = {}
    if memory is not None:
        plans = {plan.process: {**dict(plan.lines), "total": plan.total} for plan in memory.plans}
    print_json({"findings": findings, "memory": plans})


def _print(findings: "list[Examined]", memory: "RunMemory | None", recipe: str) -> None:
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        print(f"{finding.state.value:8} {finding.subject:{width}}  {plain(finding.found)}")
        if finding.mend:
            print(f"{'':8} {'':{width}}  {plain(finding.mend)}")
    if memory is not None:
        from spotlight.surface.memory_table import show
        from spotlight.surface.terminal import terminal

        show(memory, recipe, terminal())

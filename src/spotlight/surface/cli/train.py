"""`spotlight train` and `spotlight resume`: a run on this machine, with a live panel and a report at its end."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.core.errors import ConfigError
from spotlight.surface.cli.hints import hint
from spotlight.surface.cli.overrides import Overrides, RecipeName, dotted
from spotlight.surface.cli.plan import dry_run_lines
from spotlight.surface.cli.presenting import presentation, watched
from spotlight.surface.cli.report import Prices, RunName
from spotlight.surface.json_output import print_json
from spotlight.surface.plain_text import plain

if TYPE_CHECKING:
    from spotlight.config import RunConfig
    from spotlight.folder import RunFolder
    from spotlight.preflight import RunMemory

DEFAULT_RECIPE = "demo"
Lines = Annotated[
    bool, typer.Option("--json", help="One JSON object per line: start, iterations, evaluations, problems, end.")
]
Background = Annotated[
    bool, typer.Option("--background", help="Start the run as a process of its own, and return when it has begun.")
]
MetricsPort = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Serve Prometheus metrics at 127.0.0.1 on this port; 0: any free one."),
]
Detached = Annotated[int | None, typer.Option("--detached", hidden=True)]
"""Pipe of the process that has started this one with --background."""


def train(
    context: typer.Context,
    recipe: RecipeName = DEFAULT_RECIPE,
    overrides: Overrides = None,
    pace: Annotated[
        str | None,
        typer.Option(metavar="PROFILE", help="No computation: workers wait for the profile's durations."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the settings, a forecast and the memory plan, check everything, and stop."
        ),
    ] = False,
    profile: Annotated[
        str | None, typer.Option(help="With --dry-run: durations to forecast by, a shipped profile or a JSON file.")
    ] = None,
    prices: Prices = None,
    metrics_port: MetricsPort = None,
    as_json: Lines = False,
    background: Background = False,
    detached: Detached = None,
) -> None:
    """Post-train a model. Settings can be changed with --set section.key=value or --section.key value."""
    from spotlight.config import load_config
    from spotlight.control.market.prices import PriceTable

    arguments = list(context.args)
    if recipe.startswith("--"):
        # A flag in the recipe's place: the recipe was left out.
        arguments, recipe = [recipe, *arguments], DEFAULT_RECIPE
    paced = [] if pace is None else [f"cluster.pace={pace}"]
    settings = [*(overrides or ()), *dotted(arguments), *paced]
    config = with_reward_folder(load_config(recipe, settings))
    table = PriceTable.load(prices)
    if background and not dry_run:
        _begin(["train", recipe, *_served(metrics_port)], settings, prices, as_json)
        return
    if dry_run:
        from spotlight.surface.terminal import terminal

        print(json.dumps(config.model_dump(mode="json"), indent=2))
        # On standard error, because standard output is one JSON object.
        dry_run_lines(config, recipe, profile, table, terminal(stderr=True))
    from spotlight.compute.rewards.registry import importing_from
    from spotlight.preflight import PlannedRun, preflight
    from spotlight.run import Run, check
    from spotlight.surface.track.tracker_processes import TrackerProcesses

    with importing_from(config.reward.folder):
        check(config, table)
        config, devices = preflight(PlannedRun.new(config, recipe), _remark, _table_of(recipe) if dry_run else None)
        if not dry_run:
            how = presentation(as_json, detached, prices, metrics_port)
            with TrackerProcesses(config.output.trackers) as trackers:
                watched(Run.start(config, recipe, table, devices), how, trackers)


def _begin(verb: list[str], settings: list[str], prices: Path | None, as_json: bool) -> None:
    """Start the run as a process of its own, which makes all checks."""

    from spotlight.surface.background import Detached, start

    given = [argument for setting in settings for argument in ("--set", setting)]
    priced = [] if prices is None else ["--prices", str(prices)]
    begun = start([*verb, *given, *priced])
    if as_json:
        print_json(Detached(str(begun.folder.path), begun.process.pid))
        return
    typer.echo(f"run folder: {plain(begun.folder.path)}; its process is {begun.process.pid}")
    hint("watch", begun.folder.path, why="also status, logs, drain")


def _served(metrics_port: int | None) -> list[str]:
    return [] if metrics_port is None else ["--metrics-port", str(metrics_port)]


def _table_of(recipe: str) -> "Callable[[RunMemory], None]":
    """Prints a memory plan as a table on standard error."""
    from spotlight.surface.memory_table import show
    from spotlight.surface.terminal import terminal

    return lambda memory: show(memory, recipe, terminal(stderr=True))


def resume(
    run: RunName,
    overrides: Overrides = None,
    prices: Prices = None,
    metrics_port: MetricsPort = None,
    as_json: Lines = False,
    background: Background = False,
    detached: Detached = None,
) -> None:
    """Continue a run that was stopped or killed."""
    from spotlight.compute.rewards.registry import importing_from
    from spotlight.control.market.prices import PriceTable
    from spotlight.folder import RunFolder, check_unchanged
    from spotlight.preflight import PlannedRun, preflight
    from spotlight.run import Run, check
    from spotlight.run_log import nothing_left
    from spotlight.surface.track.tracker_processes import TrackerProcesses

    if background:
        _begin(["resume", run, *_served(metrics_port)], overrides or [], prices, as_json)
        return
    folder = RunFolder.find(run)
    folder.check_no_links()
    stored = stored_config(folder)
    config = resumed_config(stored.model_dump(mode="json"), overrides or [])
    check_unchanged(stored.model_dump(mode="json"), config.model_dump(mode="json"))
    config = with_reward_folder(config)
    check_reward_folder(config, any(each.startswith("reward.folder=") for each in overrides or ()), folder)
    table = PriceTable.load(prices)
    with importing_from(config.reward.folder):
        check(config, table)
        if _is_done(folder, config):
            # The run's inputs are not checked, because they may be gone.
            raise nothing_left(folder, config)
        for remark in version_remarks(folder, stored):
            _remark(remark)
        config, devices = preflight(PlannedRun.resumed(config, folder), _remark)
        how = presentation(as_json, detached, prices, metrics_port)
        with TrackerProcesses(config.output.trackers) as trackers:
            watched(Run.resume(folder, config, table, devices), how, trackers)


def _is_done(folder: "RunFolder", config: "RunConfig") -> bool:
    """Whether all iterations are done; refuses a number below those already done."""
    from spotlight.core.errors import ConfigError
    from spotlight.surface.kept_view import latest

    view = latest(folder.journal)
    done = len(view.iterations)
    if done > config.iterations:
        raise ConfigError(
            f"iterations is {config.iterations}, but the run has done {done}, which cannot be undone; set it to "
            f"{done} or more, or start a new run from one of its checkpoints."
        )
    return view.facts.finished and done >= config.iterations


def with_reward_folder(config: "RunConfig") -> "RunConfig":
    """Store the folder from which rewards by path are imported: `reward.folder`, default the working folder."""
    from spotlight.compute.rewards.registry import is_path

    reward = config.reward
    if not any(map(is_path, reward.names)):
        return config
    folder = str(Path(reward.folder or "").resolve())
    return config.model_copy(update={"reward": reward.model_copy(update={"folder": folder})})


def check_reward_folder(config: "RunConfig", is_named: bool, run: "RunFolder") -> None:
    """Refuse rewards from a folder that only the run folder names: it may come from an untrusted source.

    A reward is imported from the working folder, or from a folder that this call names, and never from the run folder.
    """
    folder = config.reward.folder
    if folder is None:
        return
    code = next(iter(config.reward.names), None)
    if not is_named and Path(folder) != Path.cwd():
        raise ConfigError(
            f"the reward '{code}' of this run is imported from {folder}, which is not the working "
            "folder, and a run folder does not decide which code is run; resume from there, or allow it with --set "
            f"reward.folder={folder}."
        )
    if Path(folder).is_relative_to(run.path):
        raise ConfigError(
            f"the reward '{code}' would be imported from {folder}, which is in the run folder, and no "
            "code is run from there; set reward.folder to another folder."
        )


def _remark(line: str) -> None:
    typer.echo(f"preflight: {line}", err=True)


def stored_config(folder: "RunFolder") -> "RunConfig":
    """The settings of a run; those that the version that wrote them did not have yet take their defaults."""
    from spotlight.core.errors import UnknownSetting
    from spotlight.core.run_version import other_version

    try:
        return resumed_config(folder.read_config(), [])
    except UnknownSetting as error:
        raise other_version(folder.path, f"the setting {error.setting}") from error


def version_remarks(folder: "RunFolder", config: "RunConfig") -> Iterator[str]:
    """What changes if a run of another version goes on with this one."""
    from spotlight import __version__
    from spotlight.core.run_version import writer_of
    from spotlight.folder import absent_keys

    writer, absent = writer_of(folder.path), absent_keys(folder.read_config(), config.model_dump(mode="json"))
    if writer != __version__:
        yield (
            f"the run was written by {f'spotlight {writer}' if writer else 'an earlier version'} and goes on with "
            f"{__version__}, whose results may differ in the last bits."
        )
    if absent:
        yield f"settings that it does not have take their defaults: {', '.join(absent)}."


def resumed_config(before: dict[str, object], overrides: list[str]) -> "RunConfig":
    """The stored settings with overrides on top."""
    import tempfile

    from spotlight.config import load_config

    with tempfile.TemporaryDirectory() as folder:
        # JSON is YAML: one loader checks both.
        path = Path(folder) / "resumed.yaml"
        path.write_text(json.dumps(before))
        return load_config(str(path), overrides, is_stored=True)

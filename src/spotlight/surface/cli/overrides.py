"""Settings on the command line: `--set a=1 b=2`, `--set a=1 --set b=2` and `--section.key value`."""

import re
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from spotlight.core.errors import ConfigError, InputError
from spotlight.surface.cli import completions

FLAG = "--set"
SETTING = re.compile(r"[\w.]+=")
PLAIN_KEYS = ("seed", "iterations", "deterministic")
"""Settings outside of any section."""

RecipeName = Annotated[
    str, typer.Argument(help="Shipped recipes or YAML files, joined by +.", autocompletion=completions.recipes)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(FLAG, metavar="SECTION.KEY=VALUE...", help="Change settings; takes several, and may be repeated."),
]


class SettingsCommand(TyperCommand):
    """A verb whose `--set` takes several values; an option of click takes one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, one_value_each(args))


def one_value_each(arguments: list[str]) -> list[str]:
    """Turn `--set a=1 b=2` into `--set a=1 --set b=2`: arguments of the form key=value after --set belong to it."""
    spread: list[str] = []
    follows = False
    for argument in arguments:
        is_setting = SETTING.match(argument) is not None
        if follows and is_setting and spread[-1] != FLAG:
            spread.append(FLAG)
        spread.append(argument)
        follows = argument.partition("=")[0] == FLAG or (follows and is_setting)
    return spread


def dotted(arguments: list[str]) -> list[str]:
    """`--section.key value` and `--section.key=value` as overrides."""
    overrides = []
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        name, equals, value = flag.removeprefix("--").partition("=")
        if not flag.startswith("--") or ("." not in name and name not in PLAIN_KEYS):
            raise InputError(f"'{flag}' is not an option here; change a setting with --section.key value.")
        if not equals:
            if not rest:
                raise ConfigError(f"'{flag}' has no value; write {flag} VALUE.")
            value = rest.pop(0)
        overrides.append(f"{name}={value}")
    return overrides


def settings_of(overrides: list[str] | None, context: typer.Context) -> list[str]:
    """All settings of a call, those of --set first."""
    return [*(overrides or ()), *dotted(list(context.args))]

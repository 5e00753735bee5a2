"""`spotlight rewards`: the rewards that can be named in a recipe, what they mean, and their versions."""

import json
from typing import Annotated

import typer


def rewards(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names or package.module:function; default all that are installed.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List rewards, with what each means and its version."""
    from spotlight.compute.rewards import registry
    from spotlight.core.errors import RewardError

    found: dict[str, dict[str, str]] = {}
    for name in names or registry.names():
        try:
            reward = registry.create(name)
        except RewardError as error:
            # One package that is broken must not hide the others; what was asked for by name is another matter.
            if names:
                raise
            found[name] = {"problem": str(error)}
        else:
            found[name] = {"version": reward.version, "description": registry.description(name, reward)}
    if as_json:
        print(json.dumps(found))
        return
    for name, told in found.items():
        print(f"{name:16} {told.get('problem', told.get('description'))}")
        if "version" in told:
            print(f"{'':16} version {told['version']}")

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

    chosen = names or registry.names()
    loaded = {name: registry.create(name) for name in chosen}
    found = {
        name: {"version": reward.version, "description": registry.description(name, reward)}
        for name, reward in loaded.items()
    }
    if as_json:
        print(json.dumps(found))
        return
    for name, told in found.items():
        print(f"{name:16} {told['description']}")
        print(f"{'':16} version {told['version']}")

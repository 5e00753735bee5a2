"""`spotlight rewards`: the rewards that can be named in a recipe, with their versions."""

import json
from typing import Annotated

import typer


def rewards(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """List the rewards that are installed, with their versions."""
    from spotlight.compute.rewards import registry

    versions = {name: registry.create(name).version for name in registry.names()}
    if as_json:
        print(json.dumps(versions))
        return
    for name, version in versions.items():
        print(f"{name:16} {version}")

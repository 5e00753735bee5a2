"""`spotlight rewards`: the rewards that a recipe can name, with descriptions and versions."""

from typing import Annotated

import typer

from spotlight.surface.cli.hints import hint
from spotlight.surface.json_output import print_json
from spotlight.surface.plain_text import plain


def rewards(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names or package.module:function; default all that are installed.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List rewards with descriptions and versions. Rewards with required options have no version without them."""
    from spotlight.compute.rewards import registry
    from spotlight.core.errors import RewardError
    from spotlight.surface.cli.progress import PatientProgress

    found: dict[str, dict[str, str]] = {}
    wanted = names or registry.names()
    with PatientProgress() as progress:
        for number, name in enumerate(wanted):
            progress.report("loading rewards", number, len(wanted))
            try:
                options = registry.required_options(name)
                reward = None if options else registry.create(name)
            except RewardError as error:
                # A broken package must not hide the others in a full list; a named one raises.
                if names:
                    raise
                found[name] = {"problem": str(error)}
            else:
                facts = {"version": reward.version} if reward else {"options": ", ".join(options)}
                found[name] = {**facts, "description": registry.description(name, reward)}
    if as_json:
        print_json(found)
        return
    for name, facts in found.items():
        print(f"{plain(name):16} {plain(facts.get('problem', facts.get('description')))}")
        for fact in ("version", "options"):
            if fact in facts:
                print(f"{'':16} {fact} {plain(facts[fact])}")
    hint("train", "words-nft", "--set", "reward.name=NAME")

"""`spotlight join` and `spotlight token`: other machines for a run that listens."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from spotlight.surface.cli.report import AsJson, RunName
from spotlight.surface.json_output import print_json
from spotlight.surface.plain_text import plain, plain_lines


def token(
    run: RunName,
    new: Annotated[bool, typer.Option("--new", help="Revoke the token and make a new one; the run must live.")] = False,
    out: Annotated[str | None, typer.Option(help="File to write; default RUN.token.json; - prints it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the file with which a machine can join a run. The run must listen (cluster.listen)."""
    from spotlight.folder import RunFolder
    from spotlight.orders import RenewToken
    from spotlight.pools.tokens import token_file_of
    from spotlight.surface.ordering import order

    folder = RunFolder.find(run)
    token_file_of(folder.path)
    if new:
        typer.echo(order(folder, RenewToken()).sentence, err=as_json or out == "-")
    found = token_file_of(folder.path)
    if out == "-":
        typer.echo(found.content().decode(), nl=False)
        return
    path = Path(out or f"{folder.name}.token.json")
    found.write(path)
    if as_json:
        print_json({"file": str(path.resolve()), "address": found.address, "run": str(folder.path)})
        return
    typer.echo(
        f"wrote {plain(path)}, which only you can read; copy it, with the mode 600, to the other machine and run there:"
    )
    typer.echo(f"  spotlight join {found.address} --token-file {shlex.quote(plain(path.name))}")


def join(
    token_file: Annotated[str, typer.Option(help="File of `spotlight token`, with the mode 600.")],
    address: Annotated[
        str | None, typer.Argument(help="HOST:PORT at which this machine reaches the run; default the token file's.")
    ] = None,
    slots: Annotated[
        int, typer.Option(min=0, help="Slots, and so workers; 0: one per GPU, or as the run's nodes.")
    ] = 0,
    reserved: Annotated[bool, typer.Option("--reserved/--spot", help="How this machine is billed.")] = False,
    zone: Annotated[str, typer.Option(help="Zone of this machine, for the report.")] = "",
    name: Annotated[str | None, typer.Option(help="Name of the node; default this machine's.")] = None,
    folder: Annotated[str | None, typer.Option(help="Folder for logs and weights; default joined/RUN-NAME.")] = None,
) -> None:
    """Let this machine work for a run. Until either ends; Ctrl-C hands its samples back first."""
    import asyncio

    import msgspec

    from spotlight.core.tls import split_address
    from spotlight.core.work import SlotClass
    from spotlight.pools.joining import JoiningMachine, JoinOptions, default_name
    from spotlight.pools.tokens import TokenFile

    found = TokenFile.read(Path(token_file))
    if address is not None:
        found = msgspec.structs.replace(found, address=address)
    split_address(found.address)
    chosen = name or default_name()
    options = JoinOptions(
        token_file=found,
        name=chosen,
        slot_class=SlotClass.RESERVED if reserved else SlotClass.SPOT,
        slots=slots,
        zone=zone,
        folder=Path(folder or f"joined/{Path(found.run).name}-{chosen}").resolve(),
    )

    async def serve() -> None:
        await JoiningMachine(options, lambda line: typer.echo(plain_lines(line))).serve()

    asyncio.run(serve())

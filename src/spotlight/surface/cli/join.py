"""`spotlight join` and `spotlight token`: other machines for a run that listens."""

from pathlib import Path
from typing import Annotated

import typer


def token(
    run: Annotated[str, typer.Argument(help="Name or folder of a run.")],
    new: Annotated[bool, typer.Option("--new", help="Revoke the token and make a new one; the run must live.")] = False,
    out: Annotated[str | None, typer.Option(help="File to write; default RUN.token.json.")] = None,
) -> None:
    """Write the file with which another machine can join a run that listens (cluster.listen)."""
    from spotlight.folder import RunFolder
    from spotlight.orders import RenewToken, give
    from spotlight.pools.machine import sockets
    from spotlight.pools.tokens import token_file_of

    folder = RunFolder.find(run)
    token_file_of(folder.path)
    if new:
        typer.echo(give(sockets(folder.path), folder.name, RenewToken()).sentence)
    path = Path(out or f"{folder.name}.token.json")
    found = token_file_of(folder.path)
    found.write(path)
    typer.echo(f"wrote {path}, which only you can read; copy it to the other machine and run there:")
    typer.echo(f"  spotlight join {found.address} --token-file {path.name}")


def join(
    address: Annotated[str, typer.Argument(help="HOST:PORT of the run, as `spotlight train` prints it.")],
    token_file: Annotated[str, typer.Option(help="File of `spotlight token`, with the mode 600.")],
    slots: Annotated[int, typer.Option(min=0, help="Slots, and so workers; 0: as many as the run's nodes.")] = 0,
    reserved: Annotated[bool, typer.Option("--reserved/--spot", help="How this machine is billed.")] = False,
    zone: Annotated[str, typer.Option(help="Zone of this machine, for the report.")] = "",
    name: Annotated[str | None, typer.Option(help="Name of the node; default this machine's.")] = None,
    folder: Annotated[str | None, typer.Option(help="Folder for logs and weights; default joined/RUN-NAME.")] = None,
) -> None:
    """Let this machine work for a run until either ends; Ctrl-C hands its samples back first."""
    import asyncio

    import msgspec

    from spotlight.core.tls import split_address
    from spotlight.core.work import SlotClass
    from spotlight.pools.joining import JoiningMachine, JoinOptions, default_name
    from spotlight.pools.tokens import TokenFile

    split_address(address)
    found = msgspec.structs.replace(TokenFile.read(Path(token_file)), address=address)
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
        await JoiningMachine(options, typer.echo).serve()

    asyncio.run(serve())

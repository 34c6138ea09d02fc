"""Other engines that a study can race against: peers setup, peers list."""

from typing import Annotated

import typer

from wholecurve.cli.app import app

peers_app = typer.Typer(no_args_is_help=True, help="Set up other engines, each in a folder of its own, and list them.")
app.add_typer(peers_app, name="peers")


@peers_app.command("setup")
def peers_setup(
    names: Annotated[list[str] | None, typer.Argument(help="Peers; all of them without a name.")] = None,
) -> None:
    """Fetch and build peers once, at pinned versions; what is there already is kept, and a stopped set-up goes on."""
    from wholecurve.studies.peers import PEERS, find_peer

    for peer in [find_peer(name) for name in names or PEERS]:
        peer.setup()


@peers_app.command("list")
def peers_list() -> None:
    """List peers, their versions and whether they are ready."""
    from wholecurve.studies.peers import PEERS

    for peer in PEERS.values():
        versions = ", ".join(f"{package} {version}" for package, version in peer.versions.items())
        state = str(peer.folder) if peer.is_ready else f"not set up ({peer.cost})"
        typer.echo(f"{peer.name}\t{versions}\t{state}")

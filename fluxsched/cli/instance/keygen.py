"""`fluxsched keygen`: the keys of a tcp port and of its clients."""

from __future__ import annotations

from pathlib import Path

import click

from fluxsched.cli.common.base import Command, usage
from fluxsched.core.role import ROLE_NAMES, Role, parse_role
from fluxsched.core.text import printable

_DIRECTORY = click.Path(file_okay=False, path_type=Path)


@click.command("keygen", cls=Command)
@click.option("--server", is_flag=True, help="Make the key of an instance's tcp ports instead of a client's.")
@click.option("--role", type=click.Choice(ROLE_NAMES), help="The role of the holder. [default: guest]")  # fmt: skip
@click.option("--user", metavar="USER", help="The account whose jobs are the holder's own.")
@click.option("-d", "--directory", metavar="D", type=_DIRECTORY,
              help="Directory for the files. [default: this one; for --server ~/.config/fluxsched]")  # fmt: skip
@click.argument("name", metavar="[NAME]", required=False)
def keygen(server: bool, role: str | None, user: str | None, directory: Path | None, name: str | None) -> None:
    """Make the key of a client called NAME, or of an instance's tcp ports, and print the file with the secret.

    The client's is NAME.key; give it to its holder alone, as ~/.config/fluxsched/client.key or for --key. NAME.pub
    belongs in the directory of authorized keys of the server; `fluxsched config reload` has it read.
    """
    from fluxsched.messaging.keys import generate, generate_server, key_directory, user_id

    if server:
        if (name, role, user) != (None, None, None):
            raise click.UsageError("--server takes no NAME, --role or --user: these are of a client's key")
        click.echo(printable(str(generate_server(directory or key_directory()))))
        return
    if name is None:
        raise click.UsageError("give the NAME of a client, or --server")
    with usage():
        userid = None if user is None else user_id(int(user) if user.isdecimal() else user)
        secret, _ = generate(name, Role.GUEST if role is None else parse_role(role), userid, directory or Path())
    click.echo(printable(str(secret)))

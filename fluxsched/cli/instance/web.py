"""`fluxsched web`: an instance as a page for browsers."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from fluxsched.cli.common import show
from fluxsched.cli.common.base import Command, usage
from fluxsched.cli.common.options import connect, uri_option
from fluxsched.errors import Refused

BIND = "127.0.0.1:9480"
MODULES = ("jinja2", "starlette", "uvicorn")


@click.command("web", cls=Command)
@click.option("--bind", metavar="HOST:PORT|unix:PATH", default=BIND, show_default=True,
              help="Address to serve at; port 0 is any free one.")  # fmt: skip
@click.option("--public", is_flag=True, help="Allow an address that other hosts can reach: nothing is encrypted.")
@click.option("--name", "names", metavar="HOST", multiple=True,
              help="A name that browsers may use for this host, as behind a proxy; may be repeated.")  # fmt: skip
@click.option("--address", is_flag=True, help="Print the address of the page that `start --web` serves, and exit.")
@click.option("--instance", metavar="PID", type=int, hidden=True, help="End with this process.")
@click.option("--address-file", metavar="FILE", type=click.Path(path_type=Path), hidden=True,
              help="File for the address; an address in it is used again.")  # fmt: skip
@uri_option
def web(
    uri: str | None, bind: str, public: bool, names: tuple[str, ...], address: bool, instance: int | None,
    address_file: Path | None,
) -> None:  # fmt: skip
    """Serve an instance as a page for browsers, until interrupted: machine, jobs, timeline, groups, shares, history.

    The printed address has a token: whoever has it acts as you. From other hosts use `ssh -L`.
    """
    if address:
        click.echo(_served(uri))
        return
    need_packages()
    from fluxsched.web.server import ServeOptions, check_bind, serve

    with usage():
        check_bind(bind, public=public)
    if instance is None:
        with connect(uri):  # says what is wrong before the page is served
            pass
    serve(ServeOptions(uri, bind, public, names, instance, address_file), show.flushed)


def need_packages() -> None:
    """Raises Refused, saying what to install, where a package of the extra is missing."""
    missing = [module for module in MODULES if find_spec(module) is None]
    if missing:
        raise Refused(f"needs {', '.join(missing)}: pip install 'fluxsched[web]'")


def _served(uri: str | None) -> str:
    from fluxsched.instance.launch import PAGE_NAME

    with connect(uri) as handle:
        path = Path(handle.rpc("attr.get", {"name": "rundir"})["value"]) / PAGE_NAME
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        raise Refused(f"{handle.uri} serves no page: start it with --web, or run `fluxsched web`") from None

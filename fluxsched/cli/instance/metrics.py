"""`fluxsched metrics`: an instance's figures for Prometheus."""

from __future__ import annotations

import click

from fluxsched.cli.common import show
from fluxsched.cli.common.base import Command, usage
from fluxsched.cli.common.options import uri_option

BIND = "127.0.0.1:9400"


@click.command("metrics", cls=Command)
@click.option("--bind", metavar="HOST:PORT", default=BIND, show_default=True, help="Address to serve at.")
@click.option("--public", is_flag=True, help="Allow an address that other hosts can reach: anyone there can read.")
@click.option("--once", is_flag=True, help="Print the figures and exit (for node_exporter's text files).")
@click.option("--instance", metavar="PID", type=int, hidden=True, help="End with this process.")
@uri_option
def metrics(uri: str | None, bind: str, public: bool, once: bool, instance: int | None) -> None:
    """Serve the metrics of an instance to Prometheus, until interrupted.

    The instance is asked at most once a second. While it is down, `fluxsched_up` is 0; without --uri and
    FLUXSCHED_URI your newest instance is looked for anew.
    """
    from fluxsched.services import metrics_http as exporter

    if once:
        click.echo(exporter.once(uri), nl=False)
        return
    with usage():
        exporter.check_bind(bind, public=public)
    exporter.export(uri, bind, public=public, instance=instance, told=show.flushed)

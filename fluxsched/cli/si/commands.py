"""`fluxsched si`: the table of its commands."""

from __future__ import annotations

import click

from fluxsched.cli.common.base import Lazy, LazyGroup

SECTIONS = {
    "Commands": {
        "serve": Lazy("fluxsched.cli.si.serve:serve", "Schedule for resource managers, over gRPC."),
        "check": Lazy("fluxsched.cli.si.check:check", "Check a configuration file and show its queues."),
        "dump": Lazy("fluxsched.cli.si.dump:dump", "Print the state of a scheduler service as JSON."),
        "rm": Lazy("fluxsched.cli.si.rm:rm", "Let a scheduler service decide for a group of an instance."),
        "load": Lazy("fluxsched.cli.si.load:load", "Put a scheduler service under load and measure it."),
    },
}


@click.group("si", cls=LazyGroup, sections=SECTIONS, subcommand_metavar="COMMAND [ARGS]...")
def si() -> None:
    """Schedule for any resource manager, by YuniKorn's scheduler interface.

    ADDRESS is unix:PATH or HOST:PORT, as `si serve` prints it. These commands need fluxsched[si].
    """

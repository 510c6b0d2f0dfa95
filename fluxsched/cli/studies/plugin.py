"""`fluxsched plugin`: listing, creating and checking plugins."""

from __future__ import annotations

from pathlib import Path

import click

from fluxsched.cli.common.base import CommandGroup, usage
from fluxsched.cli.common.options import Output, TableSpec, Whole, table_options
from fluxsched.cli.common.table import Field
from fluxsched.cli.studies.policy import CHECK, check_json, write_package

LIST = TableSpec(
    {"default": "{name:<13} {options:<20} {says}"},
    {
        "name": Field("PLUGIN", lambda row: row.name),
        "options": Field("OPTIONS", lambda row: row.options),
        "says": Field("WHAT IT DOES", lambda row: row.says),
    },
)


@click.group("plugin", cls=CommandGroup)
def plugin() -> None:
    """Write, check and list plugins."""


@plugin.command("list")
@table_options(LIST)
def list_plugins(output: Output) -> None:
    """List the plugins for schedulers, and their options with defaults."""
    from fluxsched.config.policies import plugins

    rows = list(plugins())
    output.show({"plugins": [row._asdict() for row in rows]}, lambda shown: rows)


@plugin.command("new")
@click.option(
    "--directory", metavar="D", type=click.Path(path_type=Path), help="Directory to create. [default: ./NAME]"
)
@click.argument("name", metavar="NAME")
def new(name: str, directory: Path | None) -> None:
    """Write a package with a working plugin NAME, its entry point and its test."""
    from fluxsched.sim.package import PLUGIN

    write_package(PLUGIN, name, directory)


@plugin.command("check")
@click.option("--policy", metavar="P", default="easy", show_default=True, help="The policy under which it is checked.")
@click.option("--seed", metavar="S", type=Whole(min=0), default=0, show_default=True,
              help="Seed of the first case; a failing case is reported with its own.")  # fmt: skip
@click.argument("spec", metavar="NAME")
@table_options(CHECK)
def check(spec: str, policy: str, seed: int, output: Output) -> int:
    """Check that a plugin (NAME, NAME:key=value,... or ./FILE.py) obeys the laws for plugins.

    `no claim`: the rule does not apply to the plugin. Exit status 1 if a rule is broken, 2 if there is no plugin
    NAME.
    """
    from fluxsched.cli.studies.plugin_check import check_apart
    from fluxsched.sim.plugin import check_words

    with usage():
        check_words(spec, policy)
    verdicts = list(check_apart(spec, policy, seed))
    said = {"plugin": spec, "policy": policy, "seed": seed, "rules": [check_json(one) for one in verdicts]}
    output.show(said, lambda shown: verdicts)
    return int(any(one.verdict == "broken" for one in verdicts))

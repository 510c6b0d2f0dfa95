"""`fluxsched policy` and `fluxsched plugin`: listing, creating and checking policies and plugins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fluxsched.cli.base import CommandGroup, usage
from fluxsched.cli.options import Output, TableSpec, Whole, complete_policies, table_options
from fluxsched.cli.output import GREEN, RED, YELLOW, Field
from fluxsched.core.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fluxsched.sim.commands import PackageKind
    from fluxsched.sim.conformance.suite import RuleVerdict

LIST = TableSpec(
    {"default": "{name:<13} {options:<35} {says}"},
    {
        "name": Field("POLICY", lambda row: row.name),
        "options": Field("OPTIONS", lambda row: row.options),
        "says": Field("WHAT IT DOES", lambda row: row.says),
    },
)

_COLOURS = {"broken": RED, "kept": GREEN, "unclear": YELLOW}
CHECK = TableSpec(
    {"default": "{rule:<13} {verdict:<8} {cases:>5} {what}"},
    {
        "rule": Field("RULE", lambda row: row.rule),
        "verdict": Field("VERDICT", lambda row: row.verdict, lambda value: _COLOURS.get(str(value))),
        "cases": Field("CASES", lambda row: row.cases),
        "what": Field("WHAT", lambda row: str(row.finding or row.says)),
        "says": Field("SAYS", lambda row: row.says),
        "seed": Field("SEED", lambda row: row.finding and row.finding.seed),
        "line": Field("LINE", lambda row: row.finding and row.finding.line),
    },
)


@click.group("policy", cls=CommandGroup)
def policy() -> None:
    """Write, check and list policies."""


@policy.command("list")
@table_options(LIST)
def list_policies(output: Output) -> None:
    """List the policies for schedulers, and their options with defaults."""
    from fluxsched.config.policies import policies

    rows = list(policies())
    output.show({"policies": [row._asdict() for row in rows]}, lambda shown: rows)


@policy.command("new")
@click.option(
    "--directory", metavar="D", type=click.Path(path_type=Path), help="Directory to create. [default: ./NAME]"
)
@click.argument("name", metavar="NAME")
def new(name: str, directory: Path | None) -> None:
    """Write a package with a working policy NAME, its entry point and its test."""
    from fluxsched.sim.commands import POLICY

    write_package(POLICY, name, directory)


def write_package(kind: PackageKind, name: str, directory: Path | None) -> None:
    """Write a package of this kind, and says how to try it."""
    from fluxsched.sim.commands import check_name, make_package

    check_name(kind, name)
    paths = make_package(kind, name, directory or Path(name))
    for path in paths:
        click.echo(printable(str(path)))
    click.echo(f"\nTry it:  fluxsched {kind.what} check {printable(_typed(paths))}")


def _typed(paths: Sequence[Path]) -> str:
    """Return the module as it is named by its file, which has a `/`."""
    (module,) = [path for path in paths if path.suffix == ".py" and not path.name.startswith("test_")]
    return str(module) if "/" in str(module) else f"./{module}"


@policy.command("check")
@click.option("--seed", metavar="S", type=Whole(min=0), default=0, show_default=True,
              help="Seed of the first case; a failing case is reported with its own.")  # fmt: skip
@click.argument("spec", metavar="NAME", shell_complete=complete_policies)
@table_options(CHECK)
def check(spec: str, seed: int, output: Output) -> int:
    """Check that a policy (NAME, NAME:key=value,... or ./FILE.py) obeys the laws for policies.

    `no claim`: the rule does not apply to the policy. Exit status 1 if a rule is broken, 2 if there is no policy
    NAME.
    """
    from fluxsched.cli.policy_check import check_apart
    from fluxsched.sim.conformance.suite import check_words

    with usage():
        check_words(spec)
    verdicts = list(check_apart(spec, seed))
    output.show({"policy": spec, "seed": seed, "rules": [check_json(one) for one in verdicts]}, lambda shown: verdicts)
    return int(any(one.verdict == "broken" for one in verdicts))


def check_json(verdict: RuleVerdict) -> dict[str, object]:
    """Return a verdict as JSON for programs."""
    finding = verdict.finding
    return {**verdict._asdict(), "finding": finding and finding._asdict()}


# ---- `plugin`

PLUGINS = TableSpec(
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
@table_options(PLUGINS)
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
def new_plugin(name: str, directory: Path | None) -> None:
    """Write a package with a working plugin NAME, its entry point and its test."""
    from fluxsched.sim.commands import PLUGIN

    write_package(PLUGIN, name, directory)


@plugin.command("check")
@click.option("--policy", metavar="P", default="easy", show_default=True, help="The policy under which it is checked.")
@click.option("--seed", metavar="S", type=Whole(min=0), default=0, show_default=True,
              help="Seed of the first case; a failing case is reported with its own.")  # fmt: skip
@click.argument("spec", metavar="NAME")
@table_options(CHECK)
def check_plugin(spec: str, policy: str, seed: int, output: Output) -> int:
    """Check that a plugin (NAME, NAME:key=value,... or ./FILE.py) obeys the laws for plugins.

    `no claim`: the rule does not apply to the plugin. Exit status 1 if a rule is broken, 2 if there is no plugin
    NAME.
    """
    from fluxsched.cli.policy_check import check_apart
    from fluxsched.sim.conformance.plugin_suite import check_words

    with usage():
        check_words(spec, policy)
    verdicts = list(check_apart(spec, seed, policy))
    said = {"plugin": spec, "policy": policy, "seed": seed, "rules": [check_json(one) for one in verdicts]}
    output.show(said, lambda shown: verdicts)
    return int(any(one.verdict == "broken" for one in verdicts))

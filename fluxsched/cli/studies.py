"""`fluxsched policy` and `fluxsched plugin`: listing, creating and checking policies and plugins.

`fluxsched sim TRACE` and `fluxsched sim gen`: policies on a trace, in virtual time, and traces to try them on.

`sim TRACE` is short for `sim run TRACE`; a trace called `gen` or `run` is written `./gen`.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fluxsched import __version__
from fluxsched.cli.base import Command, CommandGroup, usage, warn
from fluxsched.cli.options import (
    FSD,
    STATE_DIRECTORY,
    WHEN,
    Converted,
    Output,
    TableSpec,
    Whole,
    complete_policies,
    connect,
    table_options,
    uri_option,
)
from fluxsched.cli.output import GREEN, RED, YELLOW, Field, print_json, working
from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.core.text import printable
from fluxsched.errors import InvalidValue
from fluxsched.system.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fluxsched.cli.output import ProgressLine
    from fluxsched.instance.record import Record, RecordedJob
    from fluxsched.sim.commands import PackageKind, Study
    from fluxsched.sim.conformance import RuleVerdict


def _columns(title: str, options_width: int) -> TableSpec:
    return TableSpec(
        {"default": f"{{name:<13}} {{options:<{options_width}}} {{says}}"},
        {
            "name": Field(title, lambda row: row.name),
            "options": Field("OPTIONS", lambda row: row.options),
            "says": Field("WHAT IT DOES", lambda row: row.says),
        },
    )


POLICIES = _columns("POLICY", 35)
PLUGINS = _columns("PLUGIN", 20)

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


directory_option = click.option(
    "--directory", metavar="D", type=click.Path(path_type=Path), help="Directory to create. [default: ./NAME]"
)
seed_option = click.option(
    "--seed", metavar="S", type=Whole(min=0), default=0, show_default=True,
    help="Seed of the first case; a failing case is reported with its own.",
)  # fmt: skip


def _write_package(kind: PackageKind, name: str, directory: Path | None) -> None:
    """Write a package of this kind, and say how to try it."""
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


def _show_verdicts(checked: dict[str, Any], verdicts: Sequence[RuleVerdict], output: Output) -> int:
    """Show the verdicts on what was checked; return the exit status."""
    output.show({**checked, "rules": [_as_json(one) for one in verdicts]}, lambda shown: verdicts)
    return int(any(one.verdict == "broken" for one in verdicts))


def _as_json(verdict: RuleVerdict) -> dict[str, object]:
    finding = verdict.finding
    return {**verdict._asdict(), "finding": finding and finding._asdict()}


# ---- `policy`


@click.group("policy", cls=CommandGroup)
def policy() -> None:
    """Write, check and list policies."""


@policy.command("list")
@table_options(POLICIES)
def list_policies(output: Output) -> None:
    """List the policies for schedulers, and their options with defaults."""
    from fluxsched.config.policies import policies

    rows = list(policies())
    output.show({"policies": [row._asdict() for row in rows]}, lambda shown: rows)


@policy.command("new")
@directory_option
@click.argument("name", metavar="NAME")
def new(name: str, directory: Path | None) -> None:
    """Write a package with a working policy NAME, its entry point and its test."""
    from fluxsched.sim.commands import POLICY

    _write_package(POLICY, name, directory)


@policy.command("check")
@seed_option
@click.argument("spec", metavar="NAME", shell_complete=complete_policies)
@table_options(CHECK)
def check(spec: str, seed: int, output: Output) -> int:
    """Check that a policy (NAME, NAME:key=value,... or ./FILE.py) obeys the laws for policies.

    `no claim`: the rule does not apply to the policy. Exit status 1 if a rule is broken, 2 if there is no policy
    NAME.
    """
    from fluxsched.cli.policy_check import check_apart
    from fluxsched.sim.conformance import check_words

    with usage():
        check_words(spec)
    return _show_verdicts({"policy": spec, "seed": seed}, list(check_apart(spec, seed)), output)


# ---- `plugin`


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
@directory_option
@click.argument("name", metavar="NAME")
def new_plugin(name: str, directory: Path | None) -> None:
    """Write a package with a working plugin NAME, its entry point and its test."""
    from fluxsched.sim.commands import PLUGIN

    _write_package(PLUGIN, name, directory)


@plugin.command("check")
@click.option("--policy", metavar="P", default="easy", show_default=True, help="The policy under which it is checked.")
@seed_option
@click.argument("spec", metavar="NAME")
@table_options(CHECK)
def check_plugin(spec: str, policy: str, seed: int, output: Output) -> int:
    """Check that a plugin (NAME, NAME:key=value,... or ./FILE.py) obeys the laws for plugins.

    `no claim`: the rule does not apply to the plugin. Exit status 1 if a rule is broken, 2 if there is no plugin
    NAME.
    """
    from fluxsched.cli.policy_check import check_apart
    from fluxsched.sim.plugin_conformance import check_words

    with usage():
        check_words(spec, policy)
    checked = {"plugin": spec, "policy": policy, "seed": seed}
    return _show_verdicts(checked, list(check_apart(spec, seed, policy)), output)


# ---- sim

_IN = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUT = click.Path(dir_okay=False, path_type=Path)
_COUNT = Whole(min=1)
statedir_option = click.option(
    "--statedir", metavar="D", type=STATE_DIRECTORY, help="The state directory of an instance that has ended, instead."
)


MORE_DIGITS_MAX = 9


def _more(text: str) -> int:
    """Return the number in `+16`."""
    digits = text.removeprefix("+")
    if not digits.isdecimal() or not text.isascii() or len(digits) > MORE_DIGITS_MAX or not int(digits):
        raise InvalidValue(
            f"{text[:20]!r} is not a number of targets to add, such as +16, of at most {MORE_DIGITS_MAX} digits; "
            "--without takes some away"
        )
    return int(digits)


MORE = Converted("more", _more)


class SimGroup(CommandGroup):
    """The group whose first command may be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Pass arguments that name no command to `run`; a request for help, too.

        A word that is neither a file nor looks like one is a mistyped command.
        """
        if args and args[0] not in self.commands:
            if args[0].isalnum() and not Path(args[0]).exists():
                near = ", ".join(name for name in self.commands if name[0] == args[0][0]) or ", ".join(self.commands)
                raise click.UsageError(f"No such command or file {args[0]!r}. (Did you mean {near}?)", ctx)
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group("sim", cls=SimGroup)
def sim() -> None:
    """Simulate policies on a trace: `sim TRACE`; generate a trace: `sim gen`."""


@sim.command("run")
@click.option("--plugin", "plugins", metavar="SPEC", multiple=True,
              help="A plugin under all policies: NAME:key=value,... or a file; may be repeated.")  # fmt: skip
@click.option("--policy", "policies", metavar="P", multiple=True,
              help="NAME or NAME:key=value,..., 'easy;debug=fifo' sets that of a queue; may be repeated to compare. "
                   "[default: easy]")  # fmt: skip
@click.option("--label", "labels", metavar="NAME", multiple=True,
              help="Name of a policy in tables and plots; one for each --policy, in order.")  # fmt: skip
@click.option("--procs", metavar="N", type=_COUNT, help="N one-core targets. [default: as in the trace]")
@click.option("--nodes", metavar="N", type=_COUNT, help="N targets of --cores and --gpus each.")
@click.option("--cores", metavar="C", type=_COUNT, help="Cores per node. [default: 1]")
@click.option("--gpus", metavar="G", type=Whole(min=0), help="GPUs per node. [default: 0]")
@click.option("--R", "r_path", metavar="F", type=_IN, help="Take the resources from an R file (RFC 20).")
@click.option("--config", metavar="F", type=_IN, help="Groups, queues and limits of an instance's configuration.")
@click.option("--topology", metavar="F|N[xM...]",
              help="Switches: Slurm's topology.conf, [topology] of a .toml, or made-up leaves of N targets, "
                   "M leaves a switch.")  # fmt: skip
@click.option("--site", metavar="F", type=_IN, help="Drains, outages, moves and maintenance, at given times.")
@click.option("--bank", type=click.Choice(["user", "group", "queue"]),
              help="Field used as the bank if the trace names none. [default: one bank for all]")  # fmt: skip
@click.option("--preempt-grace", "preempt_grace_s", metavar="T", type=FSD,
              help="Time that a preempted job takes to end (FSD), at most preempt-timeout. [default: 0s]")  # fmt: skip
@click.option("--until", "until_s", metavar="T", type=FSD, help="Stop after this virtual time (FSD: 90d).")
@click.option("--jobs-out", metavar="F.csv", type=_OUT, help="Write the table of jobs for all policies.")
@click.option("--accounts-out", metavar="F.csv", type=_OUT, help="Write usage against share over time, by account.")
@click.option("--plot", metavar="F", type=_OUT, help="Write plots to F.png, F.svg or F.pdf (needs fluxsched[plots]).")
@click.option(
    "--plot-part",
    "plot_parts",
    type=click.Choice(["time", "targets", "waits"]),
    multiple=True,
    help="Plot only cores in use and jobs waiting over time, jobs on targets, or waits; may be repeated.",
)
@click.option("--html", metavar="F", type=_OUT, help="Write one page with all charts, policies side by side.")
@click.option("--by", type=click.Choice(["user", "queue", "bank"]),
              help="Also show a table of users, queues or accounts.")  # fmt: skip
@click.option(
    "--feedback", is_flag=True, help="Submit a job when its preceding job has ended and its think time has passed."
)
@click.option("--own-time", is_flag=True,
              help="Let virtual time pass while the scheduler works; shows how soon jobs are considered.")  # fmt: skip
@click.option("--check", is_flag=True, help="Assert all invariants at each instant; slow.")
@click.option("--speed", metavar="X", type=float, help="Replay against a running instance instead, X times as fast.")
@uri_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON: all figures, users and queues, unrounded.")
@click.argument("trace", metavar="TRACE", type=_IN)
def run(speed: float | None, uri: str | None, as_json: bool, **wanted: Any) -> None:
    """Run a TRACE (SWF or JSON lines, also gzipped) through the production scheduler, in virtual time.

    `sim TRACE` is short for it. `sim gen` generates a trace, and `sim export` writes that of an instance;
    rfc/simulator.md describes formats and semantics.
    """
    from fluxsched.sim.commands import StudyOptions, replay_live, simulate, write_files

    if uri is not None and speed is None:
        raise click.UsageError("--uri is for --speed: a simulation needs no instance")
    with usage():
        order = StudyOptions(**wanted)
    with progress(SystemClock.monotonic_s) as bar:
        if speed is None:
            study = simulate(order, SystemClock.monotonic_s, bar)
        else:
            with connect(uri) as handle:
                study = replay_live(order, handle, speed, SystemClock(), bar)
    with working("writing the results"):
        write_files(study, order)
    _write_page(study, order.html)
    if study.left_out:
        warn(f"{wanted['plot']} leaves out {'; '.join(study.left_out)}")
    _print(study, as_json)


@sim.command("gen")
@click.option("--jobs", metavar="N", type=_COUNT, default=1000, show_default=True, help="Number of jobs.")
@click.option("--procs", metavar="N", type=_COUNT, help="For N one-core targets. [default: 128]")
@click.option("--nodes", metavar="N", type=_COUNT, help="For N targets of --cores each instead.")
@click.option("--cores", metavar="C", type=_COUNT, help="Cores per node. [default: 1]")
@click.option(
    "--seed",
    metavar="S",
    type=int,
    default=0,
    show_default=True,
    help="Random seed; the same seed gives the same trace.",
)
@click.option("--load", metavar="L", type=float, help="Demand as a fraction of the machine: 0.8. [default: any]")
@click.option("--users", metavar="N", type=_COUNT, default=50, show_default=True, help="Number of users.")
@click.option("--banks", metavar="N", type=_COUNT, help="Distribute the users over N banks. [default: none]")
@click.option("--elastic", metavar="P", type=float, default=0.0, help="Fraction of elastic jobs: 0.3. [default: none]")
@click.option("--parts", metavar="P", type=float, default=0.0,
              help="Fraction of elastic jobs of two parts. [default: none]")  # fmt: skip
@click.option("--max-hops", metavar="H", type=_COUNT, help="Maximum of hops within elastic jobs: 2, 4. [default: any]")
@click.option(
    "--swf", is_flag=True, help="Print SWF; with -o the name determines the format (.swf, .swf.gz, else JSON lines)."
)
@click.option("-o", "--output", "path", metavar="F", type=_OUT, help="Output file. [default: stdout]")
def gen(path: Path | None, **options: Any) -> None:
    """Generate a workload by the model of Lublin and Feitelson (2003)."""
    from fluxsched.sim.commands import make_workload

    with usage():
        lines = make_workload(path, **options)
    for line in lines:
        click.echo(line)


EXPORTED_MAX = 1_000_000
"""Jobs of one export; an instance keeps 100,000 unless it is configured otherwise."""

NO_MACHINE = "the record does not name its machine, as older versions did not"


@sim.command("export")
@click.option("--since", "since_s", metavar="WHEN", type=WHEN, help="Jobs that ended since -FSD or a date and time.")
@click.option("--anonymous", is_flag=True, help="Number jobs, users and banks instead of naming them.")
@click.option("--swf", is_flag=True,
              help="Print SWF; with -o the name determines the format (.swf, .swf.gz, else JSON lines).")  # fmt: skip
@click.option("-o", "--output", "path", metavar="F", type=_OUT, help="Output file. [default: stdout]")
@statedir_option
@uri_option
def export(
    since_s: float | None, anonymous: bool, swf: bool, path: Path | None, statedir: Path | None, uri: str | None
) -> None:
    """Write the ended jobs of an instance as a trace: as asked, with their real times, waits and results."""
    from fluxsched.sim.commands import export_trace

    _check_source(uri, statedir)
    if statedir is not None:
        record = _record(None, statedir, since_s, is_run=False)
        pairs, resources = record.jobs, record.resources
    else:
        pairs, resources = _listed(uri, since_s)
    trace, lines = export_trace(path, pairs, resources, anonymous=anonymous, swf=swf)
    for line in lines:
        click.echo(line)
    if trace.left_out:
        why = ", ".join(sorted({fault.why for fault in trace.faults}))
        warn(f"left out {trace.left_out} of {trace.left_out + len(trace.jobs)} jobs: {why}")
    if trace.machine is None:
        why = NO_MACHINE if resources is None else "the targets are not equal"
        warn(f"{why}: give `sim run` the machine with --R or --config")
    if away := sum([not _is_within(job, resources) for job, _ in pairs]):
        warn(
            f"{away} jobs had targets that this instance does not have: give `sim run` their machine with --R or "
            "--config, or export with --statedir"
        )


def _is_within(job: Mapping[str, Any], resources: ResourceSet | None) -> bool:
    ranks = job.get("ranks")
    return ranks is None or resources is None or Idset.parse(ranks) <= resources.ranks


def _check_source(uri: str | None, statedir: Path | None) -> None:
    if uri is not None and statedir is not None:
        raise click.UsageError("give either --statedir or --uri: both name an instance")


def _listed(uri: str | None, since_s: float | None) -> tuple[list[RecordedJob], ResourceSet | None]:
    """Return the ended jobs of an instance with their jobspecs, and its resources."""
    with connect(uri) as handle:
        request = {"states": ["INACTIVE"], "max_entries": EXPORTED_MAX, **({"since": since_s} if since_s else {})}
        jobs = handle.rpc("job-manager.list", request)["jobs"]
        asked = ({"id": job["id"], "keys": ["jobspec"]} for job in jobs)
        found = handle.rpc_each("job-manager.lookup", asked, window=EXPORT_WINDOW)
        specs = [answer.get("jobspec") if isinstance(answer, dict) else None for answer in found]
        resources = ResourceSet.parse(handle.rpc("resource.sched-status")["all"])
    return list(zip(jobs, specs, strict=True)), resources


def _record(uri: str | None, statedir: Path | None, since_s: float | None, *, is_run: bool) -> Record:
    """Return the record in a file of an instance, and say what of it cannot be read."""
    from fluxsched.instance.record import read_record

    record = read_record(uri, statedir, since_s, "a record", is_run=is_run)
    if record.damaged:
        warn(f"left out {record.damaged} jobs that cannot be read: see fluxsched doctor --statedir")
    return record


@click.command("what-if", cls=Command)
@click.option("--since", "since_s", metavar="WHEN", type=WHEN,
              help="The record since -FSD or a date and time. [default: all of it]")  # fmt: skip
@click.option("--policy", "policies", metavar="P", multiple=True,
              help="NAME or NAME:key=value,..., 'easy;debug=fifo' sets that of a queue; may be repeated.")  # fmt: skip
@click.option("--label", "labels", metavar="NAME", multiple=True,
              help="Name of a policy in tables and plots; one for each --policy, in order.")  # fmt: skip
@click.option("--config", metavar="F", type=_IN, help="Groups, queues, limits and banks of another configuration.")
@click.option("--nodes", metavar="+N", type=MORE, default=0, help="N targets more, like the last one.")
@click.option("--without", metavar="TARGETS", help="Not these targets.")
@click.option("--html", metavar="F", type=_OUT, help="Write one page with all charts, policies side by side.")
@click.option("--by", type=click.Choice(["user", "queue", "bank"]),
              help="Also show a table of users, queues or accounts.")  # fmt: skip
@statedir_option
@uri_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON: all figures, users and queues, unrounded.")
def what_if(since_s: float | None, statedir: Path | None, uri: str | None, as_json: bool, **wanted: Any) -> None:
    """Simulate what an instance has recorded: as it was, and what would have been under each change.

    Its jobs as they were asked for, with their real run times, and its drains and outages, go through the production
    scheduler in virtual time. The first column repeats the record, and the first line says how near it comes.
    """
    from fluxsched.sim.commands import Change, History
    from fluxsched.sim.commands import what_if as simulate_record
    from fluxsched.sim.record import RecordPeriod

    _check_source(uri, statedir)
    with usage():
        change = Change(**wanted)
    record = _record(uri, statedir, since_s, is_run=True)
    if not record.jobs:
        since = "in it" if since_s is None else "since then"
        raise InvalidValue(f"the record has no job {since}: give an earlier --since, or another --statedir or --uri")
    if record.resources is None:
        raise InvalidValue(f"{NO_MACHINE}: see fluxsched sim export")
    history = History(
        record.jobs,
        RecordPeriod(since_s, record.until_s),
        record.resources,
        record.config,
        record.policies,
        record.unusable,
    )
    with progress(SystemClock.monotonic_s) as bar:
        study = simulate_record(history, change, SystemClock.monotonic_s, bar)
    _write_page(study, change.html)
    _print(study, as_json)


def _write_page(study: Study, path: Path | None) -> None:
    if path is not None:
        from fluxsched.web.standalone import study_page

        made = f"fluxsched {__version__}: {shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])}"
        with working(f"drawing {path}"):
            path.write_text(study_page(study.drawing(), made), encoding="utf-8")


EXPORT_WINDOW = 64
"""Records of jobs that are asked for at a time."""


@contextmanager
def progress(monotonic_s: Callable[[], float]) -> Iterator[Callable[[str], ProgressLine] | None]:
    """Make a progress line a simulation, on a terminal only, and take them away at the end."""
    if not sys.stderr.isatty():
        yield None
        return
    from fluxsched.cli.output import ProgressLine

    lines: list[ProgressLine] = []

    def begin(title: str) -> ProgressLine:
        lines.append(ProgressLine(title, monotonic_s))
        return lines[-1]

    try:
        yield begin
    finally:
        for line in lines:
            line.clear()


def _print(study: Study, as_json: bool) -> None:
    if as_json:
        print_json(study.to_json())
        return
    for line in study.lines(shutil.get_terminal_size().columns if sys.stdout.isatty() else None):
        click.echo(printable(line))

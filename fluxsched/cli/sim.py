"""`fluxsched sim TRACE` and `fluxsched sim gen`: policies on a trace, in virtual time, and traces to try them on.

`sim TRACE` is short for `sim run TRACE`; a trace called `gen` or `run` is written `./gen`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fluxsched.cli.base import CommandGroup, usage, warn
from fluxsched.cli.options import FSD, Whole, connect, uri_option
from fluxsched.cli.output import print_json
from fluxsched.core.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fluxsched.cli.output import ProgressLine
    from fluxsched.sim.commands import Study

_IN = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUT = click.Path(dir_okay=False, path_type=Path)
_COUNT = Whole(min=1)


class SimGroup(CommandGroup):
    """The group whose first command may be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Pass arguments that name no command to `run`; a request for help, too."""
        if args and args[0] not in self.commands:
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

    `sim gen` generates traces; rfc/simulator.md describes formats and semantics.
    """
    from fluxsched.sim.commands import StudyOptions, replay_live, simulate
    from fluxsched.system.clock import SystemClock

    if uri is not None and speed is None:
        raise click.UsageError("--uri is for --speed: a simulation needs no instance")
    with usage():
        order = StudyOptions(**wanted)
    with progress(SystemClock.monotonic_s) as bar:
        if speed is None:
            study = simulate(order, SystemClock.monotonic_s, bar)
        else:
            with connect(uri) as handle:
                study = replay_live(order, handle, speed, _RealTime(), bar)
    if order.html is not None:
        from fluxsched.web.standalone import study_page

        order.html.write_text(study_page(study.drawing()), encoding="utf-8")
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
    for line in study.lines():
        click.echo(printable(line))


class _RealTime:
    """The clock of a replay."""

    def wall_s(self) -> float:
        from fluxsched.system.clock import SystemClock

        return SystemClock.wall_s()

    def sleep(self, delay_s: float) -> None:
        from fluxsched.system.clock import sleep

        sleep(delay_s)

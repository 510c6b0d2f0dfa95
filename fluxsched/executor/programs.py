"""Programs of the site on the hosts of an instance, which their keepers run as they run a job of one task.

Law: a program has a number as jobs have. It waits behind a gate until it is on record, and has a process group and
strays of its own, so nothing of it is left when its end is reported, and what a killed keeper or instance leaves of
it is ended like a job's. It is asked to end when its time is over, and killed after the kill timeout; its keeper does
so if there is no instance. Nothing of a job's environment reaches it, and its standard input is empty. What it prints
beyond a limit is read and dropped, so that it never waits for a reader.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.programs import OUTPUT_BYTES_MAX, PROGRAM_PATH, SiteProgram, first_line
from fluxsched.core.quantities import format_duration
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import FluxschedError
from fluxsched.executor.base import Executor, JobLaunch, Reports, TaskSettings, no_op, spool_directory
from fluxsched.executor.layout import remove
from fluxsched.system.log import logger
from fluxsched.system.loop import Timer, Turns

log = logger("exec")

BOUNDED = (
    'exec 3>&1; status=$({ { "$@" </dev/null 2>&1 3>&- 4>&-; echo $? >&4; } | '
    f"{{ head -c {OUTPUT_BYTES_MAX} >&3; cat >/dev/null; }}; }} 4>&1); exit $status"
)
"""Shell script that runs its arguments, passes on the first bytes of what they print, and ends with their status."""
EXPIRY_MARGIN_S = 5.0
"""Time beyond its limit after which a keeper without an instance ends a program (seconds)."""
NOT_RUN = 255 << 8
"""Wait status of a program that could not be run to its end."""


class ProgramEnd(NamedTuple):
    """How a program has ended: `line` is its first line, or the reason if it was not run to its end."""

    status: int
    line: str
    is_timeout: bool = False
    is_run: bool = True
    """False if it could not be run, or was lost with its keeper: that says nothing about its host."""

    @property
    def is_good(self) -> bool:
        """Return whether it has ended with status 0."""
        return self.status == 0 and self.is_run and not self.is_timeout

    @property
    def exit_code(self) -> int:
        """Return its exit code, as shells tell it."""
        return self.status >> 8 & 0xFF

    def reason(self, program: SiteProgram) -> str:
        """Return why it has failed, in a line."""
        if self.is_timeout:
            return f"{program.name} did not end within {format_duration(program.timeout_s)}"
        return self.line or f"{program.name} ended with status {self.exit_code} and printed nothing"


@dataclass(slots=True)
class RunningProgram:
    """A program that runs, or is to."""

    program: SiteProgram
    ended: Callable[[ProgramEnd], None]
    timer: Timer | None = None
    """Its time limit, which counts from when it has started."""
    is_over_time: bool = False


class HostPrograms:
    """Runs programs by the executor of jobs, whose reports about them it takes."""

    def __init__(
        self, turns: Turns, reports: Reports, make: Callable[[Reports], Executor], new_id: Callable[[float], int],
        settings: Callable[[], TaskSettings],
    ) -> None:  # fmt: skip
        """`make` makes the executor of jobs, whose reports go to `reports`; `new_id` makes numbers, `settings` are
        those of jobs that start now.
        """
        self._turns = turns
        self._new_id = new_id
        self._settings = settings
        self._running: dict[int, RunningProgram] = {}
        self.executor = make(self._without_ours(reports))

    def run(
        self, program: SiteProgram, host: str, resources: ResourceSet, variables: Mapping[str, str],
        ended: Callable[[ProgramEnd], None],
    ) -> int:  # fmt: skip
        """Run a program on a host, beside the target of it that is the first among `resources`; return its number.

        `ended` is called once, never before this returns.
        """
        number = self._new_id(self._turns.wall_s)
        launch = self._launch(program, number, host, resources, variables)
        self._running[number] = RunningProgram(program, ended)
        try:
            self.executor.start(launch)
        except FluxschedError as fault:
            note = str(fault)
            self._turns.post(lambda: self._lost(number, note))
        return number

    def end(self, number: int) -> None:
        """Ask a program to end; its end is reported."""
        self.executor.kill(number, signal.SIGTERM)

    def _launch(
        self, program: SiteProgram, number: int, host: str, resources: ResourceSet, variables: Mapping[str, str]
    ) -> JobLaunch:
        rank = next(rank for rank in resources.ranks if resources.host(rank) == host)
        r: dict[str, Any] = replace(resources, nslots=None).restrict(Idset.one(rank)).to_json()
        r["execution"]["nslots"] = 1
        environment = {"PATH": PROGRAM_PATH, "FLUXSCHED_HOST": host, **variables}
        jobspec = Jobspec.from_command(
            ["/bin/sh", "-c", BOUNDED, "fluxsched", *program.words], ntasks=1, cwd="/", environment=environment
        )
        expiration_s = self._turns.wall_s + program.timeout_s + EXPIRY_MARGIN_S
        return JobLaunch(number, jobspec, r, self._settings(), expiration_s=expiration_s)

    def _over_time(self, number: int) -> None:
        running = self._running.get(number)
        if running is not None:
            running.is_over_time = True
            self.end(number)

    # -- reports ------------------------------------------------------------------------------------------------

    def _without_ours(self, reports: Reports) -> Reports:
        """Return what the executor reports to: all but what is about programs is passed on."""

        def divided(ours: Callable[..., None], others: Callable[..., None]) -> Callable[..., None]:
            def report(number: int, *about: Any) -> None:
                (ours if number in self._running else others)(number, *about)

            return report

        return replace(
            reports,
            started=divided(self._started, reports.started),
            opened=divided(no_op, reports.opened),
            raised=divided(no_op, reports.raised),
            finished=divided(self._finished, reports.finished),
            failed=divided(self._lost, reports.failed),
            node_failed=divided(self._lost, reports.node_failed),
        )

    def _started(self, number: int) -> None:
        running = self._running[number]
        running.timer = self._turns.after(running.program.timeout_s, lambda: self._over_time(number))

    def _finished(self, number: int, status: int, usage: dict[str, Any] | None) -> None:
        running = self._running[number]
        output = self._output(number)
        if status and output:
            log.warning("%s: %s", running.program.name, output.decode(errors="replace").rstrip())
        self._ended(number, ProgramEnd(status, first_line(output), running.is_over_time))

    def _lost(self, number: int, note: str) -> None:
        log.warning("program %s was not run to its end: %s", format_f58(number), note)
        is_timeout = self._running[number].is_over_time
        self._ended(number, ProgramEnd(NOT_RUN, note, is_timeout, is_run=False))

    def _ended(self, number: int, end: ProgramEnd) -> None:
        running = self._running.pop(number)
        if running.timer is not None:
            running.timer.cancel()
        remove(str(spool_directory(self._settings().spool, number)))
        running.ended(end)

    def _output(self, number: int) -> bytes:
        try:
            path = spool_directory(self._settings().spool, number) / "stdout"
            with open(path, "rb") as file:
                return file.read(OUTPUT_BYTES_MAX)
        except OSError:
            return b""

"""Programs of the site before and after jobs (prolog, epilog), and the events about them (RFC 21).

Law: the tasks of a job are started once the `prolog-finish` of a prolog that has ended well is stored, and never
before; a prolog that an instance or a keeper left behind is run again. What a job has left is cleaned up once its end
is stored, by an epilog that runs before its resources are free. A host where one of them fails is drained, with the
first line that it has printed. A program says nothing about its host if it could not be run, since its keeper was lost,
or if it runs as the user of the job, who can make it fail. The prolog runs on the hosts where a job begins, the epilog
on those that it has at its end, and on those that it is shrunk by, before these are released.

Programs of the site on the hosts of an instance, which their keepers run as they run a job of one task.

Law: a program has a number as jobs have. It waits behind a gate until it is on record, and has a process group and
strays of its own, so nothing of it is left when its end is reported, and what a killed keeper or instance leaves of
it is ended like a job's. It is asked to end when its time is over, and killed after the kill timeout; its keeper does
so if there is no instance. Nothing of a job's environment reaches it, and its standard input is empty. What it prints
beyond a limit is read and dropped, so that it never waits for a reader.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec import structs

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.programs import OUTPUT_BYTES_MAX, PROGRAM_PATH, SiteProgram, first_line
from fluxsched.core.quantities import format_duration
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import FluxschedError, Refused
from fluxsched.executor.base import (
    TERMINATING,
    Executor,
    InputPlace,
    JobLaunch,
    Measured,
    PerilogReports,
    Reports,
    ResumedJob,
    TaskSettings,
    no_op,
    spool_directory,
)
from fluxsched.executor.hosts import NO_COMMANDS, CommandExecutor, HostCommand
from fluxsched.executor.layout import remove
from fluxsched.jobs.states import EPILOG_FINISH, EPILOG_START, PROLOG_FINISH, PROLOG_START
from fluxsched.system.files import user_name
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
        ended: Callable[[ProgramEnd], None], userid: int | None = None,
    ) -> int:  # fmt: skip
        """Run a program on a host, beside the target of it that is the first among `resources`; return its number.
        `userid` is as in `JobLaunch`.

        `ended` is called once, never before this returns.
        """
        number = self._new_id(self._turns.wall_s)
        launch = structs.replace(self._launch(program, number, host, resources, variables), userid=userid)
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
        """Return the receiver of the executor's reports, which passes on those about jobs."""

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


# ---- an executor with a prolog and an epilog around each job

ENDED_BEFORE: Final = "it was ended before its tasks ran"


@dataclass(slots=True)
class PerilogJob:
    """A job of the executor, with the programs that run for it now."""

    launch: JobLaunch
    resources: ResourceSet
    """All that the job holds, on all hosts."""
    is_waiting: bool = True
    """True before its tasks are started."""
    is_ending: bool = False
    program: SiteProgram | None = None
    """The one that runs, or ran last."""
    programs: dict[str, int] = field(default_factory=dict)
    """Its numbers, by the hosts on which it still runs."""
    status: int = 0
    """The largest status of those that have ended."""
    reasons: list[str] = field(default_factory=list)
    """Reasons why some have failed."""
    later: list[Callable[[], None]] = field(default_factory=list)
    """Requests for its tasks that came before these were started."""
    leaving: Idset = EMPTY
    """Targets that it was shrunk by where epilogs run."""
    is_over: bool = False
    """True if nothing is left to do for it but that."""

    def leave(self, ranks: Idset) -> ResourceSet:
        """Take these targets away; return those on hosts where it has no others."""
        before, self.resources = self.resources, self.resources.without(ranks)
        kept = set(self.resources.nodelist.hosts)
        gone = ranks & before.ranks
        return before.restrict(Idset.of([rank for rank in gone if before.host(rank) not in kept]))


class PerilogExecutor:
    """Runs the prolog before each job, and the epilog after it; the jobs themselves are another executor's."""

    def __init__(
        self, turns: Turns, reports: Reports, make: Callable[[Reports], Executor], new_id: Callable[[float], int],
        settings: Callable[[], TaskSettings], owner: Callable[[int], int], prolog: SiteProgram | None,
        epilog: SiteProgram | None,
    ) -> None:  # fmt: skip
        """`make`, `new_id` and `settings` are those of `HostPrograms`; `owner` returns the user of a job."""
        assert reports.perilog is not None, "somebody takes the reports about programs"
        self._turns = turns
        self._reports = reports
        self._said: PerilogReports = reports.perilog
        self._owner = owner
        self._prolog = prolog
        self._epilog = epilog
        self._jobs: dict[int, PerilogJob] = {}
        own = Reports(
            reports.started, self._finished, self._failed, reports.record, reports.raised, reports.opened,
            reports.stored, self._released, self._lost, reports.fence, reports.spooled, self._node_failed,
            reports.closed,
        )  # fmt: skip
        self.programs = HostPrograms(turns, own, make, new_id, settings)
        """Programs on the hosts, whatever they are for."""
        self._tasks = self.programs.executor

    def configure(self, prolog: SiteProgram | None, epilog: SiteProgram | None) -> None:
        """Run other programs from now on; those that run go on."""
        self._prolog, self._epilog = prolog, epilog

    # -- requests -----------------------------------------------------------------------------------------------

    def resume(self, jobs: Sequence[ResumedJob], records: Mapping[int, object], settled: Callable[[], None]) -> None:
        """See `Executor.resume`. Jobs whose prolog had not ended are prepared again, those whose epilog had not are
        cleaned up again, once nothing is left of what ran for them.
        """
        running, then = list[ResumedJob](), list[Callable[[], None]]()
        for job in jobs:
            jobid, launch = job.launch.jobid, job.launch
            kept = self._jobs[jobid] = PerilogJob(launch, ResourceSet.parse(launch.R), is_ending=job.is_ending)
            if job.perilog in (EPILOG_START, EPILOG_FINISH):
                kept.is_waiting = False
                kept.leave(job.freed)
                then.append(partial(self._clean, kept))
            elif job.record is None and job.begun_s is None and job.perilog != PROLOG_FINISH and self._prolog:
                if job.going:
                    kept.later.append(partial(self._tasks.shrink, jobid, job.going, job.grace_s))
                then.append(partial(self._prepare, kept))
            else:
                kept.is_waiting = False
                running.append(job)

        def tasks_settled() -> None:
            settled()
            for call in then:
                self._turns.post(call)

        self._tasks.resume(running, records, tasks_settled)

    def start(self, job: JobLaunch) -> None:
        kept = self._jobs[job.jobid] = PerilogJob(job, ResourceSet.parse(job.R))
        if self._prolog is not None:
            self._prepare(kept)
            return
        kept.is_waiting = False
        try:
            self._tasks.start(job)
        except FluxschedError as fault:
            note = str(fault)
            self._turns.post(lambda: self._failed(job.jobid, note))

    def limit(self, jobid: int, expiration_s: float) -> None:
        job = self._jobs.get(jobid)
        if job is not None:
            job.launch = structs.replace(job.launch, expiration_s=expiration_s)
        self._tasks.limit(jobid, expiration_s)

    def kill(self, jobid: int, signum: int, grace_s: float | None = None) -> None:
        """See `Executor.kill`; a job that is to end ends its prolog, and no task of it is started."""
        job = self._jobs.get(jobid)
        if job is None or not job.is_waiting:
            self._tasks.kill(jobid, signum, grace_s)
        elif signum in TERMINATING:
            job.is_ending = True
            for number in job.programs.values():
                self.programs.end(number)
        else:
            job.later.append(partial(self._tasks.kill, jobid, signum, grace_s))

    def grow(self, jobid: int, r: Mapping[str, Any]) -> None:
        job = self._jobs.get(jobid)
        if job is not None:
            job.resources |= ResourceSet.parse(r)
        self._when_started(job, partial(self._tasks.grow, jobid, r))

    def shrink(self, jobid: int, ranks: Idset, grace_s: float | None = None) -> None:
        self._when_started(self._jobs.get(jobid), partial(self._tasks.shrink, jobid, ranks, grace_s))

    def _when_started(self, job: PerilogJob | None, call: Callable[[], None]) -> None:
        if job is not None and job.is_waiting:
            job.later.append(call)
        else:
            call()

    def give_back(self, jobid: int, ranks: Idset) -> None:
        self._tasks.give_back(jobid, ranks)

    def input_of(self, jobid: int) -> InputPlace | None:
        return self._tasks.input_of(jobid)

    def measure(self, jobid: int, measured: Measured) -> None:
        self._tasks.measure(jobid, measured)

    def run_command(self, number: int, job: JobLaunch, host: str, text: str, command: HostCommand) -> None:
        """See `CommandExecutor.run_command`. Raises Refused where the executor of the jobs runs none."""
        if not isinstance(self._tasks, CommandExecutor):
            raise Refused(NO_COMMANDS, errno.ENOSYS)
        self._tasks.run_command(number, job, host, text, command)

    def close(self) -> None:
        self._tasks.close()

    def detach(self, within_s: float) -> None:
        self._tasks.detach(within_s)

    # -- before the tasks ---------------------------------------------------------------------------------------

    def _prepare(self, job: PerilogJob) -> None:
        """Run the prolog, unless the job is to end."""
        prolog, jobid = self._prolog, job.launch.jobid
        assert prolog is not None, "there is a prolog"
        if job.is_ending:
            self._failed(jobid, ENDED_BEFORE)
            return
        self._said.noted(jobid, PROLOG_START, {"description": prolog.name})
        self._run(job, prolog, "prolog", self._prepared)

    def _prepared(self, job: PerilogJob) -> None:
        jobid = job.launch.jobid
        self._said.noted(jobid, PROLOG_FINISH, self._result(job))
        if job.is_ending:
            self._failed(jobid, ENDED_BEFORE)
        elif job.status:
            self._said.unprepared(jobid, job.reasons[0])
            self._clean_later(job)
        else:
            self._reports.stored(partial(self._start_tasks, job))

    def _start_tasks(self, job: PerilogJob) -> None:
        jobid = job.launch.jobid
        job.is_waiting = False
        if job.is_ending:
            self._failed(jobid, ENDED_BEFORE)
            return
        try:
            self._tasks.start(job.launch)
        except FluxschedError as fault:
            self._failed(jobid, str(fault))
            return
        later, job.later = job.later, []
        for call in later:
            call()

    # -- after the tasks ----------------------------------------------------------------------------------------

    def _finished(self, jobid: int, status: int, usage: dict[str, Any] | None) -> None:
        job = self._jobs.get(jobid)
        if job is None:  # it is another executor's
            self._reports.finished(jobid, status, usage)
            return
        self._said.ended(jobid, status, usage)
        self._clean_later(job)

    def _failed(self, jobid: int, note: str, is_lost: bool = False) -> None:
        job = self._jobs.get(jobid)
        if job is None:
            report = self._reports.node_failed if is_lost else self._reports.failed
            report(jobid, note)
            return
        self._said.failed(jobid, note, is_lost)
        self._clean_later(job)

    def _node_failed(self, jobid: int, note: str) -> None:
        self._failed(jobid, note, is_lost=True)

    def _clean_later(self, job: PerilogJob) -> None:
        """Clean up once it is stored that no task of the job will be started."""
        job.is_waiting = False
        jobid, epilog = job.launch.jobid, self._epilog
        if epilog is None:
            self._freed(jobid)
            return
        self._said.noted(jobid, EPILOG_START, {"description": epilog.name})
        self._reports.stored(partial(self._clean, job))

    def _clean(self, job: PerilogJob) -> None:
        """Run the epilog, if there is one still: the instance before may have begun with one."""
        if self._epilog is None:
            self._freed(job.launch.jobid)
        else:
            self._run(job, self._epilog, "epilog", self._cleaned)

    def _cleaned(self, job: PerilogJob) -> None:
        jobid = job.launch.jobid
        self._said.noted(jobid, EPILOG_FINISH, self._result(job))
        self._freed(jobid)

    def _freed(self, jobid: int) -> None:
        job = self._jobs[jobid]
        job.is_over = True
        if not job.leaving:
            del self._jobs[jobid]
            self._said.freed(jobid)

    def _released(self, jobid: int, ranks: Idset) -> None:
        """Clean up what a running job leaves before that is released; the report may be repeated meanwhile."""
        job, epilog = self._jobs.get(jobid), self._epilog
        news = ranks if job is None else ranks - job.leaving
        left = None if job is None else job.leave(news)
        if job is None or not left or epilog is None or not epilog.is_per_host:
            if news:
                self._reports.released(jobid, news)
            return
        job.leaving |= news
        self._run(PerilogJob(job.launch, left), epilog, "epilog", lambda cleaned: self._left(job, news))

    def _left(self, job: PerilogJob, ranks: Idset) -> None:
        jobid = job.launch.jobid
        job.leaving -= ranks
        self._reports.released(jobid, ranks)
        if job.is_over:
            self._freed(jobid)

    def _lost(self, jobid: int, ranks: Idset, note: str) -> None:
        job = self._jobs.get(jobid)
        if job is not None:
            job.resources = job.resources.without(ranks)
        self._reports.lost(jobid, ranks, note)

    # -- programs -----------------------------------------------------------------------------------------------

    def _run(self, job: PerilogJob, program: SiteProgram, what: str, then: Callable[[PerilogJob], None]) -> None:
        """Run a program on the hosts of a job, or on the first one; `then` is called when all have ended."""
        job.status, job.reasons, job.program = 0, [], program
        hosts = job.resources.nodelist.unique().hosts
        variables = self._variables(job)
        for host in hosts if program.is_per_host else hosts[:1]:
            job.programs[host] = self.programs.run(
                program, host, job.resources, variables, partial(self._ended, job, what, program, host, then),
                _user_of(program, job.launch),
            )  # fmt: skip
        if not job.programs:
            self._turns.post(partial(then, job))

    def _ended(
        self, job: PerilogJob, what: str, program: SiteProgram, host: str, then: Callable[[PerilogJob], None],
        end: ProgramEnd,
    ) -> None:  # fmt: skip
        del job.programs[host]
        if not end.is_good:
            job.status = max(job.status, end.status or signal.SIGTERM)
            reason = end.reason(program)
            job.reasons.append(f"{host}: {reason}")
            has_failed = what == "epilog" or not job.is_ending  # a job that ends interrupts its prolog alone
            if has_failed and end.is_run and _user_of(program, job.launch) is None:
                self._said.drain(host, reason, what)
        if not job.programs:
            then(job)

    def _variables(self, job: PerilogJob) -> dict[str, str]:
        jobid, userid = job.launch.jobid, self._owner(job.launch.jobid)
        return {
            "FLUXSCHED_JOBID": format_f58(jobid),
            "FLUXSCHED_USERID": str(userid),
            "FLUXSCHED_USER": user_name(userid),
            "FLUXSCHED_RANKS": str(job.resources.ranks),
            "FLUXSCHED_HOSTS": str(job.resources.nodelist.unique()),
        }

    def _result(self, job: PerilogJob) -> dict[str, Any]:
        return {"description": "" if job.program is None else job.program.name, "status": job.status}


def _user_of(program: SiteProgram, job: JobLaunch) -> int | None:
    """Return the user as whom a program runs for a job; None: the instance's own."""
    return job.userid if program.is_users else None

"""Programs of the site before and after jobs (prolog, epilog), and the events about them (RFC 21).

Law: the tasks of a job are started once the `prolog-finish` of a prolog that has ended well is stored, and never
before; a prolog that an instance or a keeper left behind is run again. What a job has left is cleaned up once its end
is stored, by an epilog that runs before its resources are free. A host where one of them fails is drained, with the
first line that it has printed. A program that could not be run, since its keeper was lost, says nothing about its
host. The prolog runs on the hosts where a job begins, the epilog on those that it has at its end.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from msgspec import structs

from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.programs import SiteProgram
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import FluxschedError, Refused
from fluxsched.executor.base import (
    TERMINATING,
    Executor,
    InputPlace,
    JobLaunch,
    PerilogReports,
    Reports,
    ResumedJob,
    TaskSettings,
)
from fluxsched.executor.commands import NO_COMMANDS, CommandExecutor, HostCommand
from fluxsched.executor.programs import HostPrograms, ProgramEnd
from fluxsched.jobs.states import EPILOG_FINISH, EPILOG_START, PROLOG_FINISH, PROLOG_START
from fluxsched.system.files import user_name
from fluxsched.system.loop import Turns

ENDED_BEFORE: Final = "it was ended before its tasks ran"


@dataclass(slots=True)
class PerilogJob:
    """A job of the executor, with the programs that run for it now."""

    launch: JobLaunch
    resources: ResourceSet
    """All that it holds."""
    is_waiting: bool = True
    """True before its tasks are started."""
    is_ending: bool = False
    programs: dict[str, int] = field(default_factory=dict)
    """The numbers of the programs that run, by host."""
    status: int = 0
    """The largest status of those that have ended."""
    reasons: list[str] = field(default_factory=list)
    """Reasons why some have failed."""
    later: list[Callable[[], None]] = field(default_factory=list)
    """Requests for its tasks that came before these were started."""


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
        """See `Executor.start`."""
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
        """See `Executor.limit`."""
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
        """See `Executor.grow`."""
        job = self._jobs.get(jobid)
        if job is not None:
            job.resources |= ResourceSet.parse(r)
        self._when_started(job, partial(self._tasks.grow, jobid, r))

    def shrink(self, jobid: int, ranks: Idset, grace_s: float | None = None) -> None:
        """See `Executor.shrink`."""
        self._when_started(self._jobs.get(jobid), partial(self._tasks.shrink, jobid, ranks, grace_s))

    def _when_started(self, job: PerilogJob | None, call: Callable[[], None]) -> None:
        if job is not None and job.is_waiting:
            job.later.append(call)
        else:
            call()

    def give_back(self, jobid: int, ranks: Idset) -> None:
        """See `Executor.give_back`."""
        self._tasks.give_back(jobid, ranks)

    def input_of(self, jobid: int) -> InputPlace | None:
        """See `Executor.input_of`."""
        return self._tasks.input_of(jobid)

    def run_command(self, number: int, job: JobLaunch, host: str, text: str, command: HostCommand) -> None:
        """See `CommandExecutor.run_command`. Raises Refused where the executor of the jobs runs none."""
        if not isinstance(self._tasks, CommandExecutor):
            raise Refused(NO_COMMANDS, errno.ENOSYS)
        self._tasks.run_command(number, job, host, text, command)

    def close(self) -> None:
        """See `Executor.close`."""
        self._tasks.close()

    def detach(self, within_s: float) -> None:
        """See `Executor.detach`."""
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
        self._run(job, prolog, self._prepared)

    def _prepared(self, job: PerilogJob) -> None:
        jobid = job.launch.jobid
        self._said.noted(jobid, PROLOG_FINISH, self._result(job, self._prolog))
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
            self._run(job, self._epilog, self._cleaned)

    def _cleaned(self, job: PerilogJob) -> None:
        jobid = job.launch.jobid
        self._said.noted(jobid, EPILOG_FINISH, self._result(job, self._epilog))
        self._freed(jobid)

    def _freed(self, jobid: int) -> None:
        del self._jobs[jobid]
        self._said.freed(jobid)

    def _released(self, jobid: int, ranks: Idset) -> None:
        job = self._jobs.get(jobid)
        if job is not None:
            job.resources = job.resources.without(ranks)
        self._reports.released(jobid, ranks)

    def _lost(self, jobid: int, ranks: Idset, note: str) -> None:
        job = self._jobs.get(jobid)
        if job is not None:
            job.resources = job.resources.without(ranks)
        self._reports.lost(jobid, ranks, note)

    # -- programs -----------------------------------------------------------------------------------------------

    def _run(self, job: PerilogJob, program: SiteProgram, then: Callable[[PerilogJob], None]) -> None:
        """Run a program on the hosts of a job, or on the first one; `then` is called when all have ended."""
        job.status, job.reasons, what = 0, [], "prolog" if program is self._prolog else "epilog"
        hosts = job.resources.nodelist.unique().hosts
        variables = self._variables(job)
        for host in hosts if program.is_per_host else hosts[:1]:
            job.programs[host] = self.programs.run(
                program, host, job.resources, variables, partial(self._ended, job, what, program, host, then)
            )
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
            if end.is_run and not job.is_ending:
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

    def _result(self, job: PerilogJob, program: SiteProgram | None) -> dict[str, Any]:
        return {"description": "" if program is None else program.name, "status": job.status}

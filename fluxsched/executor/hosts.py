"""Jobs over several hosts, each of which has a keeper of its own.

Law: a job of one host is that host's executor's affair. A job of several has a part on each host that runs tasks of it;
no task runs before the processes of all parts are on record, since a part that cannot be started is to find that no
other has done anything. It is started when all parts are, has finished when all have, with the largest status, and what
it used is the sum. A part that fails ends the others, but an elastic job that runs goes on without it. A part's end
stays on record until the whole job has ended: else the next instance would start it again. An elastic job is of several
hosts even while it is on one.

A command beside the tasks of a job is how a launcher starts its helpers on a host, as rsh would. It has a number as
jobs have, and runs at its host's keeper as a job of one task does: on record, with its own process group and strays. It
uses what its job holds, so the job is not over before its commands are: when its tasks have ended they are asked to
end, and its end is reported when none is left.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import or_, sub
from signal import SIGKILL, SIGTERM
from typing import Any, NamedTuple, Protocol, runtime_checkable

from msgspec import structs

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import FluxschedError, Refused
from fluxsched.executor.base import (
    Executor,
    InputAnswer,
    InputPlace,
    JobLaunch,
    Measured,
    Reports,
    ResumedJob,
    StoreOutput,
    Window,
    no_op,
)
from fluxsched.executor.cleanup import HOSTS, LEFT
from fluxsched.executor.forward import OutputReceiver
from fluxsched.executor.keeper import TIMEOUT
from fluxsched.executor.layout import JobTasks, is_instance, more_blocks, program_of
from fluxsched.executor.tasks import PmiFences
from fluxsched.executor.usage import merged
from fluxsched.executor.wire import PmiFence, PmiFenceDone
from fluxsched.jobs.states import EXEC, NODE_FAILURE
from fluxsched.system.log import logger, of_job
from fluxsched.system.loop import Turns

log = logger("exec")

NEXT, RANKS, TASKS, FORMER = "next", "ranks", "tasks", "former"
"""Keys beside the records of a job's parts (`HOSTS`): the number of its next task, the targets and the tasks of each
part, and the tasks, status and usage of parts that had ended before the job got targets on their hosts again.
"""
NEVER_RAN = "it was ended before its tasks ran"
ENDED = "ended"
"""Key of the record of a part that has ended: its wait status, what it used, and why it failed."""


class HostExecutor(Executor, Protocol):
    """Executor of one host."""

    def open(self, jobid: int) -> None:
        """Open the gate of a shared job, since the processes of all its parts are on record. Idempotent."""
        ...

    def fence_done(self, one: PmiFenceDone) -> None:
        """Let the tasks of a job here out of a barrier that all its hosts have reached."""
        ...

    def grow_from(self, jobid: int, r: Mapping[str, Any], first: int) -> None:
        """Give a running job the targets of `r`, too; its new tasks are numbered from `first` on."""
        ...


MakeHost = Callable[[str, Reports, StoreOutput], HostExecutor]


@dataclass(slots=True)
class HostPart:
    """Tasks of a job on one host."""

    ranks: Idset
    """The targets where it runs tasks."""
    tasks: Idset
    """The numbers of all tasks that it has had."""
    record: Any = None
    """Identification of its processes, once that is known; its end if it has ended."""
    has_started: bool = False
    takes_input: bool = False
    going: Idset = EMPTY
    """Targets that are to be given back."""

    @property
    def is_recorded(self) -> bool:
        """Return whether its processes are on record, or it has ended."""
        return self.record is not None

    @property
    def has_ended(self) -> bool:
        """Return whether no process of it is left."""
        return self.record is not None and ENDED in self.record

    def end(self) -> PartEnd:
        """Return how it has ended."""
        status, usage = self.record[ENDED][:2]
        return PartEnd(self.tasks, status, usage)


class PartEnd(NamedTuple):
    """End of some tasks of a job, with what they used, if that was measured."""

    tasks: Idset
    status: int
    usage: Mapping[str, Any] | None


def end_of_all(ends: Sequence[PartEnd]) -> PartEnd:
    """Return the end of several parts as that of one."""
    tasks = reduce(or_, [end.tasks for end in ends])
    return PartEnd(tasks, max(end.status for end in ends), merged([(end.tasks, end.usage) for end in ends]))


@dataclass(slots=True)
class HostsJob:
    """Job of several hosts."""

    launch: JobLaunch
    tasks: JobTasks
    """All tasks, of all hosts."""
    parts: dict[str, HostPart] = field(default_factory=dict)
    next: int = 0
    """The number of its next task."""
    is_open: bool = False
    is_started: bool = False
    note: str | None = None
    """Why a part of it has failed, first."""
    is_lost: bool = False
    """True if that was the loss of its host."""
    former: PartEnd | None = None
    """End of the parts that had ended before the job got targets on their hosts again."""

    def record(self) -> dict[str, Any]:
        """Return what is to be on record of the job."""
        recorded = {host: part.record for host, part in self.parts.items() if part.is_recorded}
        ranks = {host: str(part.ranks) for host, part in self.parts.items()}
        tasks = {host: str(part.tasks) for host, part in self.parts.items() if part.tasks}
        found = {HOSTS: recorded, NEXT: self.next, RANKS: ranks, TASKS: tasks}
        return found if self.former is None else found | {FORMER: [str(self.former.tasks), *self.former[1:]]}

    def restore_tasks(self, stored: Mapping[str, Any]) -> list[str]:
        """Restore the numbers of the tasks of all parts from what is on record; return the hosts where R alone numbers
        them otherwise. A part that is not on record is of a grow that was stored and not carried out: it is next.
        """
        self.next = int(stored.get(NEXT, self.next))
        known, found = stored.get(TASKS, {}), list[str]()
        for host, part in self.parts.items():
            tasks = Idset.parse(known[host]) if host in known else part.tasks
            if host not in stored.get(RANKS, self.parts):
                first, self.next = self.next, self.next + len(tasks)
                tasks = Idset.span(first, self.next - 1)
            if tasks != part.tasks:
                part.tasks = tasks
                found.append(host)
        return found

    def ends(self) -> list[PartEnd]:
        """Return the ends of all parts that have ended."""
        found = [part.end() for part in self.parts.values() if part.has_ended]
        return found if self.former is None else [self.former, *found]

    def begin_part(self, host: str, part: HostPart) -> None:
        """Add a part on a host where the job has none, or none that has not ended."""
        old = self.parts.pop(host, None)
        if old is not None:
            self.former = end_of_all([old.end()] if self.former is None else [self.former, old.end()])
        self.parts[host] = part

    def failed(self, note: str | None, is_lost: bool) -> None:
        """Note why a part has failed, if one before it has not."""
        if self.note is None:
            self.note, self.is_lost = note, is_lost

    @property
    def exception_type(self) -> str:
        """Return the type of the exception for the first part that has failed."""
        return NODE_FAILURE if self.is_lost else EXEC

    @property
    def goes_on_without_part(self) -> bool:
        """Return whether the other parts run on if one fails: those of an elastic job that has started do."""
        return self.is_started and self.launch.jobspec.request.elastic

    def running(self) -> list[str]:
        """Return the hosts whose parts have not ended."""
        return [host for host, part in self.parts.items() if not part.has_ended]


class HostsExecutor:
    """Executor of the jobs of an instance whose targets are on many hosts."""

    def __init__(
        self, turns: Turns, reports: Reports, hosts: Iterable[str], make: MakeHost,
    ) -> None:  # fmt: skip
        """`make` makes the executor of a host, given the receivers of its reports and of its tasks' output."""
        self._make = make
        self._turns = turns
        self._reports = reports
        self._host_of: dict[int, str] = {}
        """The hosts of jobs that are on one only."""
        self._jobs: dict[int, HostsJob] = {}
        self._unsettled = 0
        self._left: dict[int, dict[str, Any]] = {}
        """Processes of parts that were given up with their hosts, until a keeper there has looked for them."""
        self._fences = PmiFences()
        self._commands = HostCommands(lambda number: self.kill(number, SIGTERM))
        self._output = OutputReceiver()
        self._hosts = {host: self._made(host) for host in hosts}

    def _made(self, host: str) -> HostExecutor:
        return self._make(host, self._reports_of(host), self._output.received)

    def add_host(self, host: str) -> None:
        """Take in a further host, where no job of ours runs."""
        self._hosts[host] = self._made(host)
        self._hosts[host].resume((), {}, no_op)

    def _reports_of(self, host: str) -> Reports:
        return Reports(
            partial(self._started, host), partial(self._finished, host), partial(self._failed, host),
            partial(self._record, host), partial(self._raised, host), partial(self._opened, host), self._reports.stored,
            partial(self._released, host), fence=partial(self._fence, host),
            node_failed=partial(self._failed, host, is_lost=True),
        )  # fmt: skip

    # -- requests -----------------------------------------------------------------------------------------------

    def resume(self, jobs: Sequence[ResumedJob], records: Mapping[int, object], settled: Callable[[], None]) -> None:
        resumed: dict[str, list[ResumedJob]] = {host: [] for host in self._hosts}
        left = _by_host(records)
        self._left = {jobid: dict(one[LEFT]) for jobid, one in records.items() if isinstance(one, dict) and LEFT in one}
        for job in jobs:
            try:
                self._resume_job(job, records.get(job.launch.jobid), resumed)
            except FluxschedError as fault:
                self._forget(job.launch.jobid)
                self._turns.post(partial(self._reports.failed, job.launch.jobid, str(fault)))
        self._unsettled = len(self._hosts)

        def one_settled() -> None:
            self._unsettled -= 1
            if not self._unsettled:
                settled()

        for host, executor in self._hosts.items():
            of_jobs = {job.launch.jobid: job.record for job in resumed[host] if job.record is not None}
            executor.resume(resumed[host], left.get(host, {}) | of_jobs, one_settled)
        for job in jobs:
            found = self._jobs.get(job.launch.jobid)
            if found is not None:
                self._check_open(found)
                if found.note is not None and not found.is_started:  # the instance before did so, perhaps in vain
                    self.kill(job.launch.jobid, SIGKILL)

    def _resume_job(self, job: ResumedJob, stored: Any, resumed: Mapping[str, list[ResumedJob]]) -> None:
        launch, stored = job.launch, stored if isinstance(stored, dict) else {}
        found = self._placed(launch)
        recorded = stored.get(HOSTS, {})
        if stored and HOSTS not in stored:  # that of a backup, or of an instance without other hosts
            recorded = dict.fromkeys(self._hosts, stored)
        if found is None:
            host = self._host_of[launch.jobid]
            resumed[host].append(job._replace(record=recorded.get(host)))
            return
        if FORMER in stored:
            tasks, status, usage = stored[FORMER]
            found.former = PartEnd(Idset.parse(tasks), status, usage)
        found.is_started = job.begun_s is not None
        for host, ranks in stored.get(RANKS, {}).items():  # also where all targets are to be given back
            if host in self._hosts:
                found.parts.setdefault(host, HostPart(Idset.parse(ranks), EMPTY))
        numbered = found.restore_tasks(stored)
        for host, part in found.parts.items():
            part.record = recorded.get(host)
            part.has_started = found.is_started
            part.going = job.going & part.ranks
            if part.has_ended:
                self._fences.gone(launch.jobid, host)
                self._say_failed(found, part)
            else:
                own = structs.replace(launch, ranks=part.ranks, is_shared=True)
                if host in numbered and part.record is None:
                    alone = replace(ResourceSet.parse(launch.R), nslots=None).restrict(part.ranks)
                    own = structs.replace(own, R=alone.to_json(), first=part.tasks.min())
                resumed[host].append(job._replace(launch=own, record=part.record, going=part.going))
        if idle := reduce(sub, [found.parts[host].going for host in found.running()], job.going):
            self._turns.post(partial(self._reports.released, launch.jobid, idle))
        if not found.running():
            self._turns.post(partial(self._complete, found))

    def _say_failed(self, job: HostsJob, part: HostPart) -> None:
        """Say again that a part has failed, if it has: the instance before may have had no time for it, and a job that
        needed its targets to keep its minimum may have others now.
        """
        _, _, note, *is_lost = part.record[ENDED]
        if note is not None and job.goes_on_without_part:
            self._turns.post(partial(self._reports.lost, job.launch.jobid, part.ranks, note))
        else:
            job.failed(note, True in is_lost)

    def start(self, job: JobLaunch) -> None:
        """See `Executor.start`. Raises FluxschedError if it has no tasks, or a host has no keeper."""
        found = self._placed(job)
        try:
            if found is None:
                self._hosts[self._host_of[job.jobid]].start(job)
                return
            self._output.begin(job)
        except FluxschedError:
            self._forget(job.jobid)
            raise
        for host, part in found.parts.items():
            try:
                self._hosts[host].start(structs.replace(job, ranks=part.ranks, is_shared=True))
            except FluxschedError as fault:
                self._turns.post(partial(self._failed, host, job.jobid, str(fault)))

    def _placed(self, job: JobLaunch) -> HostsJob | None:
        """Return a job of several hosts, with its parts; of one that is on one host, that is noted instead.

        Raises FluxschedError.
        """
        resources = ResourceSet.parse(job.R)
        hosts = resources.nodelist.unique()
        if unknown := [host for host in hosts if host not in self._hosts]:
            raise Refused(f"host {unknown[0]} of the job has no keeper in this instance", errno.EHOSTUNREACH)
        if is_instance(job.jobspec) or (len(hosts) == 1 and not job.jobspec.request.elastic):
            self._host_of[job.jobid] = hosts[0]
            return None
        tasks = program_of(structs.replace(job, ranks=EMPTY), resources)
        parts: dict[str, HostPart] = {}
        for block in tasks.blocks:
            if block.ntasks:
                numbers = Idset.span(block.first, block.first + block.ntasks - 1)
                _add(parts, resources.host(block.rank), block.rank, numbers)
        if len(parts) == 1 and not job.jobspec.request.elastic:
            self._host_of[job.jobid] = next(iter(parts))
            return None
        found = self._jobs[job.jobid] = HostsJob(job, tasks, parts, tasks.next)
        self._fences.add_job(job.jobid, parts)
        return found

    def run_command(self, number: int, job: JobLaunch, host: str, text: str, command: HostCommand) -> None:
        launch = command_launch(job, number, host, text)
        if host not in self._hosts or not self._running(job.jobid):
            raise Refused(f"job {format_f58(job.jobid)} does not run on {host}", errno.ESRCH)
        self._commands.add(number, command)
        self._host_of[number] = host
        try:
            self._hosts[host].start(launch)
        except FluxschedError as fault:
            self._turns.post(partial(self._failed, host, number, str(fault)))

    def limit(self, jobid: int, expiration_s: float) -> None:
        for host in self._running(jobid):
            self._hosts[host].limit(jobid, expiration_s)

    def kill(self, jobid: int, signum: int, grace_s: float | None = None) -> None:
        for host in self._running(jobid):
            self._hosts[host].kill(jobid, signum, grace_s)

    def grow(self, jobid: int, r: Mapping[str, Any]) -> None:
        """See `Executor.grow`; a job that is an instance takes further targets by itself."""
        job = self._jobs.get(jobid)
        if job is None:
            return
        more = replace(ResourceSet.parse(r), nslots=None)  # they are those of all of it, and each host gets its own
        new = more_blocks(job.launch.jobspec, more, job.tasks)
        job.tasks.blocks.extend(new)
        parts: dict[str, HostPart] = {}
        for block in new:
            first, job.next = job.next, job.next + block.ntasks
            _add(parts, more.host(block.rank), block.rank, Idset.span(first, first + block.ntasks - 1))
        for host, part in parts.items():
            self._grow_part(job, host, part, more.restrict(part.ranks).to_json())
        for part in job.parts.values():
            if part.has_ended:
                self._say_failed(job, part)
        self._keep(job)

    def _grow_part(self, job: HostsJob, host: str, new: HostPart, r: dict[str, Any]) -> None:
        jobid, old, first = job.launch.jobid, job.parts.get(host), new.tasks.min()
        if old is not None and not old.has_ended:
            old.ranks |= new.ranks
            old.tasks |= new.tasks
            self._hosts[host].grow_from(jobid, r, first)
            return
        job.begin_part(host, new)
        try:
            self._hosts[host].start(structs.replace(job.launch, R=r, ranks=new.ranks, is_shared=True, first=first))
        except (FluxschedError, KeyError) as fault:
            note = str(fault) if isinstance(fault, FluxschedError) else f"host {host} has no keeper in this instance"
            self._turns.post(partial(self._failed, host, jobid, note))

    def shrink(self, jobid: int, ranks: Idset, grace_s: float | None = None) -> None:
        """See `Executor.shrink`; targets without tasks are released at once."""
        job = self._jobs.get(jobid)
        if job is None:
            for host in self._running(jobid):
                self._hosts[host].shrink(jobid, ranks, grace_s)
            return
        idle = ranks
        for host in job.running():
            part = job.parts[host]
            if some := ranks & part.ranks:
                idle -= some
                part.going |= some
                self._hosts[host].shrink(jobid, some, grace_s)
        if idle:
            job.tasks.remove(idle)
            self._turns.post(partial(self._reports.released, jobid, idle))

    def give_back(self, jobid: int, ranks: Idset) -> None:
        hosts = self._running(jobid)
        if not hosts:
            raise Refused("the job does not run")
        self._hosts[hosts[0]].give_back(jobid, ranks)

    def input_of(self, jobid: int) -> InputPlace | None:
        job = self._jobs.get(jobid)
        if job is None:
            host = self._host_of.get(jobid)
            return None if host is None else self._hosts[host].input_of(jobid)
        places = [(job.parts[host].tasks, self._hosts[host].input_of(jobid)) for host in job.running()]
        found = [(tasks, place) for tasks, place in places if place is not None]
        return HostsInput(found) if found else None

    def measure(self, jobid: int, measured: Measured) -> None:
        job = self._jobs.get(jobid)
        if job is None:
            host = self._host_of.get(jobid)
            measured(None) if host is None else self._hosts[host].measure(jobid, measured)
            return
        asked, known = job.running(), [(end.tasks, end.usage) for end in job.ends()]
        left = len(asked)

        def part_measured(tasks: Idset, usage: Mapping[str, Any] | None) -> None:
            nonlocal left
            known.append((tasks, usage))
            left -= 1
            if not left:
                measured(merged(known))

        for host in asked:
            self._hosts[host].measure(jobid, partial(part_measured, job.parts[host].tasks))
        if not asked:
            measured(merged(known))

    def close(self) -> None:
        for executor in self._hosts.values():
            executor.close()
        self._output.close()

    def detach(self, within_s: float) -> None:
        for executor in self._hosts.values():
            executor.detach(within_s)
        self._output.close()

    def _running(self, jobid: int) -> list[str]:
        job = self._jobs.get(jobid)
        if job is not None:
            return job.running()
        host = self._host_of.get(jobid)
        return [] if host is None else [host]

    def _forget(self, jobid: int) -> None:
        self._host_of.pop(jobid, None)
        self._jobs.pop(jobid, None)
        self._fences.remove_job(jobid)
        self._output.end(jobid)

    # -- reports of a host --------------------------------------------------------------------------------------

    def _record(self, host: str, jobid: int, record: object | None, then: Callable[[], None] | None) -> None:
        job = self._jobs.get(jobid)
        if isinstance(record, dict) and LEFT in record:
            self._left.setdefault(jobid, {})[host] = record[LEFT]
            record = None
        elif record is None and self._left.get(jobid, {}).pop(host, None) is not None and job is not None:
            self._keep(job, then)
            return
        if job is None and record is None and self._commands.has_any(jobid):
            return  # the end of the job waits for its commands, and this with it
        if job is None:
            self._reports.record(jobid, self._remains(jobid) if record is None else {HOSTS: {host: record}}, then)
        elif record is not None:  # that of an end comes with the end
            job.parts[host].record = record
            self._keep(job, then)
        elif then is not None:
            then()

    def _remains(self, jobid: int) -> dict[str, Any] | None:
        """Return what is to be on record of a job that has ended: nothing, unless processes of it may be left."""
        left = self._left.get(jobid)
        if left:
            return {HOSTS: {}, LEFT: dict(left)}
        self._left.pop(jobid, None)
        return None

    def _keep(self, job: HostsJob, then: Callable[[], None] | None = None) -> None:
        """Store what is to be on record of the job; open it once the processes of all parts are."""
        record = {**(self._remains(job.launch.jobid) or {}), **job.record()}

        def stored() -> None:
            if then is not None:
                then()
            if len(record[HOSTS]) == len(job.parts):
                self._check_open(job)

        self._reports.record(job.launch.jobid, record, stored)

    def _check_open(self, job: HostsJob) -> None:
        """Open the gates once all parts are on record and none has failed."""
        jobid = job.launch.jobid
        if job.note is None and self._jobs.get(jobid) is job and all(part.is_recorded for part in job.parts.values()):
            job.is_open = True
            for host in job.running():
                self._hosts[host].open(jobid)

    def _started(self, host: str, jobid: int) -> None:
        job = self._jobs.get(jobid)
        if job is None and self._commands.get(jobid) is None:
            self._reports.started(jobid)
        elif job is not None:
            job.parts[host].has_started = True
            self._check_started(job)

    def _check_started(self, job: HostsJob) -> None:
        if not job.is_started and all(part.has_started for part in job.parts.values()):
            job.is_started = True
            self._reports.started(job.launch.jobid)

    def _opened(self, host: str, jobid: int) -> None:
        """Record that a part takes input; so it has started, which may have been reported to the instance before."""
        job, command = self._jobs.get(jobid), self._commands.get(jobid)
        if job is None:
            self._reports.opened(jobid) if command is None else command.opened()
            return
        part = job.parts[host]
        part.has_started = part.takes_input = True
        self._check_started(job)
        if all(other.takes_input or other.has_ended for other in job.parts.values()):
            self._reports.opened(jobid)

    def _raised(self, host: str, jobid: int, kind: str, note: str) -> None:
        self._reports.raised(jobid, kind, note if kind == TIMEOUT else _named(host, note))

    def _finished(self, host: str, jobid: int, status: int, usage: dict[str, Any] | None) -> None:
        if jobid in self._jobs:
            self._part_ended(host, jobid, status, usage, None)
        elif self._commands.get(jobid) is not None:
            self._command_ended(jobid, status, "")
        else:
            self._end_of_one_host(jobid, partial(self._reports.finished, jobid, status, usage))

    def _failed(self, host: str, jobid: int, note: str, is_lost: bool = False) -> None:
        if jobid not in self._jobs:
            if self._commands.get(jobid) is not None:
                self._command_ended(jobid, 0, _named(host, note))
            else:
                report = self._reports.node_failed if is_lost else self._reports.failed
                self._end_of_one_host(jobid, partial(report, jobid, _named(host, note)))
            return
        self._part_ended(host, jobid, 0, None, _named(host, note), is_lost)

    def _end_of_one_host(self, jobid: int, report: Callable[[], None]) -> None:
        """Report the end of a job of one host once its commands have ended."""
        is_recorded = self._commands.has_any(jobid)

        def none_left() -> None:
            self._host_of.pop(jobid, None)
            if is_recorded:
                self._reports.record(jobid, self._remains(jobid), None)
            report()

        self._commands.after(jobid, none_left)

    def _command_ended(self, number: int, status: int, note: str) -> None:
        self._forget(number)
        self._commands.ended(number, status, note)

    def _part_ended(
        self, host: str, jobid: int, status: int, usage: dict[str, Any] | None, note: str | None, is_lost: bool = False
    ) -> None:
        job = self._jobs[jobid]
        part = job.parts[host]
        if not job.is_open:
            note = note or NEVER_RAN
        part.record = {ENDED: [status, usage, note, is_lost]}
        if note is not None and job.goes_on_without_part and job.running():
            log.warning("job %s goes on without a part: %s", format_f58(jobid), note, extra=of_job(jobid))
            self._turns.post(partial(self._reports.lost, jobid, part.ranks, note))
            note = None
        is_news = note is not None and job.note is None
        job.failed(note, is_lost)
        if not job.running():
            if self._commands.has_any(jobid):
                self._keep(job)
            self._commands.after(jobid, partial(self._complete, job))
            return
        self._keep(job)
        self._answer(self._fences.gone(jobid, host))
        if part.going:
            self._reports.released(jobid, part.going)
        if is_news and job.is_started:
            self._reports.raised(jobid, job.exception_type, str(note))
        elif is_news:
            self.kill(jobid, SIGKILL)

    def _complete(self, job: HostsJob) -> None:
        """Report the end of a job whose parts have all ended."""
        jobid = job.launch.jobid
        self._forget(jobid)
        self._reports.record(jobid, self._remains(jobid), None)
        end = end_of_all(job.ends())
        if not job.is_started:
            report = self._reports.node_failed if job.is_lost else self._reports.failed
            report(jobid, job.note or NEVER_RAN)
            return
        if job.note is not None:
            self._reports.raised(jobid, job.exception_type, job.note)
        self._reports.finished(jobid, end.status, None if end.usage is None else dict(end.usage))

    def _fence(self, host: str, one: PmiFence) -> None:
        self._answer(self._fences.arrived(host, one))

    def _answer(self, answers: Iterable[tuple[str, PmiFenceDone]]) -> None:
        for host, done in answers:
            self._hosts[host].fence_done(done)

    def _released(self, host: str, jobid: int, ranks: Idset) -> None:
        job = self._jobs.get(jobid)
        if job is not None:
            part = job.parts[host]
            part.ranks -= ranks
            part.going -= ranks
            job.tasks.remove(ranks)
        self._reports.released(jobid, ranks)


class HostsInput:
    """Destination of input for the tasks of a job on several hosts."""

    def __init__(self, places: Sequence[tuple[Idset, InputPlace]]) -> None:
        """`places` are the numbers of the tasks on each host, and their destination."""
        self._places = places

    def send(
        self, data: bytes, tasks: Idset | None, *, eof: bool, answered: InputAnswer, window: Window | None = None
    ) -> None:
        """See `InputPlace.send`; the sender is answered when all hosts have answered, with the first error if any. What
        is for all tasks is for those whose input has not ended, so it is no error if that of a whole host has.
        """
        wanted = [(None if tasks is None else own & tasks, place) for own, place in self._places]
        meant = [(own, place) for own, place in wanted if own is None or own]
        if not meant:
            raise Refused(f"tasks {tasks} of the job do not run", errno.ESRCH)
        answers: list[FluxschedError | None] = []

        def one_answered(error: FluxschedError | None) -> None:
            answers.append(error)
            if len(answers) < len(meant):
                return
            errors = [error for error in answers if error is not None]
            if tasks is None and len(errors) < len(meant):
                errors = [error for error in errors if error.errnum != errno.EPIPE]
            answered(errors[0] if errors else None)

        for own, place in meant:
            try:
                place.send(data, own, eof=eof, answered=one_answered, window=window)
            except FluxschedError as error:
                one_answered(error)


def _named(host: str, note: str) -> str:
    """Return a note that names its host, as a word and not only as a part of a path."""
    is_named = re.search(rf"(?<![\w./-]){re.escape(host)}(?![\w./-])", note) is not None
    return note if is_named else f"{host}: {note}"


def _add(parts: dict[str, HostPart], host: str, rank: int, tasks: Idset) -> None:
    """Add the tasks of a target to the part of its host."""
    part = parts.setdefault(host, HostPart(EMPTY, EMPTY))
    part.ranks |= Idset.one(rank)
    part.tasks |= tasks


def _by_host(records: Mapping[int, object]) -> dict[str, dict[int, object]]:
    """Return the records of parts that have not ended, or were given up, by host and job."""
    found: dict[str, dict[int, object]] = {}
    for jobid, record in records.items():
        if isinstance(record, dict):
            running = {host: one for host, one in record.get(HOSTS, {}).items() if ENDED not in one}
            for host, one in {**record.get(LEFT, {}), **running}.items():
                found.setdefault(host, {})[jobid] = one
    return found


# ---- commands beside the tasks of a job

NO_COMMANDS = "commands run beside jobs of an instance with an engine (start --engine)"
CommandEnded = Callable[[int, str], None]
"""Called with the wait status of a command, and the reason if it could not be run to its end (else empty)."""


@dataclass(frozen=True, slots=True)
class HostCommand:
    """Command that runs, or is to."""

    jobid: int
    host: str
    opened: Callable[[], None]
    """Function called when it accepts input."""
    ended: CommandEnded


@runtime_checkable
class CommandExecutor(Protocol):
    """Executor of several hosts, which runs commands beside the tasks of jobs."""

    def run_command(self, number: int, job: JobLaunch, host: str, text: str, command: HostCommand) -> None:
        """Run a command beside the tasks of a running job on one of its hosts. `number` is its own, as of a job, for
        its input, its signals and its output.

        Raises FluxschedError.
        """
        ...


def command_launch(job: JobLaunch, number: int, host: str, text: str) -> JobLaunch:
    """Return the launch of a command for the shell, with the environment and working directory of the job's tasks, on
    the cores that the job has on this host. Raises Refused if it has none there.
    """
    resources = ResourceSet.parse(job.R)
    ranks = [rank for rank in resources.ranks if resources.host(rank) == host]
    if not ranks:
        hosts = resources.nodelist.unique()
        raise Refused(f"job {format_f58(job.jobid)} has nothing on host {host!r}, but on {hosts}", errno.ENOENT)
    r: dict[str, Any] = resources.restrict(Idset.one(ranks[0])).to_json()
    r["execution"]["nslots"] = 1
    spec, words = job.jobspec, ["/bin/sh", "-c", text]
    jobspec = Jobspec.from_command(words, ntasks=1, cwd=spec.cwd, environment=spec.environment)
    return structs.replace(job, jobid=number, beside=job.jobid, jobspec=jobspec, R=r, attempt=0, expiration_s=0.0)


class HostCommands:
    """The commands that run, and the ends of jobs that wait for them."""

    def __init__(self, kill: Callable[[int], None]) -> None:
        """`kill` is called with the number of a command that is to end."""
        self._kill = kill
        self._commands: dict[int, HostCommand] = {}
        self._waiting: dict[int, Callable[[], None]] = {}

    def add(self, number: int, command: HostCommand) -> None:
        """Add a command that is about to start. Raises Refused if the tasks of its job have ended."""
        if command.jobid in self._waiting:
            raise Refused(f"the tasks of job {format_f58(command.jobid)} have ended", errno.ESRCH)
        self._commands[number] = command

    def get(self, number: int) -> HostCommand | None:
        """Return a command; None if there is none of this number."""
        return self._commands.get(number)

    def has_any(self, jobid: int) -> bool:
        """Return whether commands of the job run."""
        return any(command.jobid == jobid for command in self._commands.values())

    def after(self, jobid: int, call: Callable[[], None]) -> None:
        """End the commands of a job whose tasks have ended, and call when none is left."""
        if not self.has_any(jobid):
            call()
            return
        self._waiting[jobid] = call
        for number in [number for number, command in self._commands.items() if command.jobid == jobid]:
            self._kill(number)

    def ended(self, number: int, status: int, note: str) -> None:
        """Record that nothing of a command is left."""
        command = self._commands.pop(number)
        command.ended(status, note)
        if command.jobid in self._waiting and not self.has_any(command.jobid):
            self._waiting.pop(command.jobid)()

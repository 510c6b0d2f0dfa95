"""The engine under the job manager: one turn of events, from log to effects.

Law: a public method checks first, then begins a turn, logs events and ends the turn; a job runs until it must wait and
that stretch is one Persist. What one job's turn means for others (dependents, the scheduler's line) is done at the end
of the turn from a worklist, so a chain of 2,000 jobs needs no more stack than one.
"""

from __future__ import annotations

import errno
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.errors import InvalidTransition, Refused
from fluxsched.jobs.effects import Effect, Event, Held, Kill, Persist, SchedFree, StartShells, Unheld, WakeAt
from fluxsched.jobs.holdings.holdings import Grant, Holdings
from fluxsched.jobs.job.dependencies import DependencyIndex, Verdict, verdict
from fluxsched.jobs.job.job import HELD_PRIORITY, NO_REQUEST, SENT, WAITING, Job, priority_of
from fluxsched.jobs.job.states import CLEANUP, DEPEND, INACTIVE, PRIORITY, RUN, SCHED
from fluxsched.jobs.lifecycle.active_ids import ActiveIds
from fluxsched.jobs.lifecycle.links import Links
from fluxsched.jobs.queue.queues import QueueConfig, Queues

JOBS_ACTIVE_MAX = 1 << 20
"""Active jobs (RFC 27 wants to scale to a million in SCHED); about 3 KiB each."""

INACTIVE_KEPT_MAX = 100_000
"""Summaries of ended jobs in memory, for listings and dependencies; older ones are in the store."""

SIGTERM = 15
"""How a job with a fatal exception is first asked to end."""


class Engine:
    """The jobs and everything that is indexed over them; the layers above give it its requests."""

    def __init__(
        self,
        queues: Mapping[str | None, QueueConfig] | None = None,
        *,
        default_queue: str | None = None,
        active_max: int = JOBS_ACTIVE_MAX,
        inactive_kept_max: int = INACTIVE_KEPT_MAX,
    ) -> None:
        self.active: dict[int, Job] = {}
        self.inactive: OrderedDict[int, Job] = OrderedDict()
        self.active_ids = ActiveIds(self.active)
        self.queues = Queues(queues or {}, default_queue)
        self.holdings = Holdings()
        self.links = Links()
        self._dependencies = DependencyIndex()
        self._active_max = active_max
        self._inactive_kept_max = inactive_kept_max
        self._now_s = 0.0
        self._out: list[Effect] = []
        self._stretches: dict[int, list[Event]] = {}
        self._settled: deque[Job] = deque()
        self._touched: dict[str, None] = {}
        self._woken_at_s: float | None = None

    # -- a turn

    def _begin(self, now_s: float) -> None:
        self._now_s = now_s
        self._out = []
        self._stretches = {}

    def _end(self) -> list[Effect]:
        out, settled, touched = self._out, self._settled, self._touched
        while settled:
            self._settle(settled.popleft())
        if touched:
            for group in touched:
                link = self.links.serving(group)
                if link is not None:
                    link.pump(self.active, out)
            touched.clear()
        return out

    def _log(
        self,
        job: Job,
        name: str,
        context: dict[str, Any] | None = None,
        jobspec: dict[str, Any] | None = None,
        R: dict[str, Any] | None = None,  # noqa: N803 - RFC 20's name
    ) -> None:
        """Let an event happen now, and add it to the job's stretch."""
        event: Event = (
            {"timestamp": self._now_s, "name": name}
            if context is None
            else {"timestamp": self._now_s, "name": name, "context": context}
        )
        job.apply(event)
        events = self._stretches.get(job.id)
        if events is not None:
            events.append(event)
        else:
            events = self._stretches[job.id] = [event]
            self._out.append(Persist(job.id, events, jobspec, R))

    # -- the way of a job

    def _admit(self, job: Job) -> None:
        self.active[job.id] = job
        self.active_ids.add(job.id)
        job.queue.active += 1

    def _advance(self, job: Job) -> None:
        """From DEPEND to the line for resources, as far as it goes."""
        if job.state is DEPEND:
            if job.dependencies:
                return
            self._log(job, "depend")
        if job.state is PRIORITY:
            self._log(job, "priority", {"priority": priority_of(job.urgency)})
        self._enqueue(job)

    def _enqueue(self, job: Job) -> None:
        """Stand in line, unless held; the end of the turn sends what may be sent."""
        if job.priority == HELD_PRIORITY:
            job.request = NO_REQUEST
            return
        job.request = WAITING
        queue = job.queue
        queue.waiting.push(job.id, job.key())
        self._touched[queue.config.group] = None

    def _run(self, job: Job, R: dict[str, Any], grant: Grant) -> None:  # noqa: N803 - RFC 20's name
        """The grant, already in the record of holdings, becomes the job's; its shells start after commit."""
        job.request = NO_REQUEST
        job.grant(R, grant)
        context = {"annotations": job.annotations} if job.annotations else {}
        self._log(job, "alloc", context, R=R)
        job.executing = True
        job.queue.running += 1
        self._out.append(Held(job.id, grant.ranks))
        self._out.append(StartShells(job.id))

    def _release(self, job: Job, ranks: Idset | None) -> None:
        """Give back targets (None: all that are left); with the last of them the job is over."""
        given = job.held if ranks is None else ranks
        final = ranks is None or given == job.held
        whole = given == job.ranks
        remainder = job.R if whole else job.remainder(given)
        assert remainder is not None, "a job that holds targets has its R"
        self._log(job, "release", {"ranks": "all" if whole else str(given), "final": final})
        # the record first: the scheduler's next grant of these cores may come at once
        self.holdings.give(job.id, None if final else given)
        link = self.links.serving(job.queue.config.group)
        if link is not None:
            link.free(SchedFree(link.scheduler, job.id, remainder, final), self._out)
        self._out.append(Unheld(job.id, given))
        if final:
            job.executing = False
            job.queue.running -= 1
            self._log(job, "free")
            self._clean(job)

    def _clean(self, job: Job) -> None:
        self._log(job, "clean")
        del self.active[job.id]
        job.queue.active -= 1
        if job.id in self._dependencies:
            self._settled.append(job)
        self._keep_summary(job)

    def _keep_summary(self, job: Job) -> None:
        job.forget()
        self.inactive[job.id] = job
        if len(self.inactive) > self._inactive_kept_max:
            self.inactive.popitem(last=False)

    # -- exceptions

    def _log_exception(self, job: Job, type: str, severity: int, note: str, **optional: int | None) -> None:
        context: dict[str, Any] = {"type": type, "severity": severity, "note": note}
        self._log(job, "exception", context | {key: value for key, value in optional.items() if value is not None})

    def _fail(self, job: Job, type: str, note: str, **optional: int | None) -> None:
        """Raise a fatal exception: the job goes to CLEANUP and, if nothing runs or is held, to its end."""
        state = job.state
        self._forget_dependencies(job)
        self._log_exception(job, type, 0, note, **optional)
        if state is CLEANUP:
            return
        if state is SCHED:
            self._withdraw(job)
        if state is RUN:
            self._out.append(Kill(job.id, SIGTERM, f"{type}: {note}" if note else type))
        else:
            self._clean(job)

    def _withdraw(self, job: Job) -> None:
        """The job wants no resources now: out of the line, or its request is asked back."""
        if job.request == WAITING:
            job.queue.waiting.discard(job.id)
            job.request = NO_REQUEST
        elif job.request == SENT:
            link = self.links.serving(job.queue.config.group)
            assert link is not None, "a request is outstanding at no scheduler"
            link.cancel(job, self._out)

    # -- dependencies

    def _await_dependencies(self, job: Job) -> None:
        """Remember the job's open dependencies; those that are already decided are settled at once."""
        for dependency in list((job.dependencies or {}).values()):
            if job.state is not DEPEND:
                break  # an earlier one can never be met
            found: Verdict | None = None
            if dependency.antecedent:
                antecedent = self.active.get(dependency.antecedent) or self.inactive.get(dependency.antecedent)
                if antecedent is None:
                    note = f"{dependency.description}: job {format_f58(dependency.antecedent)} is not known any more"
                    found = Verdict(job.id, dependency, note)
                else:
                    found = verdict(job.id, dependency, antecedent)
            elif dependency.at_s <= self._now_s:
                found = Verdict(job.id, dependency, "")
            if found is not None:
                self._decide(found)
            else:
                self._dependencies.add(job.id, dependency)
        self._wake()

    def _forget_dependencies(self, job: Job) -> None:
        if job.dependencies:
            self._dependencies.forget(job.id, job.dependencies.values())

    def _settle(self, antecedent: Job) -> None:
        for found in self._dependencies.settle(antecedent):
            self._decide(found)
            job = self.active.get(found.jobid)
            if job is not None and job.state is DEPEND:
                self._advance(job)

    def _decide(self, found: Verdict) -> None:
        job = self.active.get(found.jobid)
        description = found.dependency.description
        if job is None or job.state is not DEPEND or description not in (job.dependencies or ()):
            return  # canceled meanwhile, or failed by an earlier verdict
        if found.failure:
            self._fail(job, "depend", found.failure)
        else:
            self._log(job, "dependency-remove", {"description": description})

    def _wake(self) -> None:
        """Ask to be woken for the next begin-time, unless that was asked already."""
        at_s = self._dependencies.next_time_s
        if at_s is not None and at_s != self._woken_at_s:
            self._out.append(WakeAt(at_s))
        self._woken_at_s = at_s

    # -- looking up

    def job(self, jobid: int) -> Job:
        """The job, active or kept. Raises Refused (ENOENT)."""
        found = self.active.get(jobid) or self.inactive.get(jobid)
        if found is None:
            gone = "it never was, or it ended so long ago that only its record is left"
            raise Refused(f"job {format_f58(jobid)} is not known: {gone}", errno.ENOENT)
        return found

    def _active(self, jobid: int) -> Job:
        """The active job. Raises Refused: ENOENT for an unknown one, EINVAL for one that has ended."""
        found = self.active.get(jobid)
        if found is None:
            raise Refused(f"{self.job(jobid).title} has ended: nothing about it can be changed", errno.EINVAL)
        return found

    def _executing(self, jobid: int, event: str) -> Job:
        """The job that the executor speaks of; Raises InvalidTransition for one that it does not have."""
        found = self.active.get(jobid)
        if found is None or not found.executing:
            state = (found or self.job(jobid)).state.name
            raise InvalidTransition(f"job {jobid}: the executor reports {event}, but is not running it (state {state})")
        return found

    def check(self) -> None:
        """Assert every law of the package over the whole state: for tests and the simulator."""
        self.holdings.check()
        for link in self.links:
            link.check()
        for queue in self.queues:
            jobs = [job for job in self.active.values() if job.queue is queue]
            assert queue.active == len(jobs), f"{queue.title}: {queue.active} counted as active, {len(jobs)} are"
            running = sum(job.id in self.holdings for job in jobs)
            assert queue.running == running, f"{queue.title}: {queue.running} counted as running, {running} are"
            waiting = sum(job.request == WAITING for job in jobs)
            assert len(queue.waiting) == waiting, f"{queue.title}: {len(queue.waiting)} in line, {waiting} wait"
        for job in self.active.values():
            self._check_job(job)
        for job in self.inactive.values():
            assert job.state is INACTIVE, f"job {job.id} is kept as ended but is not"
            assert not job.held, f"job {job.id} has ended but still holds {job.held}"
            assert job.R is None, f"job {job.id} has ended but its R is still in memory"
            assert job.jobspec is None, f"job {job.id} has ended but its jobspec is still in memory"
        waiting_ids = {job.id for job in self.active.values() if job.state is DEPEND}
        assert self._dependencies.dependents() <= waiting_ids, "jobs that wait for nothing are in the index"

    def _check_job(self, job: Job) -> None:
        link = self.links.serving(job.queue.group)
        sent = link is not None and job.id in link.outstanding
        assert job.jobspec is not None, f"job {job.id} has no jobspec"
        assert job.state in (DEPEND, SCHED, RUN, CLEANUP), f"job {job.id} rests in {job.state.name}"
        assert bool(job.dependencies) == (job.state is DEPEND), f"job {job.id}: dependencies and state disagree"
        assert self._dependencies.open_of(job.id, (job.dependencies or {}).values()), f"job {job.id} waits unheard"
        assert self.holdings.ranks(job.id) == job.held, f"job {job.id} does not hold what the record says"
        assert bool(job.held) == (job.state in (RUN, CLEANUP)), f"job {job.id} in {job.state.name} holds {job.held}"
        assert job.held ^ job.freed == job.ranks, f"job {job.id} lost targets"
        assert sent == (job.request > WAITING), f"job {job.id}: the request state is wrong"
        if job.state is SCHED:
            assert (job.request == NO_REQUEST) <= (job.priority == HELD_PRIORITY), f"job {job.id} waits in no line"
            assert (job.id in job.queue.waiting) == (job.request == WAITING), f"job {job.id} stands in a wrong line"
        else:
            assert job.request == NO_REQUEST, f"job {job.id} in {job.state.name} asks for resources"

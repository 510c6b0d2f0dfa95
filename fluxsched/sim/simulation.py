"""The simulation itself: virtual time (`Agenda`) drives the production scheduler, and running a job is a timer.

Law: at one instant first all ends take effect, then what happens to the site, then all submissions, and last what only
wakes the scheduler; among equals the order in which they were planned decides; the planned objects are never compared.
Time never runs backwards. What is due while time passes between two instants (`pass_by`) belongs to the next one.
Nothing is decided here. The scheduler knows the limit but not the run time; a job ends after the shorter of the two.
One pass follows each instant; what it starts and ends at once is for the next pass of the same instant. Same trace,
same options: same schedule. With time of its own (`own_time`) an instant takes as much virtual time as real time, and
what happens meanwhile is for the next one.

Records: an attempt has a job id of its own, as in an instance, and all attempts of a job have one row of the table. Job
`row` begins as job id `row` + 1; the ids of later attempts follow those of all first ones. Work is done by the cores
that a job has, but for those that it is to leave; a job ends with the last of its work, or at its limit. All others end
after their run time. With `enabled` false no amounts are recorded.

A trace is run under one policy, of what a caller names, which is read and checked.

>>> from fluxsched.sim import Ask, Trace, TraceJob, run
>>> jobs = [TraceJob(1, 0.0, 60.0, 120.0, Ask(4)), TraceJob(2, 1.0, 5.0, 10.0, Ask(2))]
>>> run(Trace.of(jobs), "fifo", procs=4).jobs.start
[0.0, 60.0]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import inf
from pathlib import Path
from reprlib import repr as shortened
from sys import float_info
from typing import Any, Final, NamedTuple, TypeAlias

from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import RETRY_PAUSE_MAX_S, RETRY_PAUSE_S
from fluxsched.core.jobspec import Jobspec, Request
from fluxsched.core.quantities import doubled_s
from fluxsched.core.resources import ResourceSet
from fluxsched.core.topology import Topology
from fluxsched.errors import InvalidValue
from fluxsched.sched.decisions import PREEMPT, Granted, Grown, Shrunk
from fluxsched.sched.fair.accounts import FairSettings, Vector
from fluxsched.sched.fair.usage import AmountCounter, summed
from fluxsched.sched.hooks import Plugin
from fluxsched.sched.policy import Policy
from fluxsched.sched.pool.placement import Fits
from fluxsched.sched.registry import load
from fluxsched.sim.result import (
    COMPLETED,
    DENIED,
    FAILED,
    NO_ROW,
    PREEMPTED,
    RUNNING,
    TIMEOUT,
    UNKNOWN_USER,
    UNSUBMITTED,
    WAITING,
    AmountColumns,
    Columns,
    Cost,
    Preemption,
    Resizing,
    Result,
)
from fluxsched.sim.site import (
    OUTAGE,
    SharedBy,
    Site,
    SiteEvent,
    System,
    TraceJobspecs,
    effects_of,
    read_site,
    site_of,
    with_switches,
)
from fluxsched.sim.traces import Trace, TraceJob, followers, read_trace

END: Final = 0
SITE: Final = 1
SUBMIT: Final = 2
WAKE: Final = 3
"""Kinds of events, in the order in which those of one instant take effect."""


AgendaEvent: TypeAlias = tuple[int, Any]
"""Event of the agenda: (kind, what)."""


LAST_S: Final = float_info.max
"""The last instant that there may be: `inf` is never."""

_Entry: TypeAlias = tuple[Any, ...]
"""When something is due (seconds), its kind, its number, and what it is. No tuple of four: reading one of its values
would read them all, in compiled code.
"""

_NEVER: Final[_Entry] = (inf, WAKE, 0, None)
"""The last entry of the heap, which is never empty."""


class Agenda:
    """Submissions are known beforehand, in order, so only the rest stands in the heap: it stays small."""

    def __init__(self, submits_s: Sequence[float]) -> None:
        self.now_s = 0.0
        self._submits_s = (*submits_s, inf)
        self._submitted = 0
        self._heap: list[_Entry] = [_NEVER]
        self._planned = 0

    def at(self, when_s: float, kind: int, what: Any) -> None:
        """Plan something other than a submission, now at the earliest."""
        assert when_s >= self.now_s, f"planned for {when_s}, which is before {self.now_s}"
        self._planned += 1
        entry: _Entry = (when_s, kind, self._planned, what)
        heappush(self._heap, entry)

    def pass_by(self, delay_s: float) -> None:
        """Let time pass, as after an instant that took some."""
        self.now_s += max(delay_s, 0.0)

    @property
    def is_quiet(self) -> bool:
        """Return whether only wake-ups of the scheduler are planned."""
        return self._submits_s[self._submitted] == inf and all(entry[1] == WAKE for entry in self._heap)

    def next_instant(self, until_s: float) -> list[AgendaEvent]:
        """Go on to the next instant up to and including `until_s`, which `now_s` is then; return all its events, kind
        and what, in order. There are none once nothing is due by then.

        A submission is given by its place in the sequence. What is planned for `now_s` when its events were returned
        already makes another instant.
        """
        heap, submits_s = self._heap, self._submits_s
        submit_s: float = submits_s[self._submitted]
        when_s: float = heap[0][0]
        now_s = when_s if when_s < submit_s else submit_s
        if now_s < self.now_s:
            now_s = self.now_s
        found: list[AgendaEvent] = []
        if now_s > until_s or now_s > LAST_S:
            return found
        self.now_s = now_s
        while when_s <= now_s:
            entry: _Entry = heappop(heap)
            found.append((entry[1], entry[3]))
            when_s = heap[0][0]
        while submit_s <= now_s:
            found.append((SUBMIT, self._submitted))
            self._submitted += 1
            submit_s = submits_s[self._submitted]
        return found


# ---- the simulation

PROGRESS_INSTANTS: Final = 256
"""Progress is reported every so many instants: some hundred times a second."""

IDLE_WAKES_MAX = 1000
"""Number of times in a row that a policy may wake the scheduler where nothing else is to happen, until it starts a job:
one that goes on is waiting for something that never comes.
"""

Progress = Callable[[int, int, float], None]
"""Called with the jobs that are over, all jobs, and the virtual time in seconds."""


class Simulation:
    """One policy, with those of queues that have their own, on one trace; its job `i` has job id `i` + 1."""

    def __init__(
        self,
        trace: Trace,
        site: Site,
        policy: Policy,
        title: str,
        steps: Sequence[SiteEvent] = (),
        *,
        policies: Mapping[str, Policy] | None = None,
        plugins: Mapping[str, Sequence[Plugin]] | None = None,
        placements: bool = False,
        check: bool = False,
        feedback: bool = False,
        stopwatch: Callable[[], float] | None = None,
        progress: Progress | None = None,
        preempt_grace_s: float = 0.0,
        own_time: bool = False,
        accounts: bool = False,
    ) -> None:
        self._trace, self._jobs = trace, trace.jobs
        self._site, self._title = site, title
        self._specs = TraceJobspecs(site.queues, site.default_queue, site.banks)
        queues = {name: queue.groups for name, queue in site.queues.items() if name is not None}
        self._users = Users()
        self.system = System(
            self, site.resources, policy, site.groups, site.acquired, queues,
            policies=policies, unsatisfiable=site.unsatisfiable, plugins=plugins,
            sharing=SharedBy(site.fair, self._users.name, site.preempt_timeout_s),
        )  # fmt: skip
        self._scheduler, self._followers = self.system.scheduler, followers(trace.jobs) if feedback else {}
        self._submit_s = [job.submit_s for job in trace.jobs]
        self._agenda = Agenda(() if feedback else self._submit_s)
        for step in steps:
            self._agenda.at(step.when_s, SITE, step)
        self._tracking, self._watched = bool(steps), check or progress is not None
        self._check, self._stopwatch, self._progress = check, stopwatch, progress
        self._attempts = Attempts([job.requeue for job in trace.jobs], own_time)
        self._grace_s = preempt_grace_s
        self._own_time, self._begun_s, self._wake_s = own_time, 0.0, inf
        self._considered_s, self._pass_s = list[float](), list[float]()
        self._held, self._notes = dict[int, Idset](), dict[int, str]()
        self._instants = self._over = self._idle_wakes = 0
        self._capacity = [(0.0, self.system.usable_cores())]
        n = self._rows = len(trace.jobs)
        self._limit_s = [inf] * n
        self._start: list[float | None] = [None] * n
        self._end = self._start.copy()
        self._state = [UNSUBMITTED] * n
        self._procs = [job.ask.nslots * job.ask.cores for job in trace.jobs]
        self._ranks: list[str | None] | None = [None] * n if placements else None
        self._plain = [job.ask.is_plain for job in trace.jobs]
        records = accounts or own_time or self._scheduler.accounts is not None
        self._sizes, self._topology = Sizes(trace.jobs), site.resources.topology
        self._sized, self._of_size = self._sizes.running, self._sizes.rows
        self._hops: list[int | None] = [None] * n if self._topology else []
        self._looking = self._tracking or placements or bool(self._topology)
        self._amounts = AmountRecorder(site, self.system, records, n)
        self._recording = self._looking or records
        if feedback:
            self._submit_leaders()

    def run(self, until_s: float = inf) -> Result:
        """Everything up to and including `until_s` (virtual time, seconds)."""
        assert self._stopwatch is not None or not self._own_time, "time of its own is taken by a stopwatch"
        agenda, stopwatch = self._agenda, self._stopwatch
        begun_s = stopwatch() if stopwatch is not None else 0.0
        while events := agenda.next_instant(until_s):
            self._instants += 1
            self._instant(events, agenda.now_s)
        wall_s = stopwatch() - begun_s if stopwatch is not None else None
        self.system.check()
        return self._result(until_s, wall_s)

    def _instant(self, events: list[AgendaEvent], now_s: float) -> None:
        system, stopwatch, wakes = self.system, self._stopwatch, False
        system.now_s = now_s
        if stopwatch is not None and self._own_time:
            self._begun_s = stopwatch()
        for kind, what in events:
            if kind == END:
                self._finish(what, now_s)
            elif kind == SUBMIT:
                self._submit(what, now_s)
            elif kind == SITE:
                self._change(what, now_s)
            else:
                self._wake_s, wakes = inf, True
        if system.run_pass() if stopwatch is None else self._timed_pass(stopwatch, events):
            wakes = True
        if wakes or self._sized:
            self._plan_wake()
        if self._watched:
            self._look_up(now_s)

    def _timed_pass(self, stopwatch: Callable[[], float], events: list[AgendaEvent]) -> bool:
        begun_s = stopwatch()
        wakes = self.system.run_pass()
        ended_s = stopwatch()
        self._pass_s.append(ended_s - begun_s)
        if self._own_time:
            self._agenda.pass_by(ended_s - self._begun_s)
            self._consider(events, self._agenda.now_s)
        return wakes

    def _consider(self, events: list[AgendaEvent], now_s: float) -> None:
        """Record when the pass was over that began after these events."""
        submit_s = self._submit_s
        self._considered_s += [now_s - submit_s[at] for kind, at in events if kind == SUBMIT]

    def _plan_wake(self) -> None:
        """Plan a pass that is due though nothing happens until then. An earlier one that was planned does no harm."""
        wake_s = self._scheduler.next_notice_s
        if wake_s in (self._wake_s, inf):
            return
        self._idle_wakes = self._idle_wakes + 1 if self._agenda.is_quiet else 0
        if self._idle_wakes <= IDLE_WAKES_MAX:
            self._wake_s = wake_s
            self._agenda.at(max(wake_s, self._agenda.now_s), WAKE, None)

    def _look_up(self, now_s: float) -> None:
        """Between two instants: checks and progress."""
        if self._check:
            self.system.check()
        if self._progress is not None and self._instants % PROGRESS_INSTANTS == 0:
            self._progress(self._over, len(self._jobs), now_s)

    # ---- jobs

    def _submit_leaders(self) -> None:
        """Jobs that follow no other are submitted at the time in the trace; the others after the jobs they follow."""
        waiting = {follower for each in self._followers.values() for follower in each}
        for at, submit_s in enumerate(self._submit_s):
            if at not in waiting:
                self._agenda.at(submit_s, SUBMIT, at)

    def _follow(self, at: int) -> None:
        """Record that the job has ended or was denied: jobs that follow it are submitted after their think time."""
        for follower in self._followers.get(at, ()):
            think_s = self._jobs[follower].think_s or 0.0
            self._submit_s[follower] = self._agenda.now_s + think_s
            self._agenda.at(self._submit_s[follower], SUBMIT, follower)

    def _submit(self, at: int, now_s: float) -> None:
        job = self._jobs[at]
        self._state[at] = WAITING
        spec = self._specs.of(job)
        if isinstance(spec, str):
            self._deny(at, spec)
            return
        if spec.duration_s:
            self._limit_s[at] = max(spec.duration_s, job.least_s)
        if self._amounts.enabled:
            self._amounts.asked(at, spec.request)
        if not self._plain[at]:
            self._procs[at] = _cores(spec)
        user = job.user
        userid = user if isinstance(user, int) else self._users.userid(user)
        self.system.submit(at + 1, job.urgency, userid, self._submit_s[at], spec)

    def _submit_again(self, at: int) -> None:
        """Submit a job whose attempt was preempted or lost, in line by its first submission."""
        job = self._jobs[at]
        self._state[at], self._start[at], self._end[at] = WAITING, None, None
        spec = self._specs.of(job)
        assert isinstance(spec, Jobspec), "it was taken before"
        jobid = self._attempts.next_id(at)
        self.system.submit(jobid, job.urgency, self._users.userid(job.user), self._submit_s[at], spec)

    def began(self, granted: Granted) -> None:
        """Record that a job got its resources."""
        at, now_s = granted.jobid - 1, self.system.now_s
        if at >= self._rows:
            at = self._attempts.row(granted.jobid)
        if self._own_time:
            now_s += self._spent_s()
        job = self._jobs[at]
        assert self._state[at] is WAITING, f"job {job.job} is started, and is {self._state[at]}"
        self._start[at], self._state[at] = now_s, RUNNING
        run_s, limit_s = job.run_s, self._limit_s[at]
        end_s = now_s + (run_s if run_s < limit_s else limit_s)  # `min` costs more, with each job
        if self._of_size and at in self._of_size:
            end_s = self._sizes.began(at, granted.resources, now_s, limit_s)
        self._agenda.at(end_s, END, at)
        if self._recording or not self._plain[at]:
            self._record(at, granted)

    def _spent_s(self) -> float:
        """With time of its own: how long this instant has taken so far."""
        assert self._stopwatch is not None
        return max(self._stopwatch() - self._begun_s, 0.0)

    def _record(self, at: int, granted: Granted) -> None:
        """Record the resources of a job that are needed later: its ranks, and its cores if the trace does not determine
        them.
        """
        if self._amounts.enabled:
            self._amounts.held(at, granted.fit)
        if self._looking or not self._plain[at]:
            self._look_at(at, granted.resources)

    def _look_at(self, at: int, resources: ResourceSet) -> None:
        self._procs[at] = resources.count("core")
        if self._topology:
            self._hops[at] = largest_hops(self._topology, resources)
        if self._ranks is not None:
            self._ranks[at] = str(resources.ranks)
        if self._tracking:
            self._held[at] = resources.ranks
            self.system.pass_on(self.system.module.hold(self._attempts.jobid(at), resources.ranks))

    def _finish(self, at: int, now_s: float, state: str | None = None) -> None:
        """End a job by its timer, or earlier; its timer is then ignored."""
        if self._state[at] != RUNNING:
            return
        jobid, again, sized = at + 1, False, None
        if self._sized:
            sized = self._sized.get(at)
            if sized is not None and state is None and now_s < sized.due_s and not self._attempts.goes(at):
                return  # the timer of another size
        if self._attempts.known:
            end_s = self._timed_end_s(at) if state is None else now_s
            if now_s < end_s:
                return  # the timer of an attempt that was preempted
            jobid, now_s, was_preempted = self._attempts.jobid(at), end_s, self._attempts.goes(at)
            if was_preempted:
                state = PREEMPTED
                ranks = None if self._ranks is None else self._ranks[at]
                again = self._attempts.ended(at, self._start[at] or 0.0, now_s, self._procs[at], ranks)
        pause_s = 0.0
        if state == FAILED and self._jobs[at].requeue:
            pause_s, jobid = self._attempts.pause_s(at), self._attempts.jobid(at)
            ranks = None if self._ranks is None else self._ranks[at]
            again = self._attempts.lost(at, self._start[at] or 0.0, now_s, self._procs[at], ranks)
        self._end[at] = now_s
        if sized is not None:
            is_done = self._sizes.ended(at, now_s)
            state = state or (COMPLETED if is_done else TIMEOUT)
        elif state is None:
            state = COMPLETED if self._jobs[at].run_s <= self._limit_s[at] else TIMEOUT
        if not again:
            self._state[at] = state
            self._over += 1
            if self._followers:
                self._follow(at)
        self.system.free(jobid)
        if self._tracking:
            self.system.pass_on(self.system.module.unhold(jobid, self._held.pop(at), self.system.now_s))
        if again and pause_s:
            self._state[at], self._start[at], self._end[at] = WAITING, None, None
            self._agenda.at(now_s + pause_s, SITE, Retry(at))
        elif again:
            self._submit_again(at)

    def _timed_end_s(self, at: int) -> float:
        start_s = self._start[at]
        assert start_s is not None
        if at in self._sizes.running:
            return min(self._sizes.running[at].due_s, self._attempts.latest_end_s(at))
        return min(start_s + min(self._jobs[at].run_s, self._limit_s[at]), self._attempts.latest_end_s(at))

    def raised(self, jobid: int, type: str, for_jobid: int | None) -> None:
        """Record that a running job gets a fatal exception: its targets left the group, or it is preempted for another
        job.
        """
        at, now_s = self._attempts.row(jobid), self.system.now_s
        if type != PREEMPT:
            self._finish(at, now_s, FAILED)
            return
        for_row = NO_ROW if for_jobid is None else self._attempts.row(for_jobid)
        if self._attempts.preempt(at, now_s + self._grace_s, for_row):
            self._agenda.at(now_s + self._grace_s, END, at)

    def grew(self, grown: Grown) -> None:
        """Record that a running job got more."""
        at, resources = self._attempts.row(grown.jobid), grown.resources
        if self._tracking:
            self._held[at] |= resources.ranks
            self.system.pass_on(self.system.module.hold(grown.jobid, resources.ranks))
        self._agenda.at(max(self._sizes.grew(at, resources, self._agenda.now_s), self._agenda.now_s), END, at)
        if self._topology:
            self._hops[at] = largest_hops(self._topology, self._sizes.running[at].resources)

    def shrank(self, shrunk: Shrunk) -> None:
        """Record that a running job leaves targets, which are free when it has ended there."""
        at, now_s = self._attempts.row(shrunk.jobid), self._agenda.now_s
        leaves, end_s = self._sizes.shrank(at, shrunk.ranks, now_s)
        self._agenda.at(max(end_s, now_s), END, at)
        self._agenda.at(now_s + self._grace_s, SITE, PartLeft(shrunk.jobid, leaves))

    def _release(self, part: PartLeft) -> None:
        """Record that a job has ended on some of its targets."""
        at = self._attempts.row(part.jobid)
        if self._state[at] != RUNNING or self._attempts.jobid(at) != part.jobid:
            return  # all were freed with its end
        self.system.free_part(part.jobid, part.resources)
        if self._tracking:
            ranks = part.resources.ranks
            self._held[at] -= ranks
            self.system.pass_on(self.system.module.unhold(part.jobid, ranks, self.system.now_s))

    def left(self, jobid: int, note: str) -> None:
        """Record that a waiting job was denied; nothing here cancels one."""
        self._deny(self._attempts.row(jobid), note)

    def _deny(self, at: int, note: str) -> None:
        self._state[at] = DENIED
        self._notes[at] = note
        self._over += 1
        if self._followers:
            self._follow(at)

    # ---- the site

    def _change(self, step: SiteEvent | PartLeft | Retry, now_s: float) -> None:
        if isinstance(step, PartLeft):
            self._release(step)
            return
        if isinstance(step, Retry):
            self._submit_again(step.row)
            return
        self.system.pass_on(effects_of(step, self.system.module, now_s))
        if step.do == OUTAGE:
            for at in [at for at, held in self._held.items() if not held.isdisjoint(step.targets)]:
                self._finish(at, now_s, FAILED)
        self._capacity.append((now_s, self.system.usable_cores()))
        self._amounts.changed(now_s)

    def _result(self, until_s: float, wall_s: float | None) -> Result:
        jobs = self._jobs
        banks = [job.bank for job in jobs]
        self._notes |= {self._attempts.row(jobid): why for jobid, why in self._scheduler.report.set_aside().items()}
        table = Columns(
            [job.job for job in jobs], self._submit_s, self._start, self._end, self._procs,
            [job.user for job in jobs], [job.queue for job in jobs], self._state, self._ranks, self._notes,
            banks if any(banks) else [], self._attempts.preemptions, self._sizes.resizes, self._hops,
        )  # fmt: skip
        counts = self._scheduler.report.stats()
        cost = Cost(
            self._instants, counts["passes"], wall_s, self._pass_s, counts["refused"], self._considered_s,
            self.system.refusal,
        )  # fmt: skip
        book, targets = self._scheduler.accounts, len(self._site.resources)
        fair = (self._site.fair or FairSettings()) if book is None else book.settings
        return Result(
            self._title, self._trace.name, table, self._capacity, targets, cost, until_s, held=self._amounts.amounts,
            fair=fair,
        )  # fmt: skip


def _cores(spec: Jobspec) -> int:
    """Return the cores that a job asks for at least."""
    request = spec.request
    return request.least_cores


# ---- records of jobs: users

NAMED_FROM: Final = 1 << 32
"""User ids have 32 bits: above are those of users that a trace names by texts."""


class Users:
    """Ids of users by name; numbers stand for themselves."""

    def __init__(self) -> None:
        self._ids: dict[str | None, int] = {}
        self._names: list[str] = []

    def userid(self, user: int | str | None) -> int:
        """Return the number of a user."""
        if isinstance(user, int):
            return user
        userid = self._ids.get(user)
        if userid is None:
            userid = self._ids[user] = NAMED_FROM + len(self._names)
            self._names.append(UNKNOWN_USER if user is None else user)
        return userid

    def name(self, userid: int) -> str:
        """Return the trace's name for a number."""
        at = userid - NAMED_FROM
        return self._names[at] if 0 <= at < len(self._names) else str(userid)


# ---- records of jobs: amounts


class AmountRecorder:
    """Recorder of the amounts that `rows` jobs request and hold; equal ones are one object."""

    def __init__(self, site: Site, system: System, enabled: bool, rows: int) -> None:
        self.enabled = enabled
        self.amounts: AmountColumns | None = None
        self._system = system
        kinds = ("core", "gpu", *[kind for kind, _ in site.resources.counted()])
        self._counter = AmountCounter(kinds)
        self._nothing: Vector = (0,) * len(kinds)
        self._known: dict[Vector, Vector] = {}
        if enabled:
            self.amounts = AmountColumns(kinds, [self._nothing] * rows, [])
            self.changed(0.0)

    def asked(self, row: int, request: Request) -> None:
        """Record the least that a job asks for."""
        assert self.amounts is not None
        vector = self._counter.of_request(request)
        self.amounts.of_row[row] = self._known.setdefault(vector, vector)

    def held(self, row: int, fit: Fits) -> None:
        """Record the amounts that the job in this row got."""
        assert self.amounts is not None
        vector = self._counter.of_blocks(fit.blocks)
        self.amounts.of_row[row] = self._known.setdefault(vector, vector)

    def changed(self, now_s: float) -> None:
        """Other targets may be usable from now on."""
        if self.amounts is not None:
            resources = self._system.module.resources
            usable = self._counter.of_targets(resources, self._system.usable())
            vector = summed((usable, self._counter.of_amounts(resources.shared)), len(self._nothing))
            self.amounts.capacity.append((now_s, vector))


# ---- attempts of preempted jobs


class Retry(NamedTuple):
    """The pause is over after which the job in a row is submitted again."""

    row: int


class Attempts:
    """Rows of jobs that were preempted or lost with their targets; `requeue` is how often each row's job may be
    submitted again.

    `preemptions` are the attempts that were cut short so, in order; `known` is false until the first one, or true
    from the beginning where ends may be late.
    """

    def __init__(self, requeue: list[int], known: bool = False) -> None:
        self.preemptions: list[Preemption] = []
        self.known = known
        self._first_ids = len(requeue)
        self._requeue = tuple(requeue)
        self._left = requeue
        self._rows: list[int] = []  # of ids after the first ones
        self._ids: dict[int, int] = {}  # of rows that were submitted again
        self._going: dict[int, tuple[float, int]] = {}  # row -> when it ends at the latest, and for which row

    def row(self, jobid: int) -> int:
        """Return the row of an attempt."""
        return jobid - 1 if jobid <= self._first_ids else self._rows[jobid - self._first_ids - 1]

    def jobid(self, row: int) -> int:
        """Return the id of a row's present attempt."""
        return self._ids.get(row, row + 1) if self._ids else row + 1

    def preempt(self, row: int, end_s: float, for_row: int) -> bool:
        """Record that the running job of a row is to be over by `end_s`, for that of another (or NO_ROW); False if it
        goes already.
        """
        if row in self._going:
            return False
        self.known = True
        self._going[row] = end_s, for_row
        return True

    def goes(self, row: int) -> bool:
        """Return whether the running job in this row was preempted."""
        return row in self._going

    def latest_end_s(self, row: int) -> float:
        """By when a job that goes is over; inf for any other."""
        return self._going[row][0] if row in self._going else inf

    def ended(self, row: int, start_s: float, end_s: float, procs: int, ranks: str | None = None) -> bool:
        """End an attempt that was preempted; return whether there is to be another one."""
        _, for_row = self._going.pop(row)
        return self._cut(row, start_s, end_s, procs, ranks, for_row)

    def pause_s(self, row: int) -> float:
        """Return the pause before a retry of the job in this row (seconds); it doubles with each attempt."""
        return doubled_s(RETRY_PAUSE_S, self._requeue[row] - self._left[row], RETRY_PAUSE_MAX_S)

    def lost(self, row: int, start_s: float, end_s: float, procs: int, ranks: str | None = None) -> bool:
        """End an attempt whose targets were lost; return whether there is to be another one."""
        self.known = True
        self._going.pop(row, None)
        return self._cut(row, start_s, end_s, procs, ranks, NO_ROW)

    def _cut(self, row: int, start_s: float, end_s: float, procs: int, ranks: str | None, for_row: int) -> bool:
        again = self._left[row] > 0
        if again:
            self._left[row] -= 1
        self.preemptions.append(Preemption(row, start_s, end_s, procs, for_row, again, ranks))
        return again

    def next_id(self, row: int) -> int:
        """Return the id of a further attempt."""
        self._rows.append(row)
        jobid = self._ids[row] = self._first_ids + len(self._rows)
        return jobid


# ---- distances within jobs


def largest_hops(topology: Topology, resources: ResourceSet) -> int | None:
    """Return the most between any two targets of the job, of each part where it has several.

    None where there is but one target, or where some are not connected.
    """
    parts = resources.parts
    ranks = list(parts.values()) if parts else [resources.ranks]
    found = [_of_hosts(topology, resources.hosts(each).hosts) for each in ranks if len(each) > 1]
    known = [hops for hops in found if hops is not None]
    return max(known, default=None)


def _of_hosts(topology: Topology, hosts: Sequence[str]) -> int | None:
    common = topology.lowest_common(hosts)
    if common is None:
        return None
    leaves = {topology.leaf_of[host] for host in hosts}
    return 2 * (max([topology.chain(leaf).index(common) for leaf in leaves]) + 1)


# ---- sizes of elastic jobs

DONE = 1e-9
"""Of the work of a job may be left when it ends with it, as doubles round."""


class PartLeft(NamedTuple):
    """A job that goes on has ended on these targets."""

    jobid: int
    resources: ResourceSet


class SizedJob:
    """One that runs: what it has, since when it has just these cores, and when it ends if that stays so."""

    __slots__ = ("at_start", "cores", "due_s", "is_done_at_end", "latest_s", "left", "resources", "since_s")

    def __init__(self, resources: ResourceSet, job: TraceJob, now_s: float, limit_s: float) -> None:
        self.resources = resources
        self.cores = self.at_start = resources.count("core")
        self.since_s = now_s
        self.left = inf if job.work is None else job.work
        self.latest_s = now_s + (limit_s if job.work is not None else min(job.run_s, limit_s))
        self.is_done_at_end = job.run_s <= limit_s
        self.due_s = self._end_s()

    def set_cores(self, cores: int, now_s: float) -> None:
        """Set the number of cores that the job has from now on."""
        self.left = max(0.0, self.left - self.cores * (now_s - self.since_s))
        self.cores, self.since_s = cores, now_s
        self.due_s = self._end_s()

    def _end_s(self) -> float:
        return min(self.latest_s, self.since_s + self.left / self.cores)


class Sizes:
    """Running jobs of variable size, by row; `resizes` are all changes so far."""

    def __init__(self, jobs: Sequence[TraceJob]) -> None:
        self.rows = {row for row, job in enumerate(jobs) if job.work is not None or job.ask.elastic}
        """Of jobs that this is about."""
        self.running: dict[int, SizedJob] = {}
        self.resizes: list[Resizing] = []
        self._jobs = jobs
        self._begun: dict[int, int] = {}  # row -> how many resizes there were before its present attempt

    def began(self, row: int, resources: ResourceSet, now_s: float, limit_s: float) -> float:
        """Begin a job; return when it ends if it keeps its size."""
        job = self.running[row] = SizedJob(resources, self._jobs[row], now_s, limit_s)
        self._begun[row] = len(self.resizes)
        return job.due_s

    def grew(self, row: int, added: ResourceSet, now_s: float) -> float:
        """Add resources to the job in this row; return its new end."""
        job = self.running[row]
        job.resources |= added
        return self._resize(row, job, added.count("core"), added.ranks, now_s)

    def shrank(self, row: int, ranks: Idset, now_s: float) -> tuple[ResourceSet, float]:
        """Take the job in this row off these targets; return the resources that it had there, and its new end."""
        job = self.running[row]
        leaves = job.resources.restrict(ranks)
        job.resources = job.resources.restrict(job.resources.ranks - ranks)
        return leaves, self._resize(row, job, -leaves.count("core"), ranks, now_s)

    def _resize(self, row: int, job: SizedJob, change: int, ranks: Idset, now_s: float) -> float:
        job.set_cores(job.cores + change, now_s)
        self.resizes.append(Resizing(row, now_s, None, change, str(ranks)))
        return job.due_s

    def ended(self, row: int, now_s: float) -> bool:
        """End an attempt; return whether it has had all its work, if it had to have some."""
        job = self.running.pop(row)
        for at in range(self._begun.pop(row), len(self.resizes)):
            if self.resizes[at].row == row:
                self.resizes[at] = self.resizes[at]._replace(until_s=now_s)
        job.set_cores(job.cores, now_s)
        work = self._jobs[row].work
        return job.is_done_at_end if work is None else job.left <= work * DONE


# ---- run

DEFAULT_POLICY: Final = "easy"

TraceSource = Trace | Path | str | Iterable[TraceJob]
"""A trace, a file that holds one, or jobs."""


def run(
    trace: TraceSource,
    policy: str | Policy = DEFAULT_POLICY,
    *,
    procs: int | None = None,
    nodes: int | None = None,
    cores: int | None = None,
    gpus: int | None = None,
    resources: ResourceSet | Site | Path | str | None = None,
    config: Path | str | None = None,
    site: Path | str | Sequence[SiteEvent] = (),
    until_s: float = inf,
    placements: bool = False,
    check: bool = False,
    feedback: bool = False,
    stopwatch: Callable[[], float] | None = None,
    progress: Progress | None = None,
    label: str | None = None,
    preempt_grace_s: float = 0.0,
    own_time: bool = False,
    accounts: bool = False,
    topology: str | None = None,
) -> Result:
    """Simulate a trace under one policy, `NAME` or `NAME:key=value,...`, on virtual time; `easy;debug=fifo` has another
    one for the queue `debug`, of the configuration or else of the trace.

    The machine: `procs` one-core targets, `nodes` of `cores` and `gpus`, `resources` (R, or a file of it), else what
    `config` (an instance's configuration) or the trace says; `resources` may be a whole `Site`. `site` changes it
    meanwhile. `until_s` ends early. `placements` fills the column `ranks`; `check` asserts all invariants at each
    instant; with `feedback` a job that has a preceding one (SWF fields 17 and 18) is submitted when that is over;
    `stopwatch` (seconds) measures what passes cost; `label` is what tables and plots call the result instead of its
    policy; a preempted job ends `preempt_grace_s` later. With `own_time` virtual time passes while the scheduler
    works, as the stopwatch says; with `accounts` the result has them whether the policy asks for them or not;
    `topology` has the machine's switches (`with_switches`). Raises InvalidValue for what cannot be read or does not
    fit together.
    """
    if not until_s >= 0:
        raise InvalidValue(f"until_s {until_s:g} is not a number of seconds of 0 or more")
    if not isinstance(policy, str) and (isinstance(policy, type) or not hasattr(policy, "schedule")):
        raise InvalidValue(f"{shortened(policy)} is not a policy: give a name, or an object with `name` and `schedule`")
    traced = trace_of(trace)
    place = _site(traced, procs, nodes, cores, gpus, resources, config, topology)
    _check_grace(preempt_grace_s, place.preempt_timeout_s)
    if own_time and stopwatch is None:
        raise InvalidValue("own_time needs a stopwatch, which measures the time that the scheduler takes")
    steps = read_site(Path(site), place.resources) if isinstance(site, Path | str) else site
    title = policy if isinstance(policy, str) else policy.name
    own: dict[str, Policy] = {}
    plugins: Mapping[str, Sequence[Plugin]] = {}
    if isinstance(policy, str):
        place, specs = place.under(policy, traced)
        policy, own, plugins = load(specs)
    simulation = Simulation(
        traced, place, policy, title, steps,
        policies=own, plugins=plugins, placements=placements, check=check, feedback=feedback,
        stopwatch=stopwatch, progress=progress,
        preempt_grace_s=preempt_grace_s, own_time=own_time, accounts=accounts,
    )  # fmt: skip
    result = simulation.run(until_s)
    result.label = label
    return result


def _check_grace(preempt_grace_s: float, timeout_s: float) -> None:
    if not 0 <= preempt_grace_s <= timeout_s:
        raise InvalidValue(
            f"preempt-grace {preempt_grace_s:g} s is not within 0-{timeout_s:g} s, the preempt-timeout: "
            "set [exec] preempt-timeout in a configuration"
        )


def trace_of(source: TraceSource) -> Trace:
    """Return the trace that is meant. Raises InvalidValue."""
    if isinstance(source, Trace):
        return source
    if isinstance(source, Path | str):
        return read_trace(source)
    if not isinstance(source, Iterable):
        raise InvalidValue(f"{shortened(source)} is not a trace: give a file name, a Trace, or TraceJobs")
    return Trace.of(source)


def _site(
    trace: Trace,
    procs: int | None,
    nodes: int | None,
    cores: int | None,
    gpus: int | None,
    resources: ResourceSet | Site | Path | str | None,
    config: Path | str | None,
    topology: str | None,
) -> Site:
    if topology is not None:
        place = _site(trace, procs, nodes, cores, gpus, resources, config, None)
        return replace(place, resources=with_switches(place.resources, topology))
    if isinstance(resources, ResourceSet | Site):
        if (procs, nodes, cores, gpus, config) != (None,) * 5:
            raise InvalidValue("resources define the machine: do not give procs, nodes, cores, gpus or config as well")
        return resources if isinstance(resources, Site) else Site(resources)
    return site_of(
        trace,
        procs=procs,
        nodes=nodes,
        cores=cores,
        gpus=gpus,
        r_path=None if resources is None else Path(resources),
        config_path=None if config is None else Path(config),
    )

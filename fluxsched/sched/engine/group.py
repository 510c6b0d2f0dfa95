"""One acquired group as the scheduler sees it: its pool, its queues of waiting jobs, and verdicts on their requests.

Law: nothing is judged before the first grow (RFC 28 draft); from then on every job of a queue is feasible, and the
others are set aside or have been denied. A verdict is worked out once a shape and generation, since it does not depend
on what is up or busy. A job of queues that several groups serve waits in each group that could ever hold it,
everywhere at the place that its key gives it; it has a reservation in at most one of them, where it starts first, and
when it starts in one it has left all others in that step. It is set aside in each that cannot hold it, and denied only
once none can.

An owner is notified of a changed reason or estimate every NOTICE_EVERY_S at most; what is held back is sent when it is
due, as it is by then. Only an estimate that no longer holds is withdrawn at once. Where reservations move between
accounts or groups, a new estimate is first held back for SETTLE_S: most are over by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any, Final, TypeAlias

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.outages import Outages
from fluxsched.core.quantities import Amounts
from fluxsched.core.reasons import cause, in_groups, wait_kind
from fluxsched.core.resources import Properties, ResourceSet
from fluxsched.core.topology import Topology
from fluxsched.errors import InvalidValue, LimitExceeded, RemoteProtocolError
from fluxsched.sched.decisions import Annotated, Denied, Effect, Reason, Release, Reservation
from fluxsched.sched.engine.policy_queue import WAIT, GroupHooks, PolicyQueue, SetAside, TimeText, utc_text
from fluxsched.sched.fair.usage import UsageBook
from fluxsched.sched.ledger import JobAllocation, Ledger
from fluxsched.sched.plan.counted_plan import Plan, ReservedNodes
from fluxsched.sched.plan.running_jobs import RunningJobs
from fluxsched.sched.policy import Policy, needs_accounts
from fluxsched.sched.pool.find_fit import shortage
from fluxsched.sched.pool.placement import Fits, Shape
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.preemption import Preemptions
from fluxsched.sched.queue import AccountLines, AdmissionControl, PendingJob, Skips

ENDLESS_WARNING = "has no time limit: nothing can be planned behind it, and it starts early only where no job waits"

PREEMPT_NONE, PREEMPT_EXTRAS, PREEMPT_JOBS = range(3)
"""Levels of preemption, one for each turn of a pass over several groups, for a job offered by several groups."""

VERDICTS_MAX = 4096
"""Shapes whose verdicts are remembered; some hundred bytes each."""


class Group:
    """`is_expected` until the first grow if targets will come, but are not known yet.

    `leaving` are targets shrunk and not yet released; `changed` means that a pass may decide something new, `passed`
    that one has and running jobs may grow by what it left, `events` counts what happens.

    `queues` are those that have a policy of their own, by name, in the order in which they are served, then the one for
    all others, by the empty name. `set_aside` are jobs of all of them, by id; `short_since_s` is when the group last
    lost something, or was acquired (wall time, seconds). A pass comes at `wake_s` (the same) though nothing happens.
    `joint` are the groups, by id, of all waiting jobs that have several; all groups have this table in common. In each
    `preemption_level` more may go for these; `has_put_off` says whether something was left for the next one.
    """

    def __init__(
        self,
        name: str,
        pool: Pool,
        ledger: Ledger,
        policies: Sequence[tuple[str, Policy]],
        unsatisfiable: str = WAIT,
        notify: bool = True,
        time_text: TimeText = utc_text,
        preemptions: Preemptions | None = None,
    ) -> None:
        self.name = name
        self.pool = pool
        self.queues = {queue: PolicyQueue(queue, policy) for queue, policy in policies}
        self.running = RunningJobs(pool, ledger)
        self.preemptions = Preemptions(ledger) if preemptions is None else preemptions
        self.grown = False
        self.is_expected = False
        self.leaving = EMPTY
        self.expiration_s = 0.0
        self.changed = False
        self.passed = False
        self.events = 0
        self.wake_s = inf
        self.notices = Notices(notify)
        self.ledger = ledger
        self.set_aside: dict[int, SetAside] = {}
        self.short_since_s = inf
        self.admission = ledger.admission
        self.generation = -1  # of the admission, in the last pass
        self.reserved = ReservedNodes(pool, self.invalidate_pass)
        self.is_patient = unsatisfiable == WAIT
        self.time_text = time_text
        self._verdicts: dict[int, FitVerdict] = {}  # by number of the shape
        self.joint: dict[int, tuple[Group, ...]] = {}
        self.preemption_level = PREEMPT_JOBS
        self.has_put_off = False
        self.hooks: GroupHooks | None = None

    def invalidate_pass(self) -> None:
        """Something has happened after which every waiting job is to be examined."""
        self.changed = True
        self.events += 1
        self.admission.renew()
        for queue in self.queues.values():
            queue.arrivals = None

    def is_put_off(self, jobid: int, whole: bool) -> bool:
        """Return whether preemption for the job (of `whole` jobs) is deferred to a later turn.

        Another of its groups may start the job at a lower level of preemption.
        """
        if self.preemption_level >= (PREEMPT_JOBS if whole else PREEMPT_EXTRAS) or jobid not in self.joint:
            return False
        self.has_put_off = True
        return True

    # ---- targets

    def grow(self, resources: ResourceSet, online: Idset, now_s: float = 0.0) -> None:
        """Count targets that join at `now_s`. Raises RemoteProtocolError if some are leaving and were not released."""
        if early := resources.ranks & self.leaving:
            raise RemoteProtocolError(f"grow of group {self.name!r} names ranks {early}, which are not released yet")
        self.pool.add(resources, online)
        self.admission.change_capacity(self.pool, resources.ranks, 1)
        self.expiration_s = resources.expiration_s if resources.ranks or not self.grown else self.expiration_s
        if not self.grown:
            self.grown, self.is_expected, self.short_since_s = True, False, now_s
        self.invalidate_pass()
        self.ledger.count_in(resources.ranks)
        self.running.changed(resources.ranks)

    def shrink(self, targets: Idset, now_s: float = 0.0) -> None:
        """Forgets targets, at `now_s`. Raises RemoteProtocolError, and changes nothing, if some are not ours."""
        if unknown := targets - self.pool.ranks:
            raise RemoteProtocolError(f"shrink of group {self.name!r} names ranks {unknown}, which it does not have")
        self._remember(now_s)
        self.reserved.release_on(targets)
        self.admission.change_capacity(self.pool, targets, -1)
        self.pool.remove(targets)
        self.running.changed(targets)
        self.invalidate_pass()

    def release(self, targets: Idset) -> list[Effect]:
        """Targets that were shrunk and that no job holds any more are given back."""
        if not targets:
            return []
        self.leaving -= targets
        return [Release(self.name, targets)]

    def set_availability(self, targets: Idset, up: bool) -> None:
        """Mark targets of this group as usable or not, and invalidate plans."""
        pool = self.pool
        touched = targets & pool.down if up else (targets & pool.ranks) - pool.down | pool.drained.usable(targets)
        if touched:
            (self.pool.set_up if up else self.pool.set_down)(touched)
            if not up and self.reserved.by_job:
                self.reserved.release_on(touched)
            self.running.changed(touched)
            self.invalidate_pass()

    def resize(self, rank: int, amounts: Amounts, occupied: Amounts, now_s: float) -> None:
        """Record that a target of amounts has others from now on."""
        self._remember(now_s)
        target = Idset.one(rank)
        self.admission.change_capacity(self.pool, target, -1)
        self.pool.resize(rank, amounts, occupied)
        self.admission.change_capacity(self.pool, target, 1)
        self.running.changed(target)
        self.invalidate_pass()

    def update(
        self,
        expiration_s: float | None,
        add: Properties,
        remove: Properties,
        topology: Topology | None,
        now_s: float,
        outages: Outages | None = None,
        spares: Mapping[int, int] | None = None,
    ) -> bool:
        """Apply a change of R, the outages or the spares at `now_s`; return whether the feasibility of requests may
        have changed.
        """
        if outages is not None:
            self.pool.outages = outages
            self.running.changed(EMPTY)
            self.invalidate_pass()
        if expiration_s is not None:
            self.expiration_s = expiration_s
            self.invalidate_pass()
        if not add and not remove and topology is None and spares is None:
            return False
        self._remember(now_s)
        if spares is not None:
            self.pool.stand_in(spares)
        self.pool.describe(add, remove)
        if topology is not None:
            self.pool.connect(topology)
        self.running.changed(EMPTY)
        self.invalidate_pass()
        return True

    # ---- jobs that wait

    def queue_of(self, jobid: int) -> PolicyQueue | None:
        """Return the queue in which the job is pending; None if it is in none."""
        for queue in self.queues.values():
            if jobid in queue.jobs.by_id:
                return queue
        return None

    def keep_accounts(self, book: UsageBook, lines: dict[int, int] | None) -> None:
        """Book the usage of jobs from now on; called before there are any jobs. `lines`: see `PendingJobs`."""
        for queue in self.queues.values():
            queue.jobs.book, queue.jobs.counted = book, lines
            if needs_accounts(queue.policy):
                queue.jobs.lines = AccountLines(book, queue.jobs.by_id)
                self.notices.settle_s = SETTLE_S

    def keep_admission(self, admission: AdmissionControl) -> None:
        """Start jobs by these rules from now on; called before there are any jobs."""
        self.admission = admission
        for queue in self.queues.values():
            queue.jobs.index = admission.index(self.pool)

    def waiting_by_id(self) -> list[Mapping[int, object]]:
        """Return the tables of all jobs pending in this group; they are updated as jobs are added and removed."""
        found: list[Mapping[int, object]] = [self.set_aside, *[queue.jobs.by_id for queue in self.queues.values()]]
        return found if self.hooks is None else [*found, self.hooks.gates.gated]

    @property
    def waiting(self) -> int:
        """Return the number of pending jobs, with those set aside and those at gates."""
        gated = 0 if self.hooks is None else len(self.hooks.gates.gated)
        return sum([len(queue.jobs) for queue in self.queues.values()]) + len(self.set_aside) + gated

    def add(self, job: PendingJob, name: str | None, now_s: float = 0.0) -> list[Effect]:
        """Add a job, at `now_s`, to the queue of this name, if it has a policy of its own, else to the one for all
        others.

        Its owner is warned if it has no limit. Raises LimitExceeded when the queue is full.
        """
        queue = self.queues.get(name or "") or self.queues[""]
        if self.pool.shut:  # then the first in line may be none that is offered
            queue.arrivals = None
        if queue.add(job, self.running, now_s):
            self.changed = True
        self.events += 1
        if self.is_expected and job.jobid not in self.joint:
            return self.tell_expected(job.jobid) + self._warn(job, queue)
        return [] if job.duration_s else self._warn(job, queue)

    def tell_expected(self, jobid: int) -> list[Effect]:
        """Why a job waits while it is not known yet which targets there are."""
        told = self.notices.tell_now(jobid, self.expected)
        return [] if told is None else [told]

    @property
    def expected(self) -> str:
        """Return the reason of jobs that wait for targets of this group, which are not known yet."""
        return f"waits for the targets of group {self.name!r}, which are not known yet: its cluster has not answered"

    def _warn(self, job: PendingJob, queue: PolicyQueue) -> list[Effect]:
        """Return a warning for a job without a limit under a policy that backfills; the end of the group is a limit,
        too.
        """
        if job.duration_s or self.expiration_s or job.terms is not None or not self.notices.enabled:
            return []
        if not getattr(queue.policy, "BACKFILLS", False):
            return []
        return [Annotated(job.jobid, {"sched": {"warning": ENDLESS_WARNING}})]

    def remove(self, jobid: int, queue: PolicyQueue) -> bool:
        """Take a job off a queue; whether it was there."""
        job = queue.jobs.remove(jobid)
        self.notices.forget(jobid)
        if job is not None:
            queue.removed(job, self.running)
        return job is not None

    def judge(self, shape: Shape) -> str | None:
        """Return why the shape can never fit in this group; None if it can, before the first grow, and where targets
        may come at any time.
        """
        if shape.scope is not None:
            self.renew(shape)
        if self.admission.is_open_ended:
            return None
        verdict = self._verdicts.get(shape.number)
        if verdict is None:
            if len(self._verdicts) >= VERDICTS_MAX:
                self._verdicts.clear()
            verdict = self._verdicts[shape.number] = FitVerdict()
        if verdict.generation != self.pool.generation and self.grown:
            if verdict.why is None and verdict.generation >= 0:
                verdict.had = verdict.have
            verdict.generation = self.pool.generation
            verdict.have, verdict.why = shortage(self.pool, shape.request, self.pool.narrowed.get(shape.number))
        return verdict.why

    def renew(self, shape: Shape) -> bool:
        """Renew plugins' verdicts on the shape; return whether its remaining choice may have changed."""
        if self.hooks is None or not self.grown or not self.hooks.renew(shape):
            return False
        verdict = self._verdicts.get(shape.number)
        if verdict is not None:
            verdict.generation = -1
        for queue in self.queues.values():
            queue.recount()
        return True

    def _remember(self, now_s: float) -> None:
        """Work out the verdicts on pending requests before targets are lost, as the counts to compare with."""
        self.short_since_s = now_s
        for queue in self.queues.values() if self._keeps_verdicts else ():
            for shape, _ in queue.jobs.shapes():
                self.judge(shape)

    @property
    def _keeps_verdicts(self) -> bool:
        return self.is_patient and self.grown and not self.admission.is_open_ended

    def refuses(self, t_submit_s: float, asks_to_wait: bool) -> bool:
        """Return whether an infeasible job is new, so that it is denied; else it was accepted (see `set_aside`)."""
        return not self.is_patient or not (asks_to_wait or t_submit_s < self.short_since_s)

    def offers_elsewhere(self, jobid: int) -> bool:
        """Return whether another group offers the job or is about to; then this group does not report that it waits."""
        groups = self.joint.get(jobid) if self.joint else None
        return groups is not None and any(each.is_offered(jobid) for each in groups if each is not self)

    def is_offered(self, jobid: int) -> bool:
        """Return whether the job is in a queue of this group, or at its gate."""
        return self.queue_of(jobid) is not None or (self.hooks is not None and jobid in self.hooks.gates.gated)

    def had(self, shape: Shape) -> int | None:
        """Return the number of nodes (or slots) there were for a shape when it was last feasible; None if unknown."""
        return self._verdicts[shape.number].had

    def withdraw(self, jobid: int) -> bool:
        """Withdraw the request of the job, wherever it waits; return whether it was there."""
        gated = None if self.hooks is None else self.hooks.gates.gated.pop(jobid, None)
        if gated is not None or self.set_aside.pop(jobid, None) is not None:
            self.notices.forget(jobid)
            return True
        queue = self.queue_of(jobid)
        if queue is None or not self.remove(jobid, queue):
            return False
        self.reserved.release(jobid)
        self.invalidate_pass()
        return True

    def prioritize(self, jobid: int, priority: int) -> None:
        """Set the priority of a job, if it is pending in this group."""
        aside = self.set_aside.get(jobid)
        if aside is not None:
            aside.job = aside.job._replace(priority=priority)
            return
        if self.hooks is not None and self.hooks.prioritize(jobid, priority):
            return
        for queue in self.queues.values():
            if queue.jobs.prioritize(jobid, priority):
                self.invalidate_pass()

    # ---- jobs that run

    def freed(self, jobid: int) -> None:
        """Update plans after the job has freed a part of its resources, or all."""
        self.running.freed(jobid)
        self.invalidate_pass()

    def allocations(self) -> Iterator[JobAllocation]:
        """Yield the allocations with targets of this group, in the order of their starts."""
        pool = self.pool
        return (allocation for allocation in self.ledger if any(rank in pool for rank in allocation.parts))

    def check(self) -> None:
        """Assert that nothing of this group is held twice, for tests and the simulator; linear in its jobs."""
        assert self.leaving <= self.ledger.held(self.leaving), "a target is free and not released"
        assert not self.leaving & self.pool.ranks, "a leaving target is still counted"
        offered = {job.jobid for queue in self.queues.values() for job in queue.jobs.everyone()}
        assert offered.isdisjoint(self.set_aside), "a job is offered that is set aside"
        elsewhere = set(self.set_aside)
        if self.hooks is not None:
            elsewhere |= self.hooks.check(offered, self.ledger)
        self.notices.check(offered, offered | elsewhere)
        self.running.check()
        self.reserved.check()
        for queue in self.queues.values():
            queue.jobs.check()


# ---- verdicts on requests


class FitVerdict:
    """Verdict on whether a shape can fit, as of a generation of the pool.

    `have` is the number of nodes (or slots) that could hold the shape, `had` that number when it last was feasible.
    """

    __slots__ = ("generation", "had", "have", "why")

    def __init__(self) -> None:
        self.generation = -1
        self.have: int | None = None
        self.had: int | None = None
        self.why: str | None = None


# ---- judging


def judge_all(group: Group, now_s: float = 0.0, first: bool = False) -> list[Denied | Annotated]:
    """Judges all waiting jobs again at `now_s`, held jobs too, after targets or properties have changed.

    A job that was set aside and fits is back; one that has become infeasible is set aside, or denied. With the
    `first` targets no job has been judged before.
    """
    if group.admission.is_open_ended:
        return []
    found = _judge_set_aside(group, now_s)
    for queue in group.queues.values():
        if all(group.judge(shape) is None for shape, _ in queue.jobs.shapes()):
            continue
        for job in queue.jobs.everyone():
            why = group.judge(job.shape)
            if why is None:
                continue
            is_new = first and group.refuses(job.t_submit_s, False)
            if (group.is_patient and not is_new) or group.offers_elsewhere(job.jobid):
                found += _put_aside(group, job, queue, why, now_s, lost=not first)
            else:
                group.remove(job.jobid, queue)
                found.append(Denied(job.jobid, _in_each(group, job.jobid, why)))
                for other in group.joint.pop(job.jobid, ()):
                    other.withdraw(job.jobid)
    return found


def add_infeasible(group: Group, job: PendingJob, name: str | None, why: str) -> list[Denied | Annotated]:
    """Set aside a job that arrives infeasible, and was accepted before, or may run in another group."""
    queue = group.queues.get(name or "") or group.queues[""]
    aside = group.set_aside[job.jobid] = SetAside(job, queue, why, group.short_since_s, False, None)
    return _tell(group, aside)


def why_set_aside(group: Group, jobid: int) -> str | None:
    """Return what is missing for a job that is set aside, and since when; None for any other, which may run
    elsewhere.
    """
    if jobid not in group.set_aside or group.offers_elsewhere(jobid):
        return None
    groups: Sequence[Group] = group.joint.get(jobid, (group,))
    reasons = [(each.name, each.set_aside[jobid].reason(each.time_text)) for each in groups if jobid in each.set_aside]
    return in_groups(reasons) if len(groups) > 1 else reasons[0][1]


def set_aside_in(groups: Iterable[Group]) -> dict[int, str]:
    """Why each job waits that was accepted and that no group of its queue can hold any more."""
    found: dict[int, str] = {}
    for group in groups:
        for jobid in group.set_aside:
            why = why_set_aside(group, jobid)
            if why is not None:
                found[jobid] = why
    return found


def _in_each(group: Group, jobid: int, why: str) -> str:
    """Why a job of several groups can run in none; of one group: why it cannot run there."""
    groups = group.joint.get(jobid)
    if groups is None:
        return why
    whys = [(each.name, why if each is group else each.set_aside[jobid].why) for each in groups]
    return in_groups(whys)


def _put_aside(
    group: Group, job: PendingJob, queue: PolicyQueue, why: str, now_s: float, lost: bool
) -> list[Denied | Annotated]:
    queue.jobs.remove(job.jobid)
    queue.removed(job, group.running)
    had = group.had(job.shape)
    aside = group.set_aside[job.jobid] = SetAside(job, queue, why, now_s, lost, had)
    if job.jobid in group.joint:
        group.notices.reasons.pop(job.jobid, None)
    return _tell(group, aside)


def _tell(group: Group, aside: SetAside) -> list[Denied | Annotated]:
    jobid = aside.job.jobid
    why = why_set_aside(group, jobid)
    if why is None:
        return []
    for other in group.joint.get(jobid, ()):
        group.notices.take_over(jobid, other.notices)
    told = group.notices.tell_now(jobid, why)
    return [] if told is None else [told]


def _passed_gates(group: Group, jobid: int) -> bool:
    """Return whether a job that another group offers has passed the gates there and is in a queue."""
    return any(each.queue_of(jobid) is not None for each in group.joint[jobid])


def _judge_set_aside(group: Group, now_s: float) -> list[Denied | Annotated]:
    found: list[Denied | Annotated] = []
    for jobid, aside in list(group.set_aside.items()):
        why = group.judge(aside.job.shape)
        if why is not None:
            if why != aside.why:
                aside.why = why
                found += _tell(group, aside)
            continue
        was_told = not group.offers_elsewhere(jobid)
        if not was_told and not _passed_gates(group, jobid):
            continue  # it joins all lines then
        try:
            if was_told and group.hooks is not None and aside.job.shape.scope is not None:
                group.hooks.gates.ask_soon(aside.job, aside.queue)
            else:
                aside.queue.add(aside.job, group.running, now_s)
        except LimitExceeded:  # the queue is full meanwhile: it is judged again with the next change
            continue
        del group.set_aside[jobid]
        if was_told:
            for other in group.joint.get(jobid, ()):
                group.notices.take_over(jobid, other.notices)
            withdrawn = group.notices.forget(jobid)
            if withdrawn is not None:
                found.append(Annotated(jobid, {"sched": withdrawn}))
    return found


# ---- notices to owners of jobs

NOTICE_EVERY_S: Final = 10.0
"""Minimum interval between notices of a changed reason or estimate: estimates change with every end of a job (seconds).
"""

ESTIMATE_STEP_S: Final = 1.0
"""A smaller change of an estimate is not worth a message."""

SETTLE_S: Final = 1.0
"""Among accounts the first in line changes with every start, and several groups are asked one after the other.

A shorter reservation is not worth two messages.
"""

REASON_CHARS_MAX = 1000
"""Maximum number of characters of a policy's reason: it is shown in a column of tables, and is kept for each waiting
job.
"""


class _Notice:
    """The last notice about a job, when it was sent, and when what was held back is due (wall time, seconds)."""

    __slots__ = ("at_s", "due_s", "estimate_s", "reason")

    def __init__(self) -> None:
        self.at_s = -inf
        self.reason: str | None = None
        self.estimate_s: float | None = None
        self.due_s = inf


class Notices:
    """The notices about the waiting jobs of a group; `reasons` are the latest by job, sent or not.

    `next_s` is when something that was held back is due (wall time, seconds; inf if nothing was). With `enabled` false
    reasons are kept for queries, and nothing is sent. A new estimate is held back for `settle_s`.
    """

    __slots__ = ("_due", "_told", "enabled", "next_s", "reasons", "settle_s")

    def __init__(self, enabled: bool) -> None:
        self.reasons: dict[int, Reason] = {}
        self.enabled = enabled
        self._told: dict[int, _Notice] = {}
        self.next_s = inf
        self.settle_s = 0.0
        self._due: list[tuple[float, int]] = []  # a heap: when what was held back is due, and about which job

    def notify(self, jobid: int, reason: Reason, start_s: float | None, now_s: float) -> Annotated | None:
        """Return a reason and an estimate (None: there is none), as of `now_s`; None if nothing is sent now."""
        if isinstance(reason, str) and len(reason) > REASON_CHARS_MAX:
            reason = cause(reason[:REASON_CHARS_MAX], wait_kind(reason))
        self.reasons[jobid] = reason
        if not self.enabled:
            return None
        estimate_s = None if start_s is None or start_s == inf else start_s
        notice = self._told.get(jobid)
        if notice is None:
            notice = self._told[jobid] = _Notice()
        if estimate_s is not None or notice.estimate_s is None:
            if notice.due_s == inf:
                self._defer(jobid, notice, estimate_s, now_s)
            if now_s < notice.due_s < inf:
                return None
        notice.due_s = inf
        changes: dict[str, Any] = {}
        text = str(reason if isinstance(reason, str) else reason())
        if text != notice.reason:
            notice.reason = changes["reason_pending"] = text
        if not _near(estimate_s, notice.estimate_s):
            notice.estimate_s = changes["t_estimate"] = estimate_s
        if not changes:
            return None
        notice.at_s = now_s
        return Annotated(jobid, {"sched": changes})

    def _defer(self, jobid: int, notice: _Notice, estimate_s: float | None, now_s: float) -> None:
        """Defer a notice for which it is too early."""
        due_s = notice.at_s + NOTICE_EVERY_S
        if notice.estimate_s is None and estimate_s is not None:
            due_s = max(due_s, now_s + self.settle_s)
        if now_s < due_s:
            notice.due_s = due_s
            heappush(self._due, (due_s, jobid))
            self.next_s = self._due[0][0]

    def tell_now(self, jobid: int, reason: str) -> Annotated | None:
        """Send a reason that is no estimate and may not be held back; the estimate is withdrawn."""
        self.reasons.pop(jobid, None)
        if not self.enabled:
            return None
        notice = self._told.setdefault(jobid, _Notice())
        changes: dict[str, Any] = {"reason_pending": str(reason)}
        if notice.estimate_s is not None:
            changes["t_estimate"] = None
        notice.reason, notice.estimate_s, notice.due_s = reason, None, inf
        return Annotated(jobid, {"sched": changes})

    def forget(self, jobid: int) -> dict[str, None] | None:
        """Forget a job that no longer waits.

        Return the annotations to be removed; None if nothing was ever sent.
        """
        self.reasons.pop(jobid, None)
        notice = self._told.pop(jobid, None)
        if notice is None:
            return None
        withdrawn = {} if notice.reason is None else {"reason_pending": None}
        return withdrawn if notice.estimate_s is None else {**withdrawn, "t_estimate": None}

    def take_over(self, jobid: int, other: Notices) -> None:
        """Take over the notices of a job that another group has sent to its owner."""
        notice = None if other is self else other._told.pop(jobid, None)
        if notice is not None:
            self._told[jobid] = notice
            if notice.due_s < inf:
                heappush(self._due, (notice.due_s, jobid))
                self.next_s = self._due[0][0]

    def due(self, now_s: float) -> Iterator[int]:
        """Yield the jobs with a deferred notice that is due; jobs that were removed meanwhile are skipped."""
        while self.next_s <= now_s:
            _, jobid = heappop(self._due)
            self.next_s = self._due[0][0] if self._due else inf
            notice = self._told.get(jobid)
            if notice is not None and notice.due_s < inf:
                yield jobid

    def check(self, offered: set[int], waiting: set[int]) -> None:
        """Assert that only offered jobs have reasons, and only waiting ones notices."""
        assert self.reasons.keys() <= offered, "a reason without a job"
        assert self._told.keys() <= waiting, "a notice about a job that does not wait"


def _near(one_s: float | None, other_s: float | None) -> bool:
    if one_s is None or other_s is None:
        return one_s is other_s
    return abs(one_s - other_s) < ESTIMATE_STEP_S


# ---- jobs that arrive and leave

Enter: TypeAlias = Callable[[Group, PendingJob, str | None, float], list[Effect]]
"""Function that enters a feasible job into a group at a time, where plugins are to be asked first."""


def judge_in(groups: Sequence[Group], shape: Shape) -> str | None:
    """Why the shape can never fit in any of these groups; None if it can in one of them."""
    whys: list[tuple[str, str]] = []
    for group in groups:
        why = group.judge(shape)
        if why is None:
            return None
        whys.append((group.name, why))
    return in_groups(whys) if len(whys) > 1 else whys[0][1]


def arrive(
    groups: tuple[Group, ...], job: PendingJob, name: str | None, asks_to_wait: bool, enter: Enter, now_s: float,
    is_unjudged: bool = False,
) -> list[Effect]:  # fmt: skip
    """Add an arriving job to the queues of these groups; `enter` asks plugins about it, in one of the groups.

    Raise InvalidValue if it is new and none could ever hold it, and LimitExceeded if a queue is full.
    """
    able = [group for group in groups if group.judge(job.shape) is None]
    since_s = inf if is_unjudged else job.t_submit_s
    if not able and all(group.refuses(since_s, asks_to_wait) for group in groups):
        raise InvalidValue(judge_in(groups, job.shape) or "")
    groups[0].joint[job.jobid] = groups
    try:
        if able and job.shape.scope is not None:
            return enter(able[0], job, name, now_s)
        return join(groups[0], job, name, now_s)
    except LimitExceeded:
        del groups[0].joint[job.jobid]
        raise


def withdraw(jobid: int, groups: Iterable[Group]) -> bool:
    """Withdraw the job's request in all these groups; return whether it was in any."""
    found = False
    for group in groups:
        if group.withdraw(jobid):
            found = True
            if group.joint.pop(jobid, None) is None and not group.joint:
                return True
    return found


def join(group: Group, job: PendingJob, name: str | None, now_s: float) -> list[Effect]:
    """Add the job to the queue of its group, or of each of its groups that could ever hold it; the others set it aside.

    Raise LimitExceeded, with the job in none, if a queue is full.
    """
    groups = group.joint.get(job.jobid)
    if groups is None:
        return group.add(job, name, now_s)
    effects: list[Effect] = []
    whys = [(each, each.judge(job.shape)) for each in groups]
    try:
        for each, why in whys:
            if why is None:
                each.set_aside.pop(job.jobid, None)
                effects = each.add(job, name, now_s)
    except LimitExceeded:
        leave_others(None, groups, job.jobid)
        raise
    for each, why in whys:
        if why is not None:
            effects = [*add_infeasible(each, job, name, why)] or effects
    able = [each for each, why in whys if why is None]
    if able and all(each.is_expected for each in able):
        effects = [*effects, *able[0].tell_expected(job.jobid)]
    return effects


def leave_others(group: Group | None, groups: Iterable[Group], jobid: int) -> None:
    """Withdraw the job from all these groups but one, which takes over the notices sent to its owner."""
    for each in groups:
        if each is not group:
            if group is not None:
                group.notices.take_over(jobid, each.notices)
            each.withdraw(jobid)


def leaves_all(group: Group, jobid: int) -> bool:
    """Return whether a job denied by one group's policy, and removed from that group, waits in no other group."""
    if group.offers_elsewhere(jobid):
        return False
    leave_others(group, group.joint.pop(jobid, ()), jobid)
    return True


# ---- reservations, and plans of several groups


def standing(group: Group, jobid: int) -> Reservation | None:
    """Return the reservation of the job in another group, if it has one at a known time."""
    found = _planned(group, jobid)
    return None if found is None else found[2]


def home_of(group: Group, jobid: int) -> Group:
    """Return the group that reports on a pending job: where it has a reservation, else the first in whose queue it is.

    A group whose targets are not known yet comes after all others.
    """
    groups = group.joint.get(jobid)
    if groups is None:
        return group
    offering = [each for each in groups if each.queue_of(jobid) is not None]
    planned = [each for each in offering if is_planned(each, jobid)]
    return [*planned, *[each for each in offering if not each.is_expected], *offering, group][0]


def notify_owner(group: Group, jobid: int, reason: Reason, start_s: float | None, now_s: float) -> Annotated | None:
    """Return the reason and the estimate (wall time, seconds) for the owner, unless another group speaks for the
    job.
    """
    home = home_of(group, jobid)
    if home is not group:
        group.notices.reasons[jobid] = reason
        return None
    for each in group.joint.get(jobid, ()):
        group.notices.take_over(jobid, each.notices)
    return group.notices.notify(jobid, reason, start_s, now_s)


def reserve(
    group: Group, queue: PolicyQueue, made: Reservation, reason: Reason, before: Mapping[int, Reservation], now_s: float
) -> Annotated | None:
    """Record that a group has planned a job of several, which from now on has no reservation in another one.

    Where it is later than `before`, the others are asked again.
    """
    jobid, found = made.jobid, _planned(group, made.jobid)
    if found is not None and made.start_s < inf:
        other, at, _ = found
        del at.planned[jobid]
        other.invalidate_pass()
        found = None
    if found is None:
        queue.planned[jobid] = made
        old = before.get(jobid)
        if old is not None and old.start_s < made.start_s:
            for each in group.joint[jobid]:
                if each is not group:
                    each.invalidate_pass()
    return notify_owner(group, jobid, reason, made.start_s, now_s)


def is_planned(group: Group, jobid: int) -> bool:
    """Return whether the job has a reservation in this group at a known time."""
    return _own_plan(group, jobid) is not None


def _planned(group: Group, jobid: int) -> tuple[Group, PolicyQueue, Reservation] | None:
    for each in group.joint.get(jobid, ()):
        if each is not group:
            found = _own_plan(each, jobid)
            if found is not None:
                return each, *found
    return None


def _own_plan(group: Group, jobid: int) -> tuple[PolicyQueue, Reservation] | None:
    queue = group.queue_of(jobid)
    kept = None if queue is None else queue.planned.get(jobid)
    return None if queue is None or kept is None or kept.start_s == inf else (queue, kept)


class JointPlan:
    """The plan of a group as its policy uses it, where jobs have reservations in other groups: those that would not
    start sooner here get a reservation without a time, which keeps no place.
    """

    __slots__ = ("_group", "_plan", "skips")

    def __init__(self, plan: Plan, group: Group) -> None:
        self._plan = plan
        self._group = group
        self.skips: Skips = plan.skips

    def reserve(self, job: PendingJob) -> Reservation:
        return self._unless_later(job, self._plan.reserve(job))

    def seat(self, job: PendingJob, placement: str) -> Fits | Reservation:
        found = self._plan.seat(job, placement)
        return found if isinstance(found, Fits) else self._unless_later(job, found)

    def _unless_later(self, job: PendingJob, made: Reservation) -> Reservation:
        other = standing(self._group, job.jobid)
        if other is None or made.start_s < other.start_s:
            return made
        self._plan.drop(job.jobid)
        return Reservation(job.jobid, inf, inf, made.cores, None)

    # ---- as it is

    def place(self, job: PendingJob, placement: str) -> Fits | None:
        return self._plan.place(job, placement)

    def placeable(self, jobs: Iterable[PendingJob | None], placement: str) -> Iterator[tuple[PendingJob, Fits] | None]:
        return self._plan.placeable(jobs, placement)

    def has(self, jobid: int) -> bool:
        return self._plan.has(jobid)

    def keep(self, job: PendingJob, old: Reservation) -> bool:
        return self._plan.keep(job, old)

    def claim(self, job: PendingJob, old: Reservation, going: Iterable[int]) -> Reservation | None:
        return self._plan.claim(job, old, going)

    def waive(self, jobid: int) -> None:
        self._plan.waive(jobid)

    def drop(self, jobid: int) -> None:
        self._plan.drop(jobid)

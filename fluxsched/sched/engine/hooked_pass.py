"""A pass under plugins: what becomes of a decision to start a job, from the last look at its targets to the grant.

Law: a plugin that says no holds back this job in this pass, and nothing stays reserved or held for it. The policy is
not told: it sees that the job finds no place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from fluxsched.core.jobid import format_f58
from fluxsched.sched.decisions import PAUSED, Effect, Pending, Preempt, Reserve, Start
from fluxsched.sched.engine.group import Group
from fluxsched.sched.engine.group_hooks import GroupHooks, HeldBack, WaitingPermit, seen_of
from fluxsched.sched.engine.held_jobs import end_of
from fluxsched.sched.engine.policy_queue import PolicyQueue
from fluxsched.sched.engine.scheduling_pass import SchedulingPass
from fluxsched.sched.hooks.api import LATERS_MAX, LOOKS_MAX, START, JobSeen
from fluxsched.sched.hooks.chain import (
    RETRY_S,
    Chain,
    PermitWaits,
    PluginFault,
    Refusal,
    ask,
    bind,
    notify,
    objection,
    permit,
    reserve,
    unreserve,
    wait_text,
    wrong,
)
from fluxsched.sched.ledger import JobAllocation
from fluxsched.sched.pool.placement import Fits, Shape, parts_in
from fluxsched.sched.pool.select_targets import Narrowed, restricted
from fluxsched.sched.sorted_jobs import PendingJob


class HookedPass:
    """Makes decisions real in place of the pass itself; `more` are effects besides that of the last decision."""

    __slots__ = ("_asked", "_group", "_held_back", "_hooks", "_laters", "_pass", "_queue", "more")

    def __init__(self, group: Group, queue: PolicyQueue, plain: SchedulingPass, hooks: GroupHooks) -> None:
        self._group = group
        self._queue = queue
        self._pass = plain
        self._held_back = plain.held_back = HeldBack()
        self._hooks = hooks
        self._laters: dict[int, int] = {}  # by number of the shape
        self._asked: set[int] = set()  # jobs about which post_filter was asked
        self.more: list[Effect] = []

    def begin(self, now_s: float) -> Iterator[object]:
        """Begin a new pass, in which deferred jobs may be tried again, and return its decisions."""
        self._laters.clear()
        self._asked.clear()
        self._held_back.clear()
        return self._pass.begin(now_s)

    def end(self) -> None:
        """End the pass, and examine jobs that were not offered because plugins leave them no targets."""
        shut = self._group.pool.shut
        if shut:
            for job in self._queue.jobs.first_of(shut, LOOKS_MAX):
                told = self._group.notices.notify(job.jobid, self._pass.reason(job), None, self._pass.now_s)
                if told is not None:
                    self.more.append(told)
                self._post_filter(job.jobid)

    def apply(self, decision: object) -> Effect | None:
        """Like that of the pass."""
        match decision:
            case Start():
                job = self._pass.job(decision.jobid)
                if job is None or job.shape.scope is None or not isinstance(decision.fit, Fits):
                    return self._pass.apply(decision)
                if self._held_back.has(job):  # plans do not know
                    return PAUSED
                return self._start(job, decision)
            case Reserve(reservation, _):
                effect = self._pass.apply(decision)
                self._post_filter(reservation.jobid)
                return effect
            case Pending(jobid, _):
                effect = self._pass.apply(decision)
                self._post_filter(jobid)
                return effect
            case Preempt(jobid, _, reason):
                waits = self._hooks.permits.waiting.get(jobid)
                if waits is None:
                    return self._pass.apply(decision)
                waits.due_s, waits.whys = -inf, {**waits.whys, "preempted": reason}
                return PAUSED
            case _:
                return self._pass.apply(decision)

    # ---- a start

    def _start(self, job: PendingJob, start: Start) -> Effect | None:
        hooks, shape, now_s = self._hooks, job.shape, self._pass.now_s
        chain = hooks.chains[shape.scope or ""]
        if chain.filtering:
            self._group.renew(shape)  # a generation may have changed within the pass
            narrowed = self._group.pool.narrowed.get(shape.number)
            if narrowed is not None and not narrowed.allows(start.fit.blocks):
                other = self._pass.find(job, self._held_back.placement)
                if other is None:
                    return self._group.notices.notify(job.jobid, self._pass.reason(job), None, now_s) or PAUSED
                start = start._replace(fit=other)
            if chain.may_delegate and hooks.verdicts.delegates(shape):
                return self._pass.apply(start)
        seen = seen_of(job, now_s)
        if chain.looks:
            found = self._look(chain, seen, job, start.fit)
            if isinstance(found, Refusal):
                return self._hold_back(job, found)
            start = start._replace(fit=found)
        done, refused = reserve(chain, seen, start.fit)
        if refused is None:
            group = self._group
            end_s = end_of(job.duration_s, group.expiration_s, now_s)
            allocation = group.ledger.commit(start, self._queue.jobs, group.pool, end_s, now_s)
            if allocation is None:
                unreserve(chain, done, seen, start.fit, hooks.faults)
                return None
            answer = permit(chain.permits, seen, start.fit) if chain.permits else None
            if isinstance(answer, PermitWaits):
                return self._wait(job, start, allocation, answer, done, seen)
            said = answer if answer is not None else bind(chain, seen, start.fit)
            if not isinstance(said, Refusal):
                selection = self._pass.began(job, start, allocation)
                if chain.permits:
                    hooks.permits.came(chain.scope)
                self.grant_told(chain, seen, start.fit)
                return self._pass.granted(job, start.fit, allocation, selection, said)
            refused = said
            self._group.ledger.release_all(job.jobid, now_s)
            self._queue.jobs.add(job)
        unreserve(chain, done, seen, start.fit, hooks.faults)
        return self._hold_back(job, refused)

    def _wait(
        self,
        job: PendingJob,
        start: Start,
        allocation: JobAllocation,
        waits: PermitWaits,
        done: list[str],
        seen: JobSeen,
    ) -> Effect | None:
        """Add the job, which holds its resources, to those that wait for permits, and notify its owner."""
        selection = self._pass.began(job, start, allocation)
        chain, due_s = self._hooks.chains[job.shape.scope or ""], seen.now_s + waits.timeout_s
        fit = start.fit
        waiting = WaitingPermit(job, self._queue, chain, seen, fit, done, selection, waits.whys, due_s)
        self._hooks.permits.add(waiting)
        return self._group.notices.tell_now(job.jobid, wait_text(waits.whys)) or PAUSED

    def grant_told(self, chain: Chain, seen: JobSeen, fit: Fits) -> None:
        """Call the plugins' `post_bind` for a grant."""
        if chain.post_binds:
            notify(chain.post_binds, seen, fit, self._hooks.faults)
        if chain.frees:
            self._hooks.bound[seen.jobid] = chain, seen, fit
        self._hooks.gates.happened(START)

    def _hold_back(self, job: PendingJob, refused: Refusal) -> Effect:
        """Defer the job for the rest of this pass, and its equals if many jobs of the shape were refused."""
        group, jobid, number, now_s = self._group, job.jobid, job.shape.number, self._pass.now_s
        at_s = refused.at_s
        if refused.is_fault:
            self._hooks.faults.append(f"{refused.why} (asked about job {format_f58(jobid)})")
            at_s = now_s + RETRY_S
        if at_s is not None and at_s > now_s:
            group.wake_s = min(group.wake_s, at_s)
        laters = self._laters[number] = self._laters.get(number, 0) + 1
        self._held_back.add(job, refused.why, laters >= LATERS_MAX)
        return group.notices.tell_refused(jobid, refused.why, now_s) or PAUSED

    # ---- looking at targets

    def _look(self, chain: Chain, seen: JobSeen, job: PendingJob, fit: Fits) -> Fits | Refusal:
        """Return the fit, or the next one to whose targets no plugin objects."""
        good, bad, left = 0, 0, LOOKS_MAX - 1
        while True:
            ranks = [part.rank for part in parts_in(fit.blocks) if not good >> part.rank & 1]
            refused, at = None, -1
            for at in ranks:
                refused = objection(chain.looks, seen, at)
                if refused is not None:
                    break
                good |= 1 << at
            if refused is None:
                return fit
            bad |= 1 << at
            if not left or refused.is_fault:
                return refused
            left -= 1
            other = self._find_without(job, bad)
            if other is None:
                return refused
            fit = other

    def _find_without(self, job: PendingJob, bad: int) -> Fits | None:
        """Return another placement for the job, in the plan of the pass."""
        pool, shape = self._group.pool, job.shape
        before = pool.narrowed.get(shape.number)
        left = (pool.ranks.mask if before is None else before.ranks) & ~bad
        choice = restricted(pool.choice_of(shape), left)
        scores = () if before is None else before.scores
        pool.narrow(shape, Narrowed(choice, choice, left, "", "", left, scores))
        try:
            return self._pass.find(job, self._held_back.placement)
        finally:
            pool.narrow(shape, before)

    # ---- what goes for a job that does not start

    def _post_filter(self, jobid: int) -> None:
        job = self._pass.job(jobid)
        if job is None or job.shape.scope is None or jobid in self._asked or len(self._asked) >= LOOKS_MAX:
            return
        chain = self._hooks.chains[job.shape.scope]
        if not chain.post_filters or self._hooks.verdicts.delegates(job.shape):
            return
        self._asked.add(jobid)
        seen = seen_of(job, self._pass.now_s)
        for name, method in chain.post_filters:
            answer = ask(name, method, seen, self._pass)
            if answer is None:
                continue
            if not isinstance(answer, PluginFault):
                answer = _decisions(name, answer)
            if isinstance(answer, PluginFault):
                self._hooks.faults.append(answer.why)
                continue
            self.more += [effect for effect in map(self._pass.apply, answer) if effect is not None]
            return


def _decisions(name: str, answer: object) -> list[Preempt] | PluginFault:
    """Return the decisions of a plugin's post_filter; a generator is run here."""
    found = ask(name, list, answer) if isinstance(answer, Iterable) else answer
    if isinstance(found, list) and all(isinstance(one, Preempt) for one in found):
        return found
    return wrong(name, "post_filter", found, "None or decisions Preempt")


def hooked_shapes(group: Group) -> dict[int, Shape]:
    """Return the shapes of waiting jobs about which plugins are asked, by number."""
    found = {shape.number: shape for queue in group.queues.values() for shape, _ in queue.jobs.shapes()}
    found |= {aside.job.shape.number: aside.job.shape for aside in group.set_aside.values()}
    return {number: shape for number, shape in found.items() if shape.scope is not None}

"""Passes over the groups that have changed, queue by queue in the order in which policies were named; and the growth of
elastic jobs.

Law: a policy is asked for one decision at a time, and each is made real, or refused with the reason, before the next,
so a pass may be dropped between any two: what is left is decided next time. As the last step elastic jobs get
what is left, in the way of no waiting job: one step of the range of a part at a time, by what no reservation needs
before the job ends. The next is always the job whose account has the least key, where accounts are kept, else the one
that began first. Where a policy of the group decides how jobs grow (`Policy`, `GROWS`), nothing is done.

A pass under plugins: what becomes of a decision to start a job, from the last look at its targets to the grant.

Law: a plugin that says no holds back this job in this pass, and nothing stays reserved or held for it. The policy is
not told: it sees that the job finds no place.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from math import inf
from typing import Final, TypeAlias

from fluxsched.core.jobid import format_f58
from fluxsched.errors import LocalProtocolError
from fluxsched.sched.decisions import (
    PAUSED,
    DecisionRefused,
    Deny,
    Effect,
    Grow,
    Pending,
    Preempt,
    Reserve,
    Shrink,
    Start,
    Wake,
    Withhold,
)
from fluxsched.sched.engine.group import PREEMPT_JOBS, PREEMPT_NONE, Group
from fluxsched.sched.engine.held_jobs import end_of
from fluxsched.sched.engine.policy_queue import GroupHooks, HeldBack, PolicyQueue, WaitingPermit, seen_of
from fluxsched.sched.engine.scheduling_pass import GrowingStep, SchedulingPass, enlarge, hand_out, plan_of_all
from fluxsched.sched.fair.accounts import Account
from fluxsched.sched.fair.order import FairOrder
from fluxsched.sched.hooks import (
    LATERS_MAX,
    LOOKS_MAX,
    RETRY_S,
    START,
    Chain,
    JobSeen,
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
from fluxsched.sched.ledger import NOT_ELASTIC, SHRINK_PAUSE_S, ElasticPart, JobAllocation, refuses_grow, refuses_shrink
from fluxsched.sched.loading import raise_at
from fluxsched.sched.plan.counted_plan import CountedPlan
from fluxsched.sched.plan.pool_plan import PoolPlan
from fluxsched.sched.policy import PAUSE_EVERY
from fluxsched.sched.pool.placement import Fits, Shape, Shapes, joined, parts_in
from fluxsched.sched.pool.select_targets import Narrowed, restricted
from fluxsched.sched.queue import PendingJob


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
        return group.notices.notify(jobid, refused.why, None, now_s) or PAUSED

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


# ---- passes over groups

ROUNDS_MAX = 8
"""Times that the groups of a queue pass over its line at one instant, since jobs of it started or moved in another."""

SOON_S: Final = 1.0
"""After that they do so again."""

REFUSALS_MAX = 1000
"""Decisions refused in one pass: a policy that keeps making invalid decisions would never end its pass."""

REFUSALS_LOGGED_MAX = 10
"""Refused decisions of one pass that are logged for the author of the policy, at most."""


class Passes:
    """The passes of all groups; `counts` are those that are shown to people."""

    def __init__(self, groups: Iterable[Group], counts: dict[str, int], shapes: Shapes) -> None:
        groups = list(groups)
        self._counts = counts
        self._joint = groups[0].joint if groups else {}
        self._telling = [group for group in groups if group.notices.enabled]
        self._of_group: list[tuple[Group, list[_Passes]]] = [
            (group, [(queue, *_passes_of(group, queue, counts, shapes)) for queue in group.queues.values()])
            for group in groups
        ]
        self._last_refusal = ""
        self._elastic = groups[0].ledger.elastic.by_id if groups else {}
        self._growing = {group.name: Growing(group, shapes) for group in groups}

    def run(self, now_s: float) -> Iterator[Effect]:
        """Yield the effects of each decision as it falls, and of the notices that are due at `now_s` (wall time)."""
        return self._run(now_s) if self._is_due(now_s) else iter(())

    def _is_due(self, now_s: float) -> bool:
        """Return whether there may be something to do, since a generator costs more than that, at each instant."""
        if self._joint or self._elastic or self._telling:
            return True
        for group, _ in self._of_group:
            if group.changed or group.wake_s <= now_s or group.generation != group.admission.generation:
                return True
        return False

    def _run(self, now_s: float) -> Iterator[Effect]:
        elastic = self._elastic
        for group, passes in self._in_turn(now_s) if self._joint else self._of_group:
            if group.wake_s <= now_s:
                group.wake_s = inf
                group.invalidate_pass()
            if group.generation != group.admission.generation:
                group.changed = True  # settings of the admission, or what other groups freed
            if not group.changed or not group.grown or (group.expiration_s and group.expiration_s <= now_s):
                continue
            refused, begun = 0, False
            for queue, scheduling_pass, hooked in passes:
                if not queue.jobs.by_id and not (queue.grows and elastic):
                    continue
                if not begun:
                    begun = True
                    self._counts["passes"] += 1
                    group.changed = False
                    group.generation = group.admission.generation
                done = False
                decisions: Iterator[object] | None = None
                try:
                    if elastic:
                        self._growing[group.name].latest = scheduling_pass
                    decisions = scheduling_pass.begin(now_s) if hooked is None else hooked.begin(now_s)
                    for decision in decisions:
                        if hooked is None:
                            effect = scheduling_pass.apply(decision)
                        else:
                            effect = hooked.apply(decision)
                            while hooked.more:
                                yield hooked.more.pop(0)
                        if effect is not None:
                            yield effect
                        elif isinstance(decision, _REFUSABLE):
                            refused += 1
                            yield from self._refused(group, queue, decision, refused, now_s)
                    if hooked is not None:
                        hooked.end()
                        while hooked.more:
                            yield hooked.more.pop(0)
                    done = True
                except Exception as fault:
                    raise_at(decisions, fault)
                    raise
                finally:
                    scheduling_pass.end(done)
                    if not done:
                        group.changed = True
            if elastic:
                group.passed = True
                if not begun:  # none waits: there is just room to grow
                    group.changed = False
        if elastic:
            yield from self._grow(now_s)
        for group in self._telling:
            if group.notices.next_s <= now_s:
                yield from _due_notices(group, now_s)

    def _grow(self, now_s: float) -> Iterator[Effect]:
        """Grow elastic jobs on what the passes have left, where there were some."""
        for group, _ in self._of_group:
            growing = self._growing[group.name]
            if group.passed and growing.is_due:
                yield from growing.run(now_s)
            group.passed, growing.latest = False, None

    def _in_turn(self, now_s: float) -> Iterator[tuple[Group, list[_Passes]]]:
        """Yield the groups, where some have a queue in common; again, as long as one pass changes another group.

        Jobs are preempted for a job of several groups only when none of these has started it as it is, and whole jobs
        only when extras do not suffice in any.
        """
        for group, _ in self._of_group:
            group.preemption_level = PREEMPT_NONE
        yield from self._of_group
        for _ in range(ROUNDS_MAX - 1):
            if not self._to_pass_again():
                self._next_turn()
            again = self._to_pass_again()
            if not again:
                return
            yield from again
        for group, _ in self._of_group:
            if group.changed:
                group.wake_s = min(group.wake_s, now_s + SOON_S)

    def _to_pass_again(self) -> list[tuple[Group, list[_Passes]]]:
        return [each for each in self._of_group if each[0].changed and any(at.jobs.by_id for at, *_ in each[1])]

    def _next_turn(self) -> None:
        """Raise the level of preemption, for the groups that have deferred a preemption."""
        for group, _ in self._of_group:
            group.preemption_level = min(group.preemption_level + 1, PREEMPT_JOBS)
            if group.has_put_off:
                group.has_put_off, group.changed = False, True

    @property
    def next_notice_s(self) -> float:
        """Return when a deferred notice or a requested pass is due (wall time, seconds; else inf)."""
        next_s = inf
        for group, _ in self._of_group:  # written out, since a simulation asks at each instant
            if group.notices.next_s < next_s:
                next_s = group.notices.next_s
            if group.wake_s < next_s:
                next_s = group.wake_s
        return next_s

    def _refused(
        self, group: Group, queue: PolicyQueue, decision: object, refused: int, now_s: float
    ) -> Sequence[DecisionRefused]:
        """Count a refused decision, the `refused`th of this pass, and return what to log of it.

        Raises LocalProtocolError beyond REFUSALS_MAX.
        """
        self._counts["refused"] += 1
        why = why_refused(group, queue.jobs.by_id, decision, now_s)
        if refused > REFUSALS_MAX:
            last = f"; the last: {why}" if why else ""
            raise LocalProtocolError(
                f"policy {queue.policy.name!r}: over {REFUSALS_MAX} decisions refused in one pass; it should not start "
                "or deny jobs that left the queue, nor use a fit for another request or of an earlier state, nor "
                f"preempt jobs that are being preempted or may not be preempted yet{last}"
            )
        if not why or why == self._last_refusal or refused > REFUSALS_LOGGED_MAX:
            return ()
        self._last_refusal = why
        return (DecisionRefused(f"policy {queue.policy.name!r}: {why}"),)


_Passes: TypeAlias = tuple[PolicyQueue, SchedulingPass, HookedPass | None]
"""A queue, its pass, and what makes the pass's decisions real if there are plugins."""


def _passes_of(
    group: Group, queue: PolicyQueue, counts: dict[str, int], shapes: Shapes
) -> tuple[SchedulingPass, HookedPass | None]:
    """Return the pass of a queue, and the hooked pass that performs its decisions if there are plugins."""
    plain = SchedulingPass(group, queue, counts, shapes)
    return plain, None if group.hooks is None else HookedPass(group, queue, plain, group.hooks)


_REFUSABLE: Final = (Start, Deny, Preempt, Shrink, Grow, Wake, Withhold)
"""Decisions that have no effect only if they are refused."""


def _due_notices(group: Group, now_s: float) -> Iterator[Effect]:
    """Send the deferred notices that are due, with their present text; PAUSED where nothing is new."""
    notices = group.notices
    for jobid in notices.due(now_s):
        queue = group.queue_of(jobid)
        job = None if queue is None else queue.jobs.get(jobid)
        if queue is not None and job is not None and job.priority:
            kept = queue.planned.get(jobid)
            start_s = None if kept is None else kept.start_s
            yield notices.notify(jobid, notices.reasons[jobid], start_s, now_s) or PAUSED


# ---- growth of elastic jobs


class Growing:
    """Growth of one group's jobs; `latest` is its last pass over a queue, `added` are targets still to be handed
    out.
    """

    def __init__(self, group: Group, shapes: Shapes) -> None:
        self._group = group
        self._shapes = shapes
        self.latest: SchedulingPass | None = None
        self.added: dict[int, Fits] = {}
        self._by_policy = any(queue.grows for queue in group.queues.values())

    @property
    def is_due(self) -> bool:
        """Return whether elastic jobs can grow here or have grown since the last hand-out."""
        return bool((self._group.ledger.elastic.growable and not self._by_policy) or self.added)

    def run(self, now_s: float) -> Iterator[Effect]:
        """Grow jobs one by one and yield the effects; the next pass continues one that was dropped."""
        yield from self._grow(now_s)
        yield from self._hand_out(now_s)

    def _grow(self, now_s: float) -> Iterator[Effect]:
        group = self._group
        plans = _Plans(group, self.latest, now_s)
        step = GrowingStep(group, self._shapes, now_s, plans.of)
        jobs = [allocation for allocation in group.ledger.elastic.growable.values() if step.may_grow(allocation)]
        if not jobs:
            return
        turns = _ByStart(jobs) if group.ledger.book is None else _ByAccount(jobs, group, now_s)
        steps = 0
        try:
            while (allocation := turns.first()) is not None:
                fit = step.of(allocation)
                if fit is None or enlarge(group, allocation.jobid, fit, now_s) is None:
                    turns.remove(allocation)
                    continue
                if plans.made is not None:
                    plans.made.grew(step.as_job(allocation, fit), fit)
                self.added[allocation.jobid] = _together(self.added.get(allocation.jobid), fit)
                turns.took(allocation, fit)
                steps += 1
                if not steps % PAUSE_EVERY:
                    yield PAUSED
        finally:
            turns.end()

    def _hand_out(self, now_s: float) -> Iterator[Effect]:
        group = self._group
        while self.added:
            jobid, fit = self.added.popitem()
            allocation = group.ledger.elastic.by_id.get(jobid)
            if allocation is not None:
                yield hand_out(group, allocation, fit, now_s)


class _Plans:
    """The plan that steps are found in, made when the first needs one; `made` is None as long as none did."""

    def __init__(self, group: Group, latest: SchedulingPass | None, now_s: float) -> None:
        self.made: CountedPlan | PoolPlan | None = None
        self._group = group
        self._latest = latest
        self._now_s = now_s
        self._reserves: bool | None = None

    def of(self, shape: Shape) -> CountedPlan | PoolPlan | None:
        """Return the plan of the last pass, or one with all reservations where it lacks some, or cannot count this
        shape.
        """
        if self._reserves is None:
            queues = self._group.queues.values()
            self._reserves = any(kept.start_s < inf for queue in queues for kept in queue.planned.values())
        if not self._reserves:
            return None
        if self.made is None:
            self.made = None if self._latest is None else self._latest.plan_made
            if self.made is not None and not self._has_all(self.made):
                self.made = None
        if self.made is None or (isinstance(self.made, CountedPlan) and not self._group.running.need(shape)):
            self.made = plan_of_all(self._group, self._now_s)
        return self.made

    def _has_all(self, plan: CountedPlan | PoolPlan) -> bool:
        """Return whether the plan has all reservations; those of jobs that others are preempted for are made
        separately.
        """
        for queue in self._group.queues.values():
            for jobid, kept in queue.planned.items():
                if kept.start_s < inf and not plan.has(jobid):
                    return False
        return True


class _ByStart:
    """Order of growth by start: the job that began first grows as far as it can, then the next."""

    def __init__(self, jobs: list[JobAllocation]) -> None:
        self._jobs = sorted(jobs, key=_began, reverse=True)

    def first(self) -> JobAllocation | None:
        return self._jobs[-1] if self._jobs else None

    def took(self, allocation: JobAllocation, fit: Fits) -> None:
        """Record that the next step is again that of the first."""

    def remove(self, allocation: JobAllocation) -> None:
        """Remove the first job, which cannot grow any more in this pass."""
        self._jobs.pop()

    def end(self) -> None:
        """End the pass."""


class _ByAccount:
    """Each step is one of the account with the least key, of its job that began first."""

    def __init__(self, jobs: list[JobAllocation], group: Group, now_s: float) -> None:
        book = group.ledger.book
        assert book is not None
        self._now_s = now_s
        self._book = book
        self._order = FairOrder(book.tree)
        self._of_account: dict[Account, _ByStart] = {}
        by_account: dict[Account, list[JobAllocation]] = {}
        for allocation in jobs:
            if allocation.account is not None:
                by_account.setdefault(allocation.account, []).append(allocation)
        for account, mine in by_account.items():
            self._of_account[account] = _ByStart(mine)
            self._offer(account)

    def first(self) -> JobAllocation | None:
        account = self._order.first(self._now_s)
        return None if account is None else self._of_account[account].first()

    def took(self, allocation: JobAllocation, fit: Fits) -> None:
        """Record that the ledger has booked it."""
        if allocation.account is not None:
            self._offer(allocation.account)

    def remove(self, allocation: JobAllocation) -> None:
        """Remove a job that cannot grow any more in this pass."""
        if allocation.account is not None:
            self._of_account[allocation.account].remove(allocation)
            self._offer(allocation.account)

    def end(self) -> None:
        """End the pass."""

    def _offer(self, account: Account) -> None:
        allocation = self._of_account[account].first()
        if allocation is None or allocation.elastic is None:
            self._order.withdraw(account)
            return
        self._order.offer(account, self._step_usage(allocation))

    def _step_usage(self, allocation: JobAllocation) -> float:
        """Return an estimate of the usage of the next step, by the mean usage of the job's present targets."""
        assert allocation.elastic is not None
        part = min(allocation.elastic.parts, key=_beyond_minimum)
        held = len(allocation.elastic.held)
        return self._book.held_usage(allocation) / held * part.step if held else 0.0


def _began(allocation: JobAllocation) -> tuple[float, int]:
    return allocation.started_s, allocation.jobid


def _beyond_minimum(part: ElasticPart) -> int:
    return part.beyond_minimum


def _together(one: Fits | None, other: Fits) -> Fits:
    if one is None:
        return other
    by_part = tuple([mine | theirs for mine, theirs in zip(one.by_part, other.by_part, strict=True)])
    return Fits(one.shape, joined((*one.blocks, *other.blocks)), one.nslots + other.nslots, by_part)


# ---- why a growth or shrink is refused

NOT_RUNNING: Final = "it does not run"


def why_refused(group: Group, waiting: Container[int], decision: object, now_s: float) -> str:
    """Return the job of a refused decision, and why it was refused; empty for other kinds of decisions.

    `waiting` are the jobs of the policy's queue.
    """
    match decision:
        case Grow(jobid):
            return f"job {format_f58(jobid)} cannot grow: {_no_grow(group, decision, now_s)}"
        case Shrink(jobid):
            return f"job {format_f58(jobid)} cannot shrink: {_no_shrink(group, waiting, decision)}"
    return ""


def _no_grow(group: Group, decision: Grow, now_s: float) -> str:
    jobid, fit = decision
    allocation = group.ledger.get(jobid)
    if allocation is None:
        return NOT_RUNNING
    if allocation.elastic is None:
        return NOT_ELASTIC
    if now_s < allocation.elastic.paused_until_s:
        return f"it was shrunk, or a grow of it failed, less than {SHRINK_PAUSE_S:g} s ago"
    refused = refuses_grow(allocation, fit, group.pool) or group.ledger.elastic.rule.refuses_grow(jobid, fit)
    return refused or "not all of the fit is free"


def _no_shrink(group: Group, waiting: Container[int], decision: Shrink) -> str:
    jobid, ranks, _, for_jobid = decision
    allocation = group.ledger.get(jobid)
    if for_jobid and for_jobid not in waiting:
        return f"job {format_f58(for_jobid)}, for which it was to shrink, does not wait"
    if allocation is None:
        return NOT_RUNNING
    if foreign := ranks - group.pool.ranks:
        return f"ranks {foreign} are not in group {group.name}"
    return refuses_shrink(allocation, ranks)

"""Events of jobs that hold something (found running, resized, ended), their accounts, and starts beside outages.

Law: the ledger checks before anything changes; then all that follows it, the groups and the preemptions, is changed.
There is one tree of accounts over all groups and queues, kept once a policy asks for it, so policies that want it
settled differently are refused; what there is, is counted anew whenever targets come, go, or go up or down.

Where a job may start now although outages are ahead, and in words which of them keeps it waiting.

Law: a job that crosses no outage is placed as if there were none. The owner is told of an outage only if the job would
start now without any, and then with the time limit with which it fits before, if there is one.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from enum import Enum
from math import floor, inf, nextafter
from types import MappingProxyType
from typing import Any, Final

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.outages import Outage
from fluxsched.core.quantities import Amounts, format_duration
from fluxsched.core.reasons import Cause, WaitKind, cause
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue, Refused, RemoteProtocolError
from fluxsched.sched.decisions import Effect, Raise, Shrunk
from fluxsched.sched.engine.group import Group
from fluxsched.sched.engine.policy_queue import TimeText
from fluxsched.sched.fair.accounts import FairSettings
from fluxsched.sched.fair.usage import UsageBook, summed
from fluxsched.sched.ledger import SHRINK_PAUSE_S, Elastic, JobAllocation, Ledger
from fluxsched.sched.policy import Policy, Running, needs_accounts
from fluxsched.sched.pool.find_fit import LeftOut, Returned, find_fit, place_now
from fluxsched.sched.pool.placement import (
    BEST_FIT,
    Fits,
    Insufficient,
    Outcome,
    Part,
    Shape,
    blocks_in,
    blocks_of,
    words_of,
)
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.preemption import UNKNOWN, Preemptions
from fluxsched.sched.queue import AdmissionTerms, PendingJob


class HeldJobs:
    """Resources of running jobs of all groups; `waits` says whether a job is pending.

    `accounts` are there if a policy asks for them. `resized` performs changes of size.
    """

    def __init__(
        self,
        groups: Mapping[str, Group],
        ledger: Ledger,
        preemptions: Preemptions,
        waits: Callable[[int], bool],
        accounts: UsageBook | None,
    ) -> None:
        self._groups = groups
        self._ledger = ledger
        self._preemptions = preemptions
        self._waits = waits
        self._accounts = accounts
        self.resized = ResizedJobs(groups, ledger, preemptions, waits, self.freed, self.end_on)

    def hello(
        self,
        jobid: int,
        userid: int,
        R: ResourceSet,  # noqa: N803
        free: Idset,
        jobspec: Jobspec | None,
        now_s: float,
        preempted_s: float | None,
        elastic: Elastic | None,
    ) -> None:
        """Enter a job that runs already."""
        if unknown := free - R.ranks:
            raise RemoteProtocolError(f"hello of job {jobid}: ranks {unknown} are freed, but R does not have them")
        bank, after_s, limit_s = adopted_job(jobspec)
        account = None if self._accounts is None else self._accounts.account_above(bank, userid)
        blocks = blocks_in(R, free)
        started_s = min(R.starttime_s, now_s or R.starttime_s)  # a clock may have been set back since
        self._ledger.adopt(jobid, blocks, R.expiration_s, started_s, account, after_s, limit_s, now_s, elastic)
        allocation = self._ledger.get(jobid)
        if allocation is not None:
            allocation.userid = userid
            if jobspec is not None:
                allocation.queue, allocation.name = jobspec.queue or "", jobspec.job_name or ""
            self._preemptions.found(allocation, preempted_s, now_s)
            if elastic is not None:
                self.resized.found(allocation, "" if jobspec is None else jobspec.queue or "")
            self.resized.has_changed(allocation)

    def adopt(
        self,
        jobid: int,
        rank: int,
        amounts: Amounts,
        terms: AdmissionTerms,
        started_s: float,
        priority: int,
    ) -> list[Effect]:
        """Return an allocation that a resource manager has."""
        blocks = blocks_of([Part(rank, 0, 0, amounts)])
        allocation = self._ledger.adopt_amounts(jobid, blocks, terms, started_s, priority)
        self._preemptions.began(allocation)
        self.resized.has_changed(allocation)
        return []

    def replace(self, old: int, new: int, amounts: Amounts, now_s: float) -> list[Effect]:
        """One job hands over to another on the same node."""
        before = self._ledger.get(old)
        blocks = () if before is None else tuple([block._replace(amounts=amounts) for block in before.blocks[:1]])
        allocation, emptied = self._ledger.replace(old, new, blocks, now_s)
        for group in self._groups.values():
            group.withdraw(new)
        effects = self.freed(old, emptied)
        self._preemptions.began(allocation)
        self.resized.has_changed(allocation)
        return effects

    def freed(self, jobid: int, emptied: list[int]) -> list[Effect]:
        """Update plans after a job has freed resources, the last of them on the targets `emptied`, which no pool
        counts.
        """
        effects: list[Effect] = []
        if self._preemptions.in_use:
            self._preemptions.freed(jobid, self._waits)
        for group in self._groups.values():
            group.freed(jobid)
            if emptied and group.leaving:
                effects += group.release(group.leaving & Idset.of(emptied))
        return effects

    def end_on(self, targets: Idset, now_s: float) -> list[Effect]:
        """Return exceptions for the jobs on these targets, which were removed from their group; one for each job.

        An elastic job is shrunk if it can do without these targets.
        """
        spared = self.resized.shrink_jobs_on(targets, now_s)
        effects: list[Effect] = [effect for effect in spared.values() if effect is not None]
        for allocation in self._ledger.end_on(targets, spared.keys()):
            mine = Idset.of([rank for rank in allocation.parts if rank in targets])
            effects.append(Raise(allocation.jobid, left_group(self._groups.values(), mine), targets=mine))
        return effects

    def starts(self, jobid: int, started_s: float, expiration_s: float) -> None:
        """Start a job that has held its resources for a while."""
        self._ledger.set_start(jobid, started_s, expiration_s)
        self.resized.has_changed(self._ledger.allocations[jobid])

    def preempt_failed(self, jobid: int) -> None:
        """Record that a job was not preempted, though it should have been."""
        allocation = self._ledger.get(jobid)
        if allocation is not None:
            self._preemptions.failed(jobid, self._waits)
            self.resized.has_changed(allocation)

    def set_expiration(self, jobid: int, expiration_s: float) -> None:
        """Record that a running job is to end at another time. Raises Refused if it cannot."""
        allocation, job = self._ledger.get(jobid), f"job {format_f58(jobid)}"
        if allocation is None:
            raise Refused(f"expiration of {job}: it holds no resources in this scheduler", errno.ENOENT)
        for group in self._groups.values():
            end_s = group.expiration_s
            if end_s and expiration_s > end_s and any(rank in group.pool for rank in allocation.parts):
                raise Refused(f"{job} cannot run beyond the end of its resources, {group.time_text(end_s)}")
        self._ledger.set_expiration(jobid, expiration_s)
        self.resized.has_changed(allocation)


def end_of(limit_s: float, last_s: float, now_s: float) -> float:
    """Return the end of a job that starts now (wall time, seconds; 0.0 for none).

    `last_s` is the end of the resources.
    """
    if not limit_s:
        return last_s
    own_s = now_s + limit_s
    if own_s <= now_s:
        own_s = nextafter(now_s, inf)  # later than now, however short the job is
    return min(own_s, last_s) if last_s else own_s


def running_job(allocation: JobAllocation) -> Running:
    """Return the job as policies see it."""
    return Running(
        allocation.jobid,
        allocation.expiration_s,
        MappingProxyType(allocation.parts),
        allocation.account,
        allocation.preemptible_after_s,
        allocation.started_s,
        allocation.userid,
        allocation.queue,
        allocation.name,
    )


# ---- sizes that change


def left_group(groups: Iterable[Group], targets: Idset) -> str:
    """Return the text of the exception on a job whose targets are leaving their groups."""
    names = [group.pool.source.named(mine) for group in groups if (mine := group.leaving & targets)]
    return f"{' and '.join(names)} left the group"


class ResizedJobs:
    """Changes of size of running jobs in all groups; `waits` says whether a job is pending.

    `freed` is called when a job has freed resources, and `lost` when targets were removed from their group.
    """

    def __init__(
        self,
        groups: Mapping[str, Group],
        ledger: Ledger,
        preemptions: Preemptions,
        waits: Callable[[int], bool],
        freed: Callable[[int, list[int]], list[Effect]],
        lost: Callable[[Idset, float], list[Effect]],
    ) -> None:
        self._groups = groups
        self._ledger = ledger
        self._preemptions = preemptions
        self._waits = waits
        self._freed = freed
        self._lost = lost

    def grow_stored(self, jobid: int, now_s: float) -> list[Effect]:
        """Record that the job manager has stored the oldest unanswered grow; targets removed from the group since are
        released.

        The grown targets may be released for pending jobs from now on, so these are examined again.
        """
        allocation = self._ledger.elastic.by_id.get(jobid)
        if allocation is None or allocation.elastic is None:
            return []
        ranks = allocation.elastic.stored()
        lost = EMPTY
        for group in self._groups.values():
            lost |= group.leaving & ranks
            if any(queue.jobs.offered for queue in group.queues.values()) and not ranks.isdisjoint(group.pool.ranks):
                group.invalidate_pass()
        return self._lost(lost, now_s) if lost else []

    def grow_failed(self, jobid: int, ranks: Idset, now_s: float, is_settled: bool) -> list[Effect]:
        """Undo a grow that the job manager has refused; the job pauses as after a shrink.

        A job whose size `is_settled` never changes its size again.
        """
        allocation = self._ledger.elastic.by_id.get(jobid)
        if allocation is None or allocation.elastic is None:
            return []  # it has ended, and was shrunk by all of it
        allocation.elastic.stored_not(ranks)
        allocation.elastic.paused_until_s = now_s + SHRINK_PAUSE_S
        if is_settled:
            self._ledger.elastic.settle(allocation)
        left = ranks & allocation.elastic.unstored
        emptied = self._ledger.ungrow(jobid, left, now_s) if left else []
        return self._freed(jobid, emptied)

    def shrink_failed(self, jobid: int, ranks: Idset, now_s: float, is_settled: bool) -> None:
        """Undo a shrink that the job manager has refused: the job is not shrunk again for a while, or for ever."""
        allocation = self._ledger.elastic.by_id.get(jobid)
        if allocation is not None and allocation.elastic is not None and self._ledger.unshrink(jobid, ranks, now_s):
            allocation.elastic.kept_until_s = now_s + SHRINK_PAUSE_S
            if is_settled:
                self._ledger.elastic.settle(allocation)
            if jobid in self._preemptions.leaving:
                self._preemptions.has_left(jobid, self._waits)
            self._preemptions.resized(allocation)
            self.has_changed(allocation)

    def shrink_jobs_on(self, targets: Idset, now_s: float) -> dict[int, Shrunk | None]:
        """Shrink the jobs on targets that were removed from their group, where these can go on.

        Return these jobs with the effect of each (None: nothing new).
        """
        found: dict[int, Shrunk | None] = {}
        for jobid, allocation in list(self._ledger.elastic.by_id.items()):
            elastic = allocation.elastic
            if elastic is None or elastic.is_settled or allocation.is_ending:
                continue
            mine = (elastic.held | elastic.leaving) & targets
            ranks = elastic.to_leave(mine) if mine else None
            if ranks is None:
                continue
            found[jobid] = None
            if ranks and self._ledger.shrink(jobid, ranks, now_s + self._preemptions.timeout_s, now_s):
                self._preemptions.shrink(allocation, ranks, UNKNOWN)
                elastic.paused_until_s = now_s + SHRINK_PAUSE_S
                self.has_changed(allocation)
                found[jobid] = Shrunk(jobid, ranks, left_group(self._groups.values(), mine))
        return found

    def found(self, allocation: JobAllocation, queue: str) -> None:
        """Record that an elastic job of this queue was found running: it grows by the placement of the queue's present
        policy.
        """
        if allocation.elastic is not None:
            allocation.elastic.placement = self._placement_in(queue)
        if allocation.leaving:
            self._preemptions.shrink(allocation, allocation.leaving, UNKNOWN)

    def _placement_in(self, queue: str) -> str:
        """Return the placement of the queue's own policy, else of the policy for all other queues, which groups
        share.
        """
        queues = [group.queues for group in self._groups.values()]
        for at in queues:
            if queue in at:
                return at[queue].placement
        return queues[0][""].placement

    def has_changed(self, allocation: JobAllocation) -> None:
        """Invalidate plans after the resources or the end of a running job have changed or become known."""
        for group in self._groups.values():
            group.running.began(allocation)
            group.invalidate_pass()


def adopted_elastic(
    shape: Shape,
    R: ResourceSet,  # noqa: N803
    free: Idset,
    going: Idset,
    grown: Idset,
    leave_by_s: float,
    shrunk_s: float | None,
) -> Elastic | None:
    """Return the sizes of a job found running; None if it is not elastic here, or its resources do not match its
    request.

    It is to release the targets `going` by `leave_by_s` (wall time, seconds), and was granted those in `grown` after
    its start; `shrunk_s` is when it was last shrunk.
    """
    request, held = shape.request, R.ranks - free
    if not request.elastic or not held:
        return None
    try:
        by_label = R.parts
    except InvalidValue:
        return None
    by_part = [by_label.get(part.label, EMPTY) & held for part in request.parts] if request.parts else [held]
    if sum(map(len, by_part)) != len(held) or not by_part[0]:
        return None
    elastic = Elastic(shape, by_part, ((by_part[0] - grown) or by_part[0]).min())
    if grown & held:
        elastic.grown.append((leave_by_s, grown & held))
    if going & held:
        elastic.begin_shrink(going & held, leave_by_s)
    if shrunk_s is not None:
        elastic.paused_until_s = shrunk_s + SHRINK_PAUSE_S
    elastic.is_settled = bool(free)
    if any(part.size not in part.nodes for part in elastic.parts):
        return None
    return elastic


# ---- accounts, and the capacity that counts


def book_for(
    policies: Iterable[Policy], settings: FairSettings | None, user_name: Callable[[int], str]
) -> UsageBook | None:
    """Return the accounts that these policies need, None if none does. Raises InvalidValue if they contradict each
    other.
    """
    asking = [policy for policy in policies if needs_accounts(policy)]
    if not asking:
        return None
    return UsageBook(replace(settings or FairSettings(), **_overrides(asking)), user_name)


def _overrides(policies: Iterable[Policy]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    known = {field.name for field in fields(FairSettings)}
    for policy in policies:
        own: Mapping[str, object] = getattr(policy, "fair_overrides", {})
        if unknown := sorted(own.keys() - known):
            names = ", ".join(sorted(known))
            raise InvalidValue(f"policy {policy.name!r}: fair_overrides has {', '.join(unknown)}; there are {names}")
        for name, value in own.items():
            if found.setdefault(name, value) != value:
                raise InvalidValue(
                    f"policies contradict each other: {name} is {_text(found[name])} for one and {_text(value)} for "
                    "another, but a scheduler has one tree of accounts: give them the same"
                )
    return found


def _text(value: object) -> object:
    return value.value if isinstance(value, Enum) else value


def adopted_jobspec(jobspec: Jobspec | Mapping[str, Any] | None) -> Jobspec | None:
    """Return the jobspec of a job found running; None if it has none or an invalid one, which is no reason to refuse
    it.
    """
    try:
        return jobspec if isinstance(jobspec, Jobspec) or jobspec is None else Jobspec.parse(jobspec)
    except InvalidValue:
        return None


def adopted_job(jobspec: Jobspec | None) -> tuple[str | None, float | None, float]:
    """Bank, `preemptible-after` (seconds) and time limit of a job that is found running."""
    if jobspec is None:
        return None, None, 0.0
    return jobspec.sharing.bank, jobspec.sharing.preemptible_after_s, jobspec.duration_s


def count_capacity(book: UsageBook, pools: Iterable[Pool], ledger: Ledger, now_s: float) -> None:
    """Set the capacity of accounts: all usable targets, and resources held on others."""
    usable, found, down = dict[int, int](), [], EMPTY
    for pool in pools:
        ranks = pool.ranks - pool.down
        down |= pool.down
        for at, word in words_of(ranks.mask):
            usable[at] = usable.get(at, 0) | word
        found.append(book.amounts.of_targets(pool.source, ranks))
    instance = ledger.instance_countables
    found.append(book.amounts.of_amounts(instance.totals))
    inside = summed(found, len(book.tree.measure.resources))
    held = [block for allocation in ledger.outside(down) for block in allocation.blocks]
    book.set_capacity(usable, inside, held, now_s)


# ---- starts beside outages

_MINUTE_S: Final = 60
_INSTANT_S: Final = 1e-3


def left_out(group: Group, job: PendingJob, now_s: float) -> LeftOut:
    """Return the targets that outages keep from a job that would start at `now_s`, for a `with` block."""
    pool = group.pool
    outages = pool.outages_for(job.request)
    barred = outages.barred(now_s, end_of(job.duration_s, group.expiration_s, now_s) or inf) if outages else 0
    return LeftOut(pool, job.shape, barred & pool.ranks.mask)


def fit_now(group: Group, job: PendingJob, now_s: float, placement: str) -> Fits | None:
    """Return a placement of the job now that crosses no outage; None if there is none."""
    pool = group.pool
    fit = find_fit(pool, job.shape, placement)
    if fit is None or not pool.is_barred(
        job.request, fit.blocks, now_s, end_of(job.duration_s, group.expiration_s, now_s)
    ):
        return fit
    with left_out(group, job, now_s):
        return find_fit(pool, job.shape, placement)


def outcome_now(group: Group, job: PendingJob, now_s: float, placement: str) -> Outcome:
    """Return the outcome for a job on what is free now, with the reason in words."""
    pool = group.pool
    if not pool.outages_for(job.request):
        return place_now(pool, job.shape, placement)
    with left_out(group, job, now_s):
        outcome = place_now(pool, job.shape, placement)
    if isinstance(outcome, Insufficient):
        with Returned(pool, pool.outages.on(now_s) & pool.down):
            if find_fit(pool, job.shape, placement) is not None:
                if job.request.reservation:
                    return Insufficient(cause(_why_inside(group, job, now_s), WaitKind.RESERVATION))
                return Insufficient(_why(group, job, now_s))
    return outcome


def _why_inside(group: Group, job: PendingJob, now_s: float) -> str:
    """Return why a job that fits now does not fit into the reservation that it names."""
    name, pool, text = job.request.reservation, group.pool, group.time_text
    outage = pool.outages.reservation(name)
    there = None if outage is None else outage.next(now_s)
    if there is None:
        return f"there is no reservation {name!r}, or it is over: cancel the job, or submit it without"
    if there.from_s > now_s:
        return f"reservation {name} begins at {text(there.from_s)}"
    end_s = end_of(job.duration_s, group.expiration_s, now_s) or inf
    if end_s <= there.until_s:
        return f"reservation {name} has {_hosts(group, there) or 'no targets here'}, where not enough is free"
    limit = f"the limit of {format_duration(job.duration_s)}" if job.duration_s else "a job without a limit"
    return f"reservation {name} ends at {text(there.until_s)}; {limit} crosses that"


def _why(group: Group, job: PendingJob, now_s: float) -> Cause:
    """Return which outage a job that fits now would cross, and the longest limit with which it crosses none."""
    end_s = end_of(job.duration_s, group.expiration_s, now_s) or inf
    ahead = group.pool.outages.crossed(now_s, end_s)
    outage = ahead[-1]
    for one in ahead:  # the first one with which it no longer fits, so a shorter limit is of use
        if not _fits_within(group, job, now_s, one.from_s + _INSTANT_S):
            outage = one
            break
    limit = f"the limit of {format_duration(job.duration_s)}" if job.duration_s else "a job without a limit"
    kind = WaitKind.RESERVATION if outage.is_reservation else WaitKind.OUTAGE
    said = (
        f"{kind.value} {outage.name} keeps {_hosts(group, outage)} {_when(outage, group.time_text)}; {limit} crosses it"
    )
    left_s = outage.from_s - now_s
    if left_s < 1.0:
        return cause(said, kind)
    whole_s = floor(left_s / _MINUTE_S) * _MINUTE_S or floor(left_s)
    return cause(f"{said}; it fits with --time-limit {format_duration(float(whole_s))}", kind)


def _fits_within(group: Group, job: PendingJob, start_s: float, end_s: float) -> bool:
    pool = group.pool
    with LeftOut(pool, job.shape, pool.outages.barred(start_s, end_s) & pool.ranks.mask):
        return find_fit(pool, job.shape, BEST_FIT) is not None


def _hosts(group: Group, outage: Outage) -> str:
    return group.pool.source.named(outage.targets & group.pool.ranks)


def _when(outage: Outage, text: TimeText) -> str:
    return f"from {text(outage.from_s)} to {text(outage.until_s)}"

"""The scheduler: events of the resource module and the job manager in, effects out (RFC 27, RFC 28 draft).

Law: every event is applied whole or refused before anything changes. No clock, no I/O. What a peer got wrong raises
RemoteProtocolError and changes nothing; a bad jobspec is denied with its reason. What a policy raises goes up as it is:
everything committed so far stands, and was handed out as effects. Groups share the ledger and the preemptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from sys import intern
from typing import Any, Final

from fluxsched.core.build import BUILD
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import JOBID_MAX
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.outages import Outages
from fluxsched.core.quantities import Amounts
from fluxsched.core.reasons import Why
from fluxsched.core.request import Request
from fluxsched.core.resources import EMPTY_R, GroupChange, ResourceSet
from fluxsched.core.rlite import PartsByRank
from fluxsched.core.text import there_are
from fluxsched.core.topology import Topology
from fluxsched.errors import InvalidValue, RemoteProtocolError
from fluxsched.sched.decisions import Canceled, Denied, Effect, Reservation, grouped
from fluxsched.sched.engine.group import (
    SETTLE_S,
    Group,
    add_infeasible,
    arrive,
    judge_all,
    judge_in,
    set_aside_in,
    withdraw,
)
from fluxsched.sched.engine.held_jobs import (
    HeldJobs,
    adopted_elastic,
    adopted_jobspec,
    book_for,
    count_capacity,
    running_job,
)
from fluxsched.sched.engine.passes import Passes
from fluxsched.sched.engine.plugins import Plugins
from fluxsched.sched.engine.policy_queue import UNSATISFIABLE, WAIT, TimeText, asks_to_wait, utc_text
from fluxsched.sched.engine.why import (
    Forecasts,
    PlannedStart,
    PlannedStarts,
    StartEstimate,
    WaitCause,
    earliest_of,
    estimates_in,
    wait_cause_of,
    why_of,
)
from fluxsched.sched.fair.accounts import Accounts, FairSettings, Measure
from fluxsched.sched.fair.usage import AccountsReport, UsageBook
from fluxsched.sched.hooks import TARGETS, Plugin
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.policy import Policy, Running
from fluxsched.sched.pool.placement import Blocks, Shapes, blocks_in
from fluxsched.sched.pool.pool import Pool, busy
from fluxsched.sched.preemption import PREEMPT_TIMEOUT_S, Preemptions, cores_held
from fluxsched.sched.queue import AdmissionControl, AdmissionTerms, PendingJob

DEFAULT_GROUP = "default"


class GroupParts:
    """The parts, ready for use once `install` was called; `serving` are the groups of each queue that is named."""

    def __init__(
        self,
        policy: Policy,
        names: Sequence[str],
        queues: Mapping[str, str | tuple[str, ...]],
        policies: Mapping[str, Policy],
        unsatisfiable: str,
        notify: bool,
        time_text: TimeText,
        fair: FairSettings | None,
        book: UsageBook | None,
        preempt_timeout_s: float,
    ) -> None:
        if not names:
            raise InvalidValue(f"a scheduler needs at least one group, such as {DEFAULT_GROUP!r}")
        if unsatisfiable not in UNSATISFIABLE:
            raise InvalidValue(f"unsatisfiable {unsatisfiable!r} is not one of {', '.join(UNSATISFIABLE)}")
        named = {queue: (at,) if isinstance(at, str) else at for queue, at in queues.items()}
        if missing := sorted({each for at in named.values() for each in at} - {*names}):
            raise InvalidValue(f"queues of groups {', '.join(missing)}, which this scheduler does not serve")
        pools = {name: Pool() for name in names}
        self.ledger = Ledger(list(pools.values()))
        of_group: dict[str, list[tuple[str, Policy]]] = {name: [] for name in names}
        for queue, own in policies.items():
            for name in named.get(queue, (names[0],)):
                of_group[name].append((queue, own))
        settings = (fair or FairSettings()) if book is None else book.settings
        for pool in pools.values():
            pool.classes.lost.set(Measure(settings.weights).unit_weights)
        rate = settings.rate
        usage_of = cores_held if book is None else book.held_usage
        self.preemptions = Preemptions(self.ledger, preempt_timeout_s, rate, usage_of)
        settled = unsatisfiable, notify, time_text, self.preemptions
        self.groups = {
            name: Group(name, pool, self.ledger, [*of_group[name], ("", policy)], *settled)
            for name, pool in pools.items()
        }
        self.serving = {queue: tuple([self.groups[name] for name in at]) for queue, at in named.items()}
        self.is_joint = any(len(at) > 1 for at in named.values())
        joint: dict[int, tuple[Group, ...]] = {}
        for group in self.groups.values():
            group.joint = joint
            if self.is_joint:
                group.notices.settle_s = SETTLE_S

    def install(self, book: UsageBook | None, admission: AdmissionControl | None) -> None:
        """Book usage in accounts and start jobs by the rules of an admission from now on, where there are any."""
        self.ledger.book = book
        if admission is not None:
            self.ledger.admission = admission
            if admission.preemption_rate is not None:
                self.preemptions.limit(*admission.preemption_rate)
        lines: dict[int, int] | None = {} if self.is_joint else None
        for group in self.groups.values():
            if book is not None:
                group.keep_accounts(book, lines)
            if admission is not None:
                group.keep_admission(admission)


def check_grow(at: Group, groups: Iterable[Group], resources: ResourceSet, online: Idset, offline: Idset) -> None:
    """Raise RemoteProtocolError for targets that are neither online nor offline, or that another group has."""
    if online | offline != resources.ranks or online & offline:
        raise RemoteProtocolError(f"grow of group {at.name!r}: each of ranks {resources.ranks} is online or offline")
    for other in groups:
        if twice := (other.pool.ranks | other.leaving) & resources.ranks if other is not at else EMPTY:
            raise RemoteProtocolError(f"grow of group {at.name!r} names ranks {twice}, which {other.name!r} has")


# ---- the scheduler


class Scheduler:
    """Policies over the groups that they share; `queues` maps a queue's name to its group or groups, else the first.

    `policies` are those of queues that have one of their own (in the order in which they are served); `policy` is for
    all others, and serves them last. With `notify` false owners are sent no notices. `unsatisfiable` says what becomes
    of accepted jobs that no longer fit, ever (see `set_aside`); `time_text` writes times for their owners. If a policy
    asks for accounts, `fair` settles them and `user_name` names users in them.
    A preempted job has `preempt_timeout_s` until it is killed. `admission` has rules beside the resources, by which
    jobs start that have terms of it (`enter`).
    `plugins` are those of queues, by the empty name of all others. Unless it `resizes` jobs, the size of elastic ones
    is settled at their start.
    """

    def __init__(
        self,
        policy: Policy,
        groups: Sequence[str] = (DEFAULT_GROUP,),
        queues: Mapping[str, str | tuple[str, ...]] | None = None,
        policies: Mapping[str, Policy] | None = None,
        notify: bool = True,
        unsatisfiable: str = WAIT,
        time_text: TimeText = utc_text,
        fair: FairSettings | None = None,
        user_name: Callable[[int], str] = str,
        preempt_timeout_s: float = PREEMPT_TIMEOUT_S,
        admission: AdmissionControl | None = None,
        plugins: Mapping[str, Sequence[Plugin]] | None = None,
        resizes: bool = True,
    ) -> None:
        self.policy = policy  # of queues that have none of their own
        book = self.accounts = book_for([policy, *(policies or {}).values()], fair, user_name)
        self.account_tree: Accounts | None = None if book is None else book.tree  # its signals are saved and restored
        parts = GroupParts(
            policy,
            groups,
            queues or {},
            policies or {},
            unsatisfiable,
            notify,
            time_text,
            fair,
            book,
            preempt_timeout_s,
        )
        self._ledger, self._preemptions, self._groups = parts.ledger, parts.preemptions, parts.groups
        self._shapes = Shapes(resizes=resizes)
        self._serving, self._unnamed = parts.serving, (self._groups[groups[0]],)
        parts.install(book, admission)
        self._held = HeldJobs(self._groups, self._ledger, self._preemptions, self._waits, book)
        self._counts = dict.fromkeys(("passes", "granted", "denied", "canceled", "refused", "preempted"), 0)
        self._plugins = Plugins(plugins or {}, list(self._groups.values()), self._ledger, self._held, self._counts)
        self._is_hooked = bool(self._plugins.chains)
        self._waiting = [jobs for group in self._groups.values() for jobs in group.waiting_by_id()]
        self._passes = Passes(self._groups.values(), self._counts, self._shapes)
        self.report = SchedulerReport(policy, self._groups, self._ledger, self._counts, self._plugins.names)
        calls = [getattr(each, "ended", None) for each in (policy, *(policies or {}).values())]
        self._on_end: list[Callable[[Running, float], object]] = [call for call in calls if call is not None]

    # ---- from the resource module

    def grown(
        self, group: str, resources: ResourceSet, online: Idset, offline: Idset, now_s: float = 0.0
    ) -> list[Effect]:
        """Targets join a group at `now_s` (wall time, seconds); jobs that were set aside are judged, at first all."""
        at = self.group(group)
        check_grow(at, self._groups.values(), resources, online, offline)
        first = not at.grown
        at.grow(resources, online, now_s)
        self._count_capacity(now_s)
        return self._judge(at, now_s, first)

    def shrunk(self, group: str, targets: Idset, typed: bool, now_s: float = 0.0) -> list[Effect]:
        """Targets leave a group at `now_s`. Typed: jobs there end; idle ones are released now, others once free."""
        at = self.group(group)
        effects = self._plugins.targets_lost(targets & at.pool.ranks, now_s)
        at.shrink(targets, now_s)
        self._ledger.count_out(targets)
        self._count_capacity(now_s)
        if typed:
            at.leaving |= targets
            effects += self._held.end_on(targets, now_s)
            effects += at.release(targets - self._ledger.held(targets))
        return effects + self._judge(at, now_s)

    def went_online(self, targets: Idset, now_s: float = 0.0) -> list[Effect]:
        """Mark targets as usable again.

        Targets of no group are ignored, since those that are leaving are not reported.
        """
        for group in self._groups.values():
            group.set_availability(targets, up=True)
        self._count_capacity(now_s)
        return []

    def went_offline(self, targets: Idset, now_s: float = 0.0) -> list[Effect]:
        """Mark targets as unusable; jobs there go on, except those that wait for a permit of plugins."""
        effects = self._plugins.targets_lost(targets, now_s)
        for group in self._groups.values():
            group.set_availability(targets, up=False)
        self._count_capacity(now_s)
        return effects

    def updated(
        self,
        group: str,
        expiration_s: float | None = None,
        property_add: Mapping[str, Idset] | None = None,
        property_remove: Mapping[str, Idset] | None = None,
        now_s: float = 0.0,
        topology: Topology | None = None,
        outages: Outages | None = None,
        parts: PartsByRank | None = None,
        spares: Mapping[int, int] | None = None,
    ) -> list[Effect]:
        """Record another end of the resources (wall time, 0.0 for none), other properties, switches, outages, drained
        parts or spares: the queue is judged.
        """
        at, effects = self.group(group), list[Effect]()
        if parts is not None and (changed := parts.changed(at.pool.drained.parts) & at.pool.ranks):
            effects += self._plugins.targets_lost(changed, now_s)
        properties = property_add or {}, property_remove or {}
        is_judged = at.update(expiration_s, *properties, topology, now_s, outages, spares)
        if parts is not None and drain_parts(at, parts):
            self._count_capacity(now_s)
            is_judged = True
        if not is_judged:
            return effects
        self._plugins.happened(TARGETS)
        return effects + self._judge(at, now_s)

    def resized(self, rank: int, amounts: Amounts, now_s: float = 0.0, occupied: Amounts = ()) -> list[Effect]:
        """Record that a target of amounts has others from now on, which may be less than is held there; some are
        `occupied`.
        """
        for group in [group for group in self._groups.values() if rank in group.pool]:
            group.resize(rank, amounts, occupied, now_s)
        return []

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Set the weights of kinds in the free share of targets of amounts; all pending jobs are examined again."""
        for group in self._groups.values():
            group.pool.weights = weights
            group.invalidate_pass()

    # ---- from the job manager

    def hello(
        self, jobid: int, priority: int, userid: int, t_submit_s: float, R: ResourceSet,  # noqa: N803
        free: Idset = EMPTY, jobspec: Jobspec | Mapping[str, Any] | None = None, now_s: float = 0.0,
        preempted_s: float | None = None, going: Idset = EMPTY, grown: Idset = EMPTY,
        shrunk_s: float | None = None,
    ) -> list[Effect]:  # fmt: skip
        """Enter a job that runs already, with its R and the ranks that it has freed (RFC 27), and those it is to
        release.

        It began at the start time of its R, or now; its jobspec gives its account, when it may be preempted, and
        whether it is elastic.
        """
        parsed, elastic = adopted_jobspec(jobspec), None
        if parsed is not None and parsed.request.elastic:
            shape = self._plugins.shape_of(self._shapes, parsed, userid)
            elastic = adopted_elastic(shape, R, free, going, grown, now_s + self._preemptions.timeout_s, shrunk_s)
        self._held.hello(jobid, userid, R, free, parsed, now_s, preempted_s, elastic)
        self._plugins.adopt(jobid, priority, userid, t_submit_s, jobspec, now_s)
        return []

    def alloc(
        self, jobid: int, priority: int, userid: int, t_submit_s: float, jobspec: Jobspec | Mapping[str, Any],
        now_s: float = 0.0, is_unjudged: bool = False,
    ) -> list[Effect]:  # fmt: skip
        """Enter a request for resources; a job that is new, or `is_unjudged`, is denied at once if it can never have
        them (see `set_aside`).
        """
        if jobid in self._ledger.allocations or self._waits(jobid):
            raise RemoteProtocolError(f"alloc of job {jobid}: it is already waiting or running")
        try:
            parsed = jobspec if isinstance(jobspec, Jobspec) else Jobspec.parse(jobspec)
            name, sharing, groups = parsed.queue, parsed.sharing, self._groups_of(parsed.queue)
            group = groups[0]
            if self._is_hooked:
                shape = self._plugins.shape_of(self._shapes, parsed, userid, now_s)
            else:
                shape = self._shapes.of(parsed.request)
            why = group.judge(shape)
            account = None if self.accounts is None else self.accounts.account_of(sharing.bank, userid)
            limit_s, after_s = parsed.duration_s, sharing.preemptible_after_s
            title = intern(parsed.job_name or "")  # one name of many jobs is kept once
            own = name or ""
            values = jobid, priority, userid, t_submit_s, shape, limit_s, account, after_s, None, (), own, title
            job = _waiting(PendingJob, values)
            if groups[-1] is not group:
                return arrive(groups, job, name, asks_to_wait(parsed), self._plugins.enter, now_s, is_unjudged)
            if why is None:
                if shape.scope is None:
                    return group.add(job, name, now_s)
                return self._plugins.enter(group, job, name, now_s)
            if not group.refuses(inf if is_unjudged else t_submit_s, asks_to_wait(parsed)):
                return list(add_infeasible(group, job, parsed.queue, why))
        except InvalidValue as fault:
            why = str(fault)
        self._counts["denied"] += 1
        return [Denied(jobid, why)]

    def enter(
        self, jobid: int, priority: int, t_s: float, request: Request, terms: AdmissionTerms, now_s: float = 0.0
    ) -> list[Effect]:
        """Enter a request for amounts on one node, made at `t_s` (wall time, seconds). It is never denied."""
        if jobid in self._ledger.allocations or self._waits(jobid):
            raise RemoteProtocolError(f"request {jobid}: it is already waiting or running")
        shape = self._plugins.shape_of_request(self._shapes, request, now_s)
        values = jobid, priority, 0, t_s, shape, 0.0, None, 0.0, terms, (), "", ""
        job = _waiting(PendingJob, values)
        group = self._unnamed[0]
        return group.add(job, None, now_s) if shape.scope is None else self._plugins.enter(group, job, None, now_s)

    def adopt(
        self, jobid: int, rank: int, amounts: Amounts, terms: AdmissionTerms, started_s: float, now_s: float = 0.0,
        priority: int = 1,
    ) -> list[Effect]:  # fmt: skip
        """Enter an allocation of a resource manager as it is, beyond bounds and the capacity of the node if need be."""
        effects = self._held.adopt(jobid, rank, amounts, terms, started_s, priority)
        if self._is_hooked:
            self._plugins.adopt_amounts(jobid, priority, started_s, now_s)
        return effects

    def replace(self, old: int, new: int, amounts: Amounts, now_s: float = 0.0) -> list[Effect]:
        """Hand over these amounts on a node from one job to another; the rest of the first job's is freed.

        If the other one is pending, its request is removed. Raise RemoteProtocolError, without a change, if it asks for
        more.
        """
        effects = self._held.replace(old, new, amounts, now_s)
        if self._is_hooked:
            self._plugins.freed(old, now_s)
            self._plugins.adopt_amounts(new, self._ledger.allocations[new].priority, now_s, now_s)
        return effects

    def cancel(self, jobid: int) -> list[Effect]:
        """Withdraw a request; without effect if it was answered before."""
        if effects := self._plugins.cancel(jobid):
            return effects
        if not withdraw(jobid, self._groups.values()):
            return []
        self._counts["canceled"] += 1
        self._preemptions.looked_after((jobid,))
        return [Canceled(jobid)]

    def prioritize(self, jobs: Iterable[tuple[int, int]]) -> list[Effect]:
        """Return new priorities; jobs that no longer wait are ignored."""
        for jobid, priority in jobs:
            for group in self._groups.values():
                group.prioritize(jobid, priority)
        return []

    def free(self, jobid: int, R: ResourceSet, final: bool, now_s: float = 0.0) -> list[Effect]:  # noqa: N803
        """Free all of R, which is a part of the job's resources; `final` when it is the last part."""
        return self.free_blocks(jobid, blocks_in(R), final, now_s)

    def free_blocks(self, jobid: int, blocks: Blocks, final: bool, now_s: float = 0.0) -> list[Effect]:
        """Free these blocks, like an R that has them."""
        self._tell_end(jobid, now_s, is_over=final)
        emptied = self._ledger.release(jobid, blocks, final, now_s)
        if self._is_hooked:
            self._plugins.freed(jobid, now_s)
        return self._held.freed(jobid, emptied)

    def free_all(self, jobid: int, now_s: float = 0.0) -> list[Effect]:
        """Free all resources of a job: a final `free` of its whole R, for callers without an R."""
        self._tell_end(jobid, now_s)
        emptied = self._ledger.release_all(jobid, now_s)
        if self._is_hooked:
            self._plugins.freed(jobid, now_s)
        return self._held.freed(jobid, emptied)

    def _tell_end(self, jobid: int, now_s: float, *, is_over: bool = True) -> None:
        """Call `ended` of policies that have it, before the job gives back the last that it holds."""
        allocation = self._ledger.get(jobid) if is_over and self._on_end else None
        if allocation is not None:
            job = running_job(allocation)
            for call in self._on_end:
                call(job, now_s)

    def accounts_report(self, now_s: float, start: int = 0) -> AccountsReport | None:
        """Return the accounts, from `start` on; None unless a policy asks for accounts."""
        return None if self.accounts is None else self.accounts.report(self._preemptions.of_account, now_s, start)

    def preempt_failed(self, jobid: int) -> None:
        """Record that the job manager has refused the exception that was to preempt a job."""
        self._held.preempt_failed(jobid)

    def grow_stored(self, jobid: int, now_s: float = 0.0) -> list[Effect]:
        """Record that the job manager has stored the oldest unanswered grow of the job: it holds these targets, too."""
        return self._held.resized.grow_stored(jobid, now_s)

    def grow_failed(self, jobid: int, ranks: Idset, now_s: float = 0.0, is_settled: bool = False) -> list[Effect]:
        """Undo a grow that the job manager has refused, for ever if the size `is_settled`: the targets are free
        again.
        """
        return self._held.resized.grow_failed(jobid, ranks, now_s, is_settled)

    def shrink_failed(self, jobid: int, ranks: Idset, now_s: float = 0.0, is_settled: bool = False) -> None:
        """Undo a shrink that the job manager has refused, for ever if the size `is_settled`: the job keeps the
        targets.
        """
        self._held.resized.shrink_failed(jobid, ranks, now_s, is_settled)

    def expiration(self, jobid: int, expiration_s: float) -> list[Effect]:
        """Record that a running job is to end at another time (wall time, seconds; 0.0 for none). Raises Refused if it
        cannot.
        """
        self._held.set_expiration(jobid, expiration_s)
        return []

    # ---- answers

    def feasible(self, jobspec: Jobspec | Mapping[str, Any], userid: int | None = None) -> str | None:
        """Why a user's job could never run, whatever is up or busy; None if it could, or before the first grow."""
        try:
            parsed = jobspec if isinstance(jobspec, Jobspec) else Jobspec.parse(jobspec)
            return judge_in(self._groups_of(parsed.queue), self._plugins.shape_of(self._shapes, parsed, userid))
        except InvalidValue as fault:
            return str(fault)

    def why(self, jobid: int, now_s: float, forecasts: Forecasts | None = None) -> Why:
        """Return why a job waits, for its owner. Raise Refused for an unknown job."""
        return self._plugins.why(jobid) or why_of(jobid, self._groups.values(), self._ledger, now_s, forecasts)

    def when(self, jobspecs: Sequence[Jobspec], userid: int, priority: int, now_s: float) -> list[StartEstimate]:
        """Return when jobs of a user would start that were not submitted; nothing changes. Raise InvalidValue."""
        found: dict[int, StartEstimate] = {}
        names = dict.fromkeys([jobspec.queue for jobspec in jobspecs])
        plans = sum([len(self._groups_of(name)) for name in names])
        for name in names:
            at = [place for place, jobspec in enumerate(jobspecs) if jobspec.queue == name]
            jobs = [self._as_pending(jobspecs[place], userid, priority, now_s) for place in at]
            by_group = [
                estimates_in(group, group.queues.get(name or "") or group.queues[""], self._ledger, jobs, now_s, plans)
                for group in self._groups_of(name)
            ]
            found.update(zip(at, earliest_of(by_group), strict=True))
        return [found[place] for place in range(len(jobspecs))]

    def _as_pending(self, jobspec: Jobspec, userid: int, priority: int, now_s: float) -> PendingJob:
        """Return a job that was not submitted as if it came now."""
        shape, sharing = self._plugins.shape_of(self._shapes, jobspec, userid), jobspec.sharing
        account = None if self.accounts is None else self.accounts.known_account(sharing.bank, userid)
        after_s, queue = sharing.preemptible_after_s, jobspec.queue or ""
        return PendingJob(
            JOBID_MAX, priority, userid, now_s, shape, jobspec.duration_s, account, after_s, None, (), queue
        )

    def permit(self, jobid: int, plugin: str, allow: bool, reason: str, now_s: float) -> list[Effect]:
        """Answers in a plugin's place for a job that waits for its permit. Raises Refused for any other."""
        return self._plugins.answer(jobid, plugin, allow, reason, now_s)

    def check(self) -> None:
        """Assert that nothing is held twice, for tests and the simulator."""
        self._ledger.check()
        for group in self._groups.values():
            group.check()

    # ---- the pass

    def schedule(self, now_s: float) -> Iterator[Effect]:
        """Run the passes and the notices that are due at `now_s` (wall time), effect by effect.

        May be taken in slices, or dropped between two effects: the rest is decided and sent next time.
        """
        if self.accounts is not None:
            self.accounts.settle()
        return self._plugins.run(self._passes, now_s) if self._is_hooked else self._passes.run(now_s)

    @property
    def next_notice_s(self) -> float:
        """Return when to call `schedule` for a notice even if nothing happens (wall time, seconds; else inf)."""
        next_s = self._passes.next_notice_s
        return min(next_s, self._plugins.next_s) if self._is_hooked else next_s

    # ---- within

    def _count_capacity(self, now_s: float) -> None:
        self._plugins.at(now_s)
        self._plugins.happened(TARGETS)
        if self.accounts is not None:
            count_capacity(self.accounts, [group.pool for group in self._groups.values()], self._ledger, now_s)

    def group(self, name: str) -> Group:
        """Return a group, to be read only but for `invalidate_pass`. Raise RemoteProtocolError if it was not
        acquired.
        """
        group = self._groups.get(name)
        if group is None:
            raise RemoteProtocolError(f"group {name!r} was not acquired: {there_are(list(self._groups))}")
        return group

    def _waits(self, jobid: int) -> bool:
        for jobs in self._waiting:  # noqa: SIM110 - a generator costs more, with each job
            if jobid in jobs:
                return True
        return False

    def _groups_of(self, queue: str | None) -> tuple[Group, ...]:
        """Return the groups that serve the queue; the job manager sends only jobs of queues that we serve."""
        return self._serving.get(queue, self._unnamed) if queue else self._unnamed

    def _judge(self, group: Group, now_s: float, first: bool = False) -> list[Effect]:
        effects = judge_all(group, now_s, first)
        self._counts["denied"] += sum(isinstance(effect, Denied) for effect in effects)
        return list(effects)


_waiting: Final = tuple.__new__  # what the constructor of a NamedTuple calls: half its cost, once a job


# ---- statistics and reports


def group_stats(group: Group) -> dict[str, Any]:
    """Numbers of one group; `waiting` counts those that are set aside, too: they are `unsatisfiable`.

    A job of several groups counts in each that could hold it.
    """
    set_aside = len(group.set_aside)
    if group.joint:
        set_aside = sum([not group.offers_elsewhere(jobid) for jobid in group.set_aside])
    return {
        "targets": len(group.pool.ranks), "down": len(group.pool.down), "leaving": len(group.leaving),
        "waiting": group.waiting - len(group.set_aside) + set_aside,
        **({"unsatisfiable": set_aside} if set_aside else {}),
        "planned": sum(len(queue.planned) for queue in group.queues.values()),
        "queues": {
            queue.name: {"policy": queue.policy.name, "waiting": len(queue.jobs), "planned": len(queue.planned)}
            for queue in group.queues.values() if queue.name
        },
    }  # fmt: skip


class SchedulerReport:
    """Status of groups and jobs, for people and tools; nothing here changes anything."""

    def __init__(
        self,
        policy: Policy,
        groups: Mapping[str, Group],
        ledger: Ledger,
        counts: Mapping[str, int],
        plugins: Mapping[str, list[str]],
    ) -> None:
        self.plugins = plugins
        self._policy = policy
        self._groups = groups
        self._ledger = ledger
        self._counts = counts
        self._starts = PlannedStarts(ledger)

    def stats(self) -> dict[str, Any]:
        """Return the statistics of all groups, of running jobs, and the counts."""
        running = {"running": len(self._ledger), "foreign": self._ledger.foreign()}
        by_group = {group.name: group_stats(group) for group in self._groups.values()}
        plugins = {"plugins": self.plugins} if self.plugins else {}
        return {"policy": self._policy.name, **plugins, "build": BUILD, **self._counts, **running, "groups": by_group}

    def planned(self) -> Iterator[Reservation]:
        """Yield the reservations that stand, queue by queue; within a pass those that it has made so far, in that
        order.
        """
        for group in self._groups.values():
            for queue in group.queues.values():
                yield from queue.planned.values()

    def overtaken(self, jobid: int) -> int | None:
        """Return the first pending job with a reservation that is in the queue of a running job; None if there is
        none.
        """
        allocation = self._ledger.get(jobid)
        if allocation is not None:
            for queue in [queue for group in self._groups.values() for queue in group.queues.values()]:
                for planned in queue.planned:
                    job = queue.jobs.get(planned)
                    if job is not None and job.queue == allocation.queue:
                        return planned
        return None

    def plan(self, group: Group, now_s: float) -> list[PlannedStart]:
        """Return when and where jobs of a group will start, in order of time."""
        return self._starts.of(group, now_s)

    def resource_status(self) -> tuple[ResourceSet, ResourceSet, ResourceSet]:
        """Return all counted resources, those that are down, and those allocated; linear in the groups."""
        total = down = allocated = EMPTY_R
        for group in self._groups.values():
            pool = group.pool
            counted = pool.resources
            whole = pool.drained.whole(counted)
            total |= whole
            down |= counted.restrict(pool.down) | (whole - counted)
            allocated |= ResourceSet.build(grouped(busy(pool)), pool.source, 0.0, 0.0, None)
        return total, down, allocated

    def set_aside(self) -> dict[int, str]:
        """Return why each job waits that was accepted and that its group cannot hold any more."""
        return set_aside_in(self._groups.values())

    def why_waiting(self, jobid: int) -> WaitCause | None:
        """Return what a pending job lacks; None if it lacks nothing but its turn, or is not pending."""
        return wait_cause_of(self._groups.values(), jobid)


# ---- changes of a group


def drain_parts(group: Group, parts: PartsByRank) -> bool:
    """Count these parts, all that are drained, no more in a group, but for the jobs that hold them; return whether that
    is a change of its targets.
    """
    pool = group.pool
    mine = parts.changed(pool.drained.parts) & pool.ranks
    group.admission.change_capacity(pool, mine, -1)
    changed = pool.drain(parts)
    group.admission.change_capacity(pool, mine, 1)
    if not changed:
        return False
    group.ledger.claim_again(changed, pool)
    group.running.changed(changed)
    group.invalidate_pass()
    return True


def apply(scheduler: Scheduler, group: str, change: GroupChange, typed: bool, now_s: float) -> list[Effect]:
    """Apply the parts of a change at `now_s` (wall time, seconds), in their order; return the effects."""
    effects: list[Effect] = []
    joined, parts, spares = change.joined, change.parts, change.spares
    if spares is not None and change.grow is not None:  # which has all judged
        scheduler.group(group).pool.stand_in(spares)
        spares = None
    if parts is not None and change.grow is not None:  # before any of these targets can be used
        effects += scheduler.updated(group, now_s=now_s, parts=parts)
        parts = None
    if change.incomplete:
        scheduler.group(group).is_expected = True
    elif change.grow is not None:
        online, offline = change.online & joined, change.offline & joined
        effects += scheduler.grown(group, change.grow, online, offline, now_s)
    if change.shrink:
        effects += scheduler.shrunk(group, change.shrink, typed, now_s)
    if offline := change.offline - joined:
        effects += scheduler.went_offline(offline, now_s)
    if online := change.online - joined:
        effects += scheduler.went_online(online, now_s)
    if replace(change, parts=parts, spares=spares).is_update:
        properties = change.property_add, change.property_remove
        effects += scheduler.updated(
            group, change.expiration_s, *properties, now_s, change.topology, change.outages, parts, spares
        )
    return effects

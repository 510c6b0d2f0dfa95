"""One acquired group as the scheduler sees it: its pool, its queues of waiting jobs, and verdicts on their requests.

Law: nothing is judged before the first grow (RFC 28 draft); from then on every job of a queue is feasible, and the
others are set aside or have been denied. A verdict is worked out once a shape and generation, since it does not
depend on what is up or busy (law 10).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf

from fluxsched.core.amounts import Amounts
from fluxsched.core.group_change import Properties
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.request import Request
from fluxsched.core.resources import ResourceSet
from fluxsched.core.topology import Topology
from fluxsched.errors import RemoteProtocolError
from fluxsched.sched.effects import Annotated, Effect, Release
from fluxsched.sched.engine.hooked.group_hooks import GroupHooks
from fluxsched.sched.engine.waiting.notices import SETTLE_S, Notices
from fluxsched.sched.engine.waiting.policy_queue import PolicyQueue
from fluxsched.sched.engine.waiting.set_aside import WAIT, SetAside, TimeText, utc_text
from fluxsched.sched.engine.waiting.verdict import FitVerdict
from fluxsched.sched.ledger import Holding, Ledger
from fluxsched.sched.plan.reserved_nodes import ReservedNodes
from fluxsched.sched.plan.running import RunningJobs
from fluxsched.sched.policy import Policy, needs_accounts
from fluxsched.sched.pool.place import find_fit, shortage
from fluxsched.sched.pool.placement import BINPACKING
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.preemption.preemptions import Preemptions
from fluxsched.sched.queue.account_lines import AccountLines
from fluxsched.sched.queue.asks import Asks
from fluxsched.sched.queue.pending import Waiting
from fluxsched.sched.quotas.tree import QueueTree
from fluxsched.sched.shape import Shape
from fluxsched.sched.usage.book import UsageBook

ENDLESS_WARNING = "has no time limit: nothing can be planned behind it, and it starts early only where no job waits"

NONE_GO, EXTRAS_GO, WHOLE_JOBS_GO = range(3)
"""What may go, in each turn of a pass over several groups, for a job that has several."""

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
    `turn` more may go for these; `has_put_off` says whether something was left for the next one.
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
        self.quotas: QueueTree | None = None
        self.generation = -1  # of the tree's order, in the last pass
        self.reserved = ReservedNodes(pool, self.invalidate_pass)
        self.is_patient = unsatisfiable == WAIT
        self.time_text = time_text
        self._verdicts: dict[int, FitVerdict] = {}  # by number of the shape
        self.joint: dict[int, tuple[Group, ...]] = {}
        self.turn = WHOLE_JOBS_GO
        self.has_put_off = False
        self.hooks: GroupHooks | None = None

    def invalidate_pass(self) -> None:
        """Something has happened after which every waiting job is to be examined."""
        self.changed = True
        self.events += 1
        if self.quotas is not None:
            self.quotas.order.generation += 1
        for queue in self.queues.values():
            queue.arrivals = None

    def is_put_off(self, jobid: int, whole: bool) -> bool:
        """Whether preempting (`whole` jobs) for the job is for a later turn: another of its groups may have it at less.
        """
        if self.turn >= (WHOLE_JOBS_GO if whole else EXTRAS_GO) or jobid not in self.joint:
            return False
        self.has_put_off = True
        return True

    # ---- targets

    def grow(self, resources: ResourceSet, online: Idset, now_s: float = 0.0) -> None:
        """Counts targets that join at `now_s`. Raises RemoteProtocolError if some are leaving and were not released."""
        if early := resources.ranks & self.leaving:
            raise RemoteProtocolError(f"grow of group {self.name!r} names ranks {early}, which are not released yet")
        self.pool.add(resources, online)
        self._count_capacity(resources.ranks, 1)
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
        self.reserved.lost(targets)
        self._count_capacity(targets, -1)
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
        """Targets of this group may be used again, or may not; what is planned moves."""
        touched = targets & self.pool.down if up else (targets & self.pool.ranks) - self.pool.down
        if touched:
            (self.pool.set_up if up else self.pool.set_down)(touched)
            if not up and self.reserved.by_job:
                self.reserved.lost(touched)
            self.running.changed(touched)
            self.invalidate_pass()

    def resize(self, rank: int, amounts: Amounts, occupied: Amounts, now_s: float) -> None:
        """A target of amounts has others from now on."""
        self._remember(now_s)
        self._count_capacity(Idset.one(rank), -1)
        self.pool.resize(rank, amounts, occupied)
        self._count_capacity(Idset.one(rank), 1)
        self.running.changed(Idset.one(rank))
        self.invalidate_pass()

    def _count_capacity(self, targets: Idset, sign: int) -> None:
        """What these targets have, down or not, is a part of the root's maximum from now on, or (sign -1) no longer."""
        by_rank = self.pool.amount_targets.by_rank
        if self.quotas is not None:
            for rank in targets:
                if rank in by_rank:
                    self.quotas.change_capacity(by_rank[rank].offered(), sign)

    def update(
        self, expiration_s: float | None, add: Properties, remove: Properties, topology: Topology | None, now_s: float
    ) -> bool:
        """Takes over what changed at `now_s` of R; whether other requests may fit now, or none of some."""
        if expiration_s is not None:
            self.expiration_s = expiration_s
            self.invalidate_pass()
        if not add and not remove and topology is None:
            return False
        self._remember(now_s)
        self.pool.describe(add, remove)
        if topology is not None:
            self.pool.connect(topology)
        self.running.changed(EMPTY)
        self.invalidate_pass()
        return True

    # ---- jobs that wait

    def queue_of(self, jobid: int) -> PolicyQueue | None:
        """Where the job waits."""
        for queue in self.queues.values():
            if jobid in queue.jobs.by_id:
                return queue
        return None

    def keep_accounts(self, book: UsageBook, lines: dict[int, int] | None) -> None:
        """From now on the usage of jobs is booked; called before there are any. `lines`: see `PendingJobs`."""
        for queue in self.queues.values():
            queue.jobs.book, queue.jobs.counted = book, lines
            if needs_accounts(queue.policy):
                queue.jobs.lines = AccountLines(book, queue.jobs.by_id)
                self.notices.settle_s = SETTLE_S

    def keep_quotas(self, tree: QueueTree) -> None:
        """Jobs ask for amounts in queues of this tree, and none is judged: nodes may come. Called before there are any.
        """
        self.quotas = tree
        for queue in self.queues.values():
            queue.jobs.asks = Asks(tree, self._has_room)

    def _has_room(self, amounts: Amounts) -> bool:
        """Whether this much fits on some target now."""
        shape = Shape(Request.of_amounts(amounts))
        fits = find_fit(self.pool, shape, BINPACKING) is not None
        self.pool.prepared.pop(shape.number, None)  # it does not come again
        return fits

    def waiting_by_id(self) -> list[Mapping[int, object]]:
        """All jobs that wait here, now and later: tables that change as they come and go."""
        found: list[Mapping[int, object]] = [self.set_aside, *[queue.jobs.by_id for queue in self.queues.values()]]
        return found if self.hooks is None else [*found, self.hooks.gates.gated]

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        gated = 0 if self.hooks is None else len(self.hooks.gates.gated)
        return sum([len(queue.jobs) for queue in self.queues.values()]) + len(self.set_aside) + gated

    def add(self, job: Waiting, name: str | None, now_s: float = 0.0) -> list[Effect]:
        """A job joins, at `now_s`, the queue of this name, if it has a policy of its own, else the one for all others.

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
        """What is not known yet, in words."""
        return f"waits for the targets of group {self.name!r}, which are not known yet: its cluster has not answered"

    def _warn(self, job: Waiting, queue: PolicyQueue) -> list[Effect]:
        """A job without a limit in front of a policy that backfills; the end of the group is a limit, too."""
        if job.duration_s or self.expiration_s or job.application is not None or not self.notices.enabled:
            return []
        if not getattr(queue.policy, "BACKFILLS", False):
            return []
        return [Annotated(job.jobid, {"sched": {"warning": ENDLESS_WARNING}})]

    def remove(self, jobid: int, queue: PolicyQueue) -> bool:
        """Takes a job off a queue; whether it was there."""
        job = queue.jobs.remove(jobid)
        self.notices.forget(jobid)
        if job is not None:
            queue.removed(job, self.running)
        return job is not None

    def judge(self, shape: Shape) -> str | None:
        """Why the shape can never fit here; None if it can, before the first grow, and where there are quotas."""
        if shape.scope is not None:
            self.renew(shape)
        if self.quotas is not None:
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
        """Has plugins say what they leave the shape of its choice; whether that may be another than before."""
        if self.hooks is None or not self.grown or not self.hooks.renew(shape):
            return False
        verdict = self._verdicts.get(shape.number)
        if verdict is not None:
            verdict.generation = -1
        for queue in self.queues.values():
            queue.recount()
        return True

    def _remember(self, now_s: float) -> None:
        """Targets are about to be lost: what there is for each waiting request is worked out before."""
        self.short_since_s = now_s
        for queue in self.queues.values() if self.is_patient and self.grown and self.quotas is None else ():
            for shape, _ in queue.jobs.shapes():
                self.judge(shape)

    def refuses(self, t_submit_s: float, asks_to_wait: bool) -> bool:
        """Whether an infeasible job is new, so that it is denied; else it was accepted (see `set_aside`)."""
        return not self.is_patient or not (asks_to_wait or t_submit_s < self.short_since_s)

    def offers_elsewhere(self, jobid: int) -> bool:
        """Whether another group offers the job, too, or is about to: then this one does not say that it waits."""
        groups = self.joint.get(jobid) if self.joint else None
        return groups is not None and any(each.is_offered(jobid) for each in groups if each is not self)

    def is_offered(self, jobid: int) -> bool:
        """Whether the job is in a queue here, or at its gate."""
        return self.queue_of(jobid) is not None or (self.hooks is not None and jobid in self.hooks.gates.gated)

    def had(self, shape: Shape) -> int | None:
        """How many nodes (or slots) there were for a shape when it was last feasible; None if that is not known."""
        return self._verdicts[shape.number].had

    def withdraw(self, jobid: int) -> bool:
        """The request of the job is withdrawn, wherever it waits; whether it was there."""
        gated = None if self.hooks is None else self.hooks.gates.gated.pop(jobid, None)
        if gated is not None or self.set_aside.pop(jobid, None) is not None:
            self.notices.forget(jobid)
            return True
        queue = self.queue_of(jobid)
        if queue is None or not self.remove(jobid, queue):
            return False
        self.reserved.left(jobid)
        self.invalidate_pass()
        return True

    def prioritize(self, jobid: int, priority: int) -> None:
        """A new priority for a job, if it waits here."""
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
        """The job has freed a part of what it holds, or all."""
        self.running.freed(jobid)
        self.invalidate_pass()

    def holdings(self) -> Iterator[Holding]:
        """Jobs that hold something that is counted here, in the order in which they began."""
        pool = self.pool
        return (holding for holding in self.ledger if any(rank in pool for rank in holding.parts))

    def check(self) -> None:
        """Asserts law 5 over this group, for tests and the simulator; linear in its jobs."""
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

"""A queue with the policy that orders it, over the targets of a group, and the jobs of it that are set aside.

Law: the policy queues of one group see the same pool and respect each other's reservations. Jobs that were accepted and
that their group cannot hold any more wait, set aside, until it can. No policy sees them, so that no job waits behind
one that cannot start; a job that is back has the place that its priority and its time of submission give it. Owners
learn what is missing and since when.

Plugins and one group: verdicts on shapes, jobs at gates, jobs held back in a pass, jobs that wait for a permit.

Law: this knows no policy and no pass; `Plugins` and `HookedPass` do what is to be done. Each plugin is asked for its
verdict once a shape, class of equal targets and generation, that of the pool and its own, however many jobs there are;
and again when the time has come that it named. What it says of a shape is a mask, so policies and plans follow it. A
job at a gate is in no queue yet, and is asked about on entry, at the time that its Gate names, and after the events
that it names. A job that waits for a permit holds what the ledger says, and gives it back whole: when it is refused,
when its time is over, when it is canceled, and when a target of it goes; nothing but its reason is said to the job
manager. What is held back in a pass is so until the pass ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import Any, Final

from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.reasons import WaitKind, cause
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.decisions import Reservation
from fluxsched.sched.hooks import (
    NO_GENERATION,
    RETRY_S,
    SCORE_MAX,
    Chain,
    Filtering,
    GroupSeen,
    JobSeen,
    Kind,
    Later,
    Never,
    PluginFault,
    Skip,
    ask,
    check_gate,
    check_later,
    generation_of,
    is_pass,
    why_of,
    wrong,
)
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.plan.counted_plan import CountedPlan
from fluxsched.sched.plan.pool_plan import PoolPlan
from fluxsched.sched.plan.running_jobs import RunningJobs
from fluxsched.sched.policy import ANYTHING, ITS_START, NOTHING, PAUSE_EVERY, Policy, placement_of
from fluxsched.sched.pool.placement import WORST_FIT, Fits, Shape
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.pool.select_targets import Narrowed, restricted
from fluxsched.sched.queue import PendingJob, PendingJobs, QueueKey, Skips, key_of

UNCOUNTED: Final = -2
"""Initial value, which is no generation of a pool, nor that of an index that is not followed yet (-1)."""


class PolicyQueue:
    """`name` is the queue's, or empty for all queues of the group that have no policy of their own.

    `planned` are the reservations that the policy made in its last pass, `plan` is what it made them in. While a pass
    makes them anew, `planned_before` are those that it found. `arrivals` are
    the jobs that came since, if nothing else has happened, none is ahead of the first waiting job or of one with a
    reservation, and the policy need only examine them (`changed_by_arrivals`); else None.
    `order` is the one of ORDERS in which the policy last asked for jobs, None if in none; `placement` the one of
    PLACEMENTS by which it places them.
    """

    __slots__ = (
        "_counted",
        "_rear",
        "_uncountable",
        "arrivals",
        "changed_by_arrivals",
        "grows",
        "jobs",
        "name",
        "order",
        "placement",
        "plan",
        "planned",
        "planned_before",
        "plans_one",
        "policy",
        "replans",
    )  # fmt: skip

    def __init__(self, name: str, policy: Policy) -> None:
        self.name = name
        self.policy = policy
        self.jobs = PendingJobs()
        self.planned: dict[int, Reservation] = {}
        self.planned_before: dict[int, Reservation] = {}
        self.plan: CountedPlan | PoolPlan | None = None
        self.arrivals: list[PendingJob] | None = None
        self.changed_by_arrivals: str = getattr(policy, "ARRIVALS", ANYTHING)
        self.replans: bool = getattr(policy, "REPLANS", False)
        self.plans_one: bool = getattr(policy, "PLANS_ONE", False)
        self.grows: bool = getattr(policy, "GROWS", False)
        self.placement = placement_of(policy)
        self.order: str | None = None
        self._rear: QueueKey | None = None  # a job behind it is behind all that were examined
        self._uncountable = 0  # jobs whose need cannot be counted, as of generation `_counted`
        self._counted = UNCOUNTED

    def add(self, job: PendingJob, running: RunningJobs, now_s: float) -> bool:
        """Add a job to the queue; return False if no pass can decide anything new because of it.

        Raise LimitExceeded if the queue is full.
        """
        key = self.jobs.add(job)
        known = running.needs.get(job.shape.number)
        if not known and self._counted == running.generation and not running.need(job.shape):
            self._uncountable += 1
        if self.arrivals is None:
            return True
        if not job.priority:
            return False
        first = self.jobs.first
        if (
            first is None
            or first is job
            or self.jobs.is_head(job)
            or (self.jobs.last is not job and key < self._rearmost(first))
        ):
            self.arrivals = None
            return True
        change, plan = self.changed_by_arrivals, self.plan
        if change == NOTHING or (change == ITS_START and plan is not None and plan.rules_out(job, now_s)):
            return False
        self.arrivals.append(job)
        return True

    def passed(self, plan: CountedPlan | PoolPlan | None) -> None:
        """Record the plan of a completed pass: until something else happens, only new jobs need to be examined."""
        self.plan = plan
        self.arrivals = [] if self.changed_by_arrivals != ANYTHING else None
        self._rear = None  # worked out when it matters: most arrivals are the last in line

    def _rearmost(self, first: PendingJob) -> QueueKey:
        """Return the last in order of the first waiting job and those with a reservation."""
        if self._rear is None:
            by_id = self.jobs.by_id
            self._rear = max([first.key, *[by_id[jobid].key for jobid in self.planned if jobid in by_id]])
        return self._rear

    def removed(self, job: PendingJob, running: RunningJobs) -> None:
        """Update counts after a job was removed from the queue."""
        self.planned.pop(job.jobid, None)
        if self._uncountable and self._counted == running.generation and not running.need(job.shape):
            self._uncountable -= 1

    def recount(self) -> None:
        """Discard the count of jobs, after the targets that a shape may choose from have changed."""
        self._counted = UNCOUNTED

    def countable(self, running: RunningJobs) -> bool:
        """Return whether only the number of free cores matters to all pending jobs."""
        if self._counted != running.generation:
            self._counted = running.generation
            self._uncountable = sum(jobs for shape, jobs in self.jobs.shapes() if not running.need(shape))
        return not self._uncountable


def arrived(arrivals: list[PendingJob], skips: Skips, order: str, now_s: float) -> Iterator[PendingJob | None]:
    """Yield the arrivals in this order, without those that `skips` names; now and then None."""
    if len(arrivals) > 1:
        arrivals.sort(key=key_of(order, now_s))
    for at, job in enumerate(arrivals, 1):
        number = job.shape.number
        if number not in skips.unfit and (number not in skips.long or job.limit_s < skips.long[number]):
            yield job
        if not at % PAUSE_EVERY:
            yield None


# ---- jobs that are set aside

WAIT, DENY = "wait", "deny"
UNSATISFIABLE: Final = (WAIT, DENY)
"""Treatment of accepted jobs that their group can no longer hold: `[policy] unsatisfiable`."""

TimeText = Callable[[float], str]
"""A time (wall time, seconds) in words for people."""

RULE: Final = "set aside: an accepted job waits while its group cannot hold it, and delays no other job"
WHEN: Final = "not known: as soon as the group has what it needs"


def utc_text(time_s: float) -> str:
    """`Nov22 12:03 UTC`, where no time zone is known."""
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%b%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):  # beyond the calendar: tests and simulations of long times
        return f"{time_s:.0f} s"


def asks_to_wait(jobspec: Jobspec) -> bool:
    """Return whether the job is to wait even if it is infeasible now (`submit --allow-infeasible`)."""
    system = jobspec.raw.get("attributes", {}).get("system") or {}
    return bool(system.get("unsatisfiable") == WAIT)


class SetAside:
    """One job that was set aside. `had` nodes (or slots) there were until `since_s` (wall time, seconds).

    `had` is None where it is not known; with `lost` false it never fitted since `since_s`, as far
    as this scheduler knows.
    """

    __slots__ = ("had", "job", "lost", "queue", "since_s", "why")

    def __init__(
        self, job: PendingJob, queue: PolicyQueue, why: str, since_s: float, lost: bool, had: int | None
    ) -> None:
        self.job = job
        self.queue = queue
        self.why = why
        self.since_s = since_s
        self.lost = lost
        self.had = had

    def reason(self, time_text: TimeText) -> str:
        """`needs 4 nodes of 1 core; the group has only 3 such nodes; it had 4 until Nov22 12:03`."""
        time = time_text(self.since_s)
        if not self.lost:
            return f"{self.why}, at least since {time}"
        return f"{self.why}; it had {'enough' if self.had is None else self.had} until {time}"


# ---- jobs at a gate


class GatedJob:
    """Job at a gate, with its queue, and the reason and events that its plugin gave."""

    __slots__ = ("at_s", "job", "on", "queue", "why")

    def __init__(self, job: PendingJob, queue: PolicyQueue, why: str, on: tuple[str, ...], at_s: float) -> None:
        self.job = job
        self.queue = queue
        self.why = why
        self.on = on
        self.at_s = at_s


class Gates:
    """Gates of one group: the jobs that plugins have not admitted to their queue yet.

    `next_s` is when some job is to be asked about again (wall time, seconds; else inf).
    """

    __slots__ = ("_faults", "_happened", "gated", "next_s")

    def __init__(self, faults: list[str]) -> None:
        self._faults = faults
        self._happened: set[str] = set()
        self.gated: dict[int, GatedJob] = {}
        self.next_s = inf

    def ask(self, chain: Chain, seen: JobSeen, job: PendingJob, queue: PolicyQueue) -> GatedJob | None:
        """Ask the plugins one by one whether the job may enter; return None if it may, else it is kept at the gate."""
        for name, method in chain.gates:
            found = check_gate(name, ask(name, method, seen))
            if found is None:
                continue
            if isinstance(found, PluginFault):
                self._faults.append(found.why)
                gated = GatedJob(job, queue, found.why, (), seen.now_s + RETRY_S)
            else:
                at_s = inf if found.at_s is None or found.at_s <= seen.now_s else found.at_s
                gated = GatedJob(job, queue, why_of(name, found), found.on, at_s)
            self.keep(gated)
            return gated
        return None

    def keep(self, gated: GatedJob) -> None:
        """Keep a job at the gate until its time."""
        self.gated[gated.job.jobid] = gated
        self.next_s = min(self.next_s, gated.at_s)

    def ask_soon(self, job: PendingJob, queue: PolicyQueue) -> None:
        """Keep a job at the gate until the next turn, in which plugins are asked about it."""
        self.keep(GatedJob(job, queue, "", (), -inf))

    def happened(self, event: str) -> None:
        """Record an event, one of EVENTS."""
        if self.gated:
            self._happened.add(event)

    @property
    def has_events(self) -> bool:
        """Return whether some job may be asked about again because of an event."""
        return bool(self._happened)

    def due(self, now_s: float) -> list[GatedJob]:
        """Remove and return the jobs to be asked about again, in the order of their arrival."""
        if not self._happened and now_s < self.next_s:
            return []
        happened, self._happened = self._happened, set()
        due = [each for each in self.gated.values() if each.at_s <= now_s or not happened.isdisjoint(each.on)]
        for each in due:
            del self.gated[each.job.jobid]
        self.next_s = min([each.at_s for each in self.gated.values()], default=inf)
        return due


# ---- jobs that wait for a permit


class WaitingPermit:
    """Job that waits for its permit: `whys` has the plugins that have not permitted it, and their reasons."""

    __slots__ = ("chain", "due_s", "fit", "job", "queue", "reserved", "seen", "selection", "whys")

    def __init__(
        self,
        job: PendingJob,
        queue: PolicyQueue,
        chain: Chain,
        seen: JobSeen,
        fit: Fits,
        reserved: Sequence[str],
        selection: str,
        whys: dict[str, str],
        due_s: float,
    ) -> None:
        self.job = job
        self.queue = queue
        self.chain = chain
        self.seen = seen
        self.fit = fit
        self.reserved = reserved
        self.selection = selection
        self.whys = whys
        self.due_s = due_s


class Permits:
    """Jobs of one group that wait for a permit.

    `asked` holds the queues (scopes of plugins) whose waiting jobs are to be asked about again.
    """

    __slots__ = ("asked", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, WaitingPermit] = {}
        self.asked: set[str] = set()

    @property
    def next_s(self) -> float:
        """Return when the first permit times out (wall time, seconds; inf if no job waits for one)."""
        return min([each.due_s for each in self.waiting.values()], default=inf)

    def add(self, each: WaitingPermit) -> None:
        """Add a job that waits for its permit."""
        self.came(each.chain.scope)
        self.waiting[each.job.jobid] = each

    def came(self, scope: str) -> None:
        """Record that a job of the queue has reached its permit or was removed, for which other jobs may wait."""
        if self.waiting:
            self.asked.add(scope)

    def pop(self, jobid: int) -> WaitingPermit | None:
        """Remove and return a job; None if it is not waiting."""
        found = self.waiting.pop(jobid, None)
        if found is not None:
            self.came(found.chain.scope)
        return found


# ---- jobs that plugins hold back


class HeldBack:
    """Jobs that plugins have deferred in a pass, with the reasons, by job and by number of the shape.

    `skips` are those of the policy's last walk, `placement` is the placement of its last query.
    """

    __slots__ = ("of_job", "of_shape", "placement", "skips")

    def __init__(self) -> None:
        self.of_job: dict[int, str] = {}
        self.of_shape: dict[int, str] = {}
        self.skips: Skips | None = None
        self.placement = WORST_FIT

    def add(self, job: PendingJob, why: str, with_equals: bool) -> None:
        """Defer the job for the rest of this pass, with its equals if requested."""
        self.of_job[job.jobid] = why
        if with_equals:
            self.of_shape[job.shape.number] = why
            if self.skips is not None:
                self.skips.fits_nowhere(job)

    def clear(self) -> None:
        self.of_job.clear()
        self.of_shape.clear()

    def has(self, job: PendingJob) -> bool:
        """Return whether the job is deferred."""
        return bool(self.of_job) and (job.jobid in self.of_job or job.shape.number in self.of_shape)

    def bars(self, job: PendingJob, placement: str) -> bool:
        """Return whether the job is deferred, and record the placement that the policy asked for."""
        self.placement = placement
        return self.has(job)

    def why(self, job: PendingJob) -> str:
        """Return the reason why the job is deferred."""
        return self.of_job.get(job.jobid) or self.of_shape[job.shape.number]


# ---- plugins as one group asks them


class GroupHooks:
    """`chains` are the plugins by scope, `bound` the jobs of which `on_free` is to be told.

    `now_s` is the time of the last event that had one (wall time, seconds).
    """

    __slots__ = (
        "_pool", "_running", "bound", "chains", "faults", "gates", "generations", "now_s", "permits", "verdicts",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        pool: Pool,
        running: RunningJobs,
        chains: Mapping[str, Chain],
        faults: list[str],
        bound: dict[int, tuple[Chain, JobSeen, Fits]],
    ) -> None:
        self.bound = bound
        self.chains = chains
        self.faults = faults
        self.verdicts = Verdicts(name, pool, chains, faults)
        self.gates = Gates(faults)
        self.permits = Permits()
        self.now_s = 0.0
        self._running = running
        self._pool = pool
        self.generations = self._generations()

    def renew(self, shape: Shape) -> bool:
        """Ask for unknown verdicts on a shape; return whether its remaining choice may have changed."""
        if not self.verdicts.renew(shape, self.now_s):
            return False
        self._running.needs.pop(shape.number, None)
        return True

    def is_stale(self, now_s: float) -> bool:
        """Return whether some verdict may have changed by `now_s`."""
        self.now_s = now_s
        generations = self._generations()
        if generations == self.generations and now_s < self.verdicts.until_s:
            return False
        self.generations = generations
        return True

    def _generations(self) -> list[int]:
        return [self._pool.generation, *[chain.generation for chain in self.chains.values()]]

    @property
    def next_s(self) -> float:
        """Return when something is due even without an event (wall time, seconds; else inf)."""
        return min(self.gates.next_s, self.permits.next_s, self.verdicts.until_s)

    def check(self, offered: set[int], ledger: Ledger) -> set[int]:
        """Assert that each job is in one state; return the jobs at gates and permits. For tests and the simulator."""
        gated, waits = self.gates.gated.keys(), self.permits.waiting.keys()
        assert offered.isdisjoint(gated), "a job is offered that is at a gate"
        assert offered.isdisjoint(waits), "a job is offered that waits for a permit"
        assert all(jobid in ledger for jobid in waits), "a job waits for a permit and holds nothing"
        assert all(jobid in ledger for jobid in self.bound), "a job is to be told of that holds nothing"
        return gated | waits

    def prioritize(self, jobid: int, priority: int) -> bool:
        """Set the priority of a job at a gate or a permit; return whether there is one."""
        gated, waits = self.gates.gated.get(jobid), self.permits.waiting.get(jobid)
        if gated is not None:
            gated.job = gated.job._replace(priority=priority)
        if waits is not None:
            waits.job = waits.job._replace(priority=priority)
        return gated is not None or waits is not None


def seen_of(job: PendingJob, now_s: float) -> JobSeen:
    """Return the job as plugins see it."""
    jobid, priority, userid, t_submit_s, shape, limit_s, *_ = job
    return _seen(JobSeen, (jobid, priority, userid, t_submit_s, limit_s, shape, now_s, False))


_seen: Final = tuple.__new__  # what the constructor of a NamedTuple calls: half its cost, once a start


# ---- verdicts of plugins on shapes

VERDICTS_MAX = 4096
"""Shapes whose verdicts are kept beyond those of waiting jobs."""

ALL: Final = -1
"""The mask of all targets."""

SCORE_UNITS: Final = 1000
"""Scores that differ by less are equal."""


class _Said:
    """Verdict of one plugin on one shape: masks of targets, reasons, scores by class; valid until `until_s`."""

    __slots__ = ("ever", "generation", "later", "never", "now", "scores", "skips", "until_s")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.now = self.ever = ALL
        self.later = self.never = ""
        self.until_s = inf
        self.skips = False
        self.scores: list[float] | None = None


class _Verdict:
    """Verdict on one shape: what each plugin answered, as of a generation of the pool and of the chain."""

    __slots__ = ("chain_generation", "delegated", "generation", "said", "until_s")

    def __init__(self, plugins: int) -> None:
        self.generation = self.chain_generation = -1
        self.until_s = inf
        self.said: list[_Said | None] = [None] * plugins
        self.delegated = False


class Verdicts:
    """Verdicts on shapes of one group; `faults` receives the texts of faults.

    `until_s` is when some verdict is to be renewed.
    """

    __slots__ = ("_chains", "_faults", "_kinds", "_kinds_of", "_known", "_name", "_pool", "_seen", "until_s")

    def __init__(self, name: str, pool: Pool, chains: Mapping[str, Chain], faults: list[str]) -> None:
        self._name = name
        self._pool = pool
        self._chains = chains
        self._faults = faults
        self._known: dict[int, _Verdict] = {}
        self._kinds: list[Kind] = []
        self._kinds_of = -1
        self._seen: GroupSeen | None = None
        self.until_s = inf

    def renew(self, shape: Shape, now_s: float) -> bool:
        """Narrow the shape's choice in the pool by plugins' verdicts; return whether it may have changed."""
        chain = self._chains[shape.scope or ""]
        if not chain.filtering:
            return False
        verdict, generation, own = self._known.get(shape.number), self._pool.generation, chain.generation
        if verdict is None:
            verdict = self._known[shape.number] = _Verdict(len(chain.filtering))
        elif verdict.generation == generation and verdict.chain_generation == own and now_s < verdict.until_s:
            return False
        fresh = verdict.generation != generation
        verdict.generation, verdict.chain_generation, verdict.until_s = generation, own, inf
        changed = fresh
        for at, each in enumerate(chain.filtering):
            said = verdict.said[at]
            if fresh or said is None or said.generation != generation_of(each.plugin) or said.until_s <= now_s:
                said = verdict.said[at] = self._ask(each, shape, now_s)
                changed = True
            verdict.until_s = min(verdict.until_s, said.until_s)
        self.until_s = min(self.until_s, verdict.until_s)
        if changed:
            verdict.delegated = chain.may_delegate and all(said is not None and said.skips for said in verdict.said)
            self._pool.narrow(shape, self._narrowed(shape, verdict))
        return changed

    def delegates(self, shape: Shape) -> bool:
        """Return whether every plugin asked after the queue skips this shape: its policy decides as without them."""
        verdict = self._known.get(shape.number)
        return verdict is not None and verdict.delegated

    def keep(self, numbers: Iterable[int]) -> None:
        """Forgets shapes of which no job waits, if there are many; `until_s` is worked out anew."""
        waiting = set(numbers)
        if len(self._known) > VERDICTS_MAX:
            for number in [number for number in self._known if number not in waiting]:
                del self._known[number]
                self._pool.narrowed.pop(number, None)
                self._pool.shut.discard(number)
                self._pool.prepared.pop(number, None)
        self.until_s = min([self._known[number].until_s for number in waiting & self._known.keys()], default=inf)

    # ---- within

    def _ask(self, each: Filtering, shape: Shape, now_s: float) -> _Said:
        said = _Said(generation_of(each.plugin))
        if said.generation == NO_GENERATION:
            text = f"plugin {each.name!r}: generation should be a number that grows"
            self._failed(said, PluginFault(cause(text, WaitKind.PLUGIN)), now_s)
            return said
        kinds = self._classes(shape)
        if each.pre_filter is not None:
            self._take(each, said, "pre_filter", ask(each.name, each.pre_filter, shape, self._group()), ALL, now_s)
        if each.filter is not None and not said.skips and said.now:
            chosen = self._chosen(shape)
            for kind in kinds:
                if kind.ranks.mask & chosen:
                    answer = ask(each.name, each.filter, shape, kind)
                    self._take(each, said, "filter", answer, kind.ranks.mask, now_s)
        if each.score is not None and not said.skips and said.now:
            self._score(each, said, shape, kinds, now_s)
        return said

    def _take(self, each: Filtering, said: _Said, point: str, answer: Any, mask: int, now_s: float) -> None:
        """Take over one answer about the targets of a mask."""
        early = point == "pre_filter"
        if is_pass(answer):
            return
        if early and isinstance(answer, Skip):
            said.skips = True
        elif early and isinstance(answer, Idset):
            said.now &= answer.mask
            only = f"only {self._pool.source.named(answer)}" if answer else "no target"
            left = f"plugin {each.name!r} leaves it {only}"
            said.later = cause(left, WaitKind.PLUGIN)
        elif isinstance(answer, Later):
            later = check_later(each.name, point, answer)
            if not isinstance(later, Later):
                self._failed(said, wrong(each.name, point, later, "a Later with a finite time"), now_s)
                return
            said.now &= ~mask
            said.later = why_of(each.name, later)
            if later.at_s is not None and later.at_s > now_s:  # else it would be asked again and again
                said.until_s = min(said.until_s, later.at_s)
        elif isinstance(answer, Never):
            said.now &= ~mask
            said.ever &= ~mask
            said.never = why_of(each.name, answer)
        else:
            allowed = "PASS, SKIP, an Idset, Later or Never" if early else "PASS, Later or Never"
            self._failed(said, wrong(each.name, point, answer, allowed), now_s)

    def _failed(self, said: _Said, fault: PluginFault, now_s: float) -> None:
        """Record that the shape waits, and its plugin is asked again after a while."""
        said.now, said.later, said.until_s = 0, fault.why, now_s + RETRY_S
        self._faults.append(fault.why)

    def _score(self, each: Filtering, said: _Said, shape: Shape, kinds: list[Kind], now_s: float) -> None:
        if each.pre_score is not None:
            answer = ask(each.name, each.pre_score, shape)
            if isinstance(answer, Skip):
                return None
            if not is_pass(answer):
                return self._failed(said, wrong(each.name, "pre_score", answer, "PASS or SKIP"), now_s)
        scores = []
        for kind in kinds:
            answer = ask(each.name, each.score, shape, kind) if each.score is not None else 0
            if not isinstance(answer, (int, float)) or not 0 <= answer <= SCORE_MAX:
                allowed = f"a number from 0 to {SCORE_MAX}"
                return self._failed(said, wrong(each.name, "score", answer, allowed), now_s)
            scores.append(each.weight * answer)
        said.scores = scores
        return None

    def _narrowed(self, shape: Shape, verdict: _Verdict) -> Narrowed | None:
        now = ever = ALL
        later = never = ""
        totals: list[float] | None = None
        for said in verdict.said:
            if said is None:
                continue
            now &= said.now
            ever &= said.ever
            later, never = later or said.later, never or said.never
            if said.scores is not None:
                totals = said.scores if totals is None else [a + b for a, b in zip(totals, said.scores, strict=True)]
        scores = self._scores(shape, totals) if totals is not None else ()
        if now == ALL and ever == ALL and not scores:
            return None
        choice, ranks = self._pool.choice(shape.request.constraint), self._pool.ranks.mask
        now, ever = now & ranks, ever & ranks
        left, able = restricted(choice, now, scores), restricted(choice, ever)
        return Narrowed(left, able, now, later, never, ever, scores)

    def _scores(self, shape: Shape, totals: list[float]) -> tuple[tuple[int, int], ...]:
        """Masks of targets with equal scores; none if all are equal."""
        masks: dict[int, int] = {}
        for kind, total in zip(self._classes(shape), totals, strict=True):
            score = round(total * SCORE_UNITS)
            masks[score] = masks.get(score, 0) | kind.ranks.mask
        return tuple((mask, score) for score, mask in masks.items()) if len(masks) > 1 else ()

    def _chosen(self, shape: Shape) -> int:
        """Return the targets that the constraint allows."""
        if shape.request.is_of_amounts:
            return ALL
        found = 0
        for targets, _, only, _ in self._pool.choice(shape.request.constraint):
            found |= targets.members.mask() if only is None else only.mask()
        return found

    def _group(self) -> GroupSeen:
        pool = self._pool
        if self._seen is None or self._seen.generation != pool.generation:
            source = pool.source
            ranks_of = partial(_ranks_of, source, pool.ranks)
            self._seen = GroupSeen(self._name, pool.ranks, pool.generation, ranks_of, source.properties)
        return self._seen

    def _classes(self, shape: Shape) -> list[Kind]:
        """Return the classes of equal targets, in the order of their lowest ranks; worked out once a generation."""
        if shape.request.is_of_amounts:
            found = self._pool.amount_targets.kinds()
            return [Kind(ranks, 0, 0, amounts, frozenset(names)) for amounts, names, ranks in found]
        if self._kinds_of != self._pool.generation:
            self._kinds = kinds_of(self._pool)
            self._kinds_of = self._pool.generation
        return self._kinds


def _ranks_of(source: ResourceSet, ranks: Idset, hosts: str) -> Idset:
    """Return those of the ranks that are on hosts of a hostlist; `source` may still name ranks that were removed."""
    return source.ranks_on(Hostlist.parse(hosts))[0] & ranks


def kinds_of(pool: Pool) -> list[Kind]:
    """Return targets by their resources and properties; linear in targets and their properties."""
    names: dict[int, list[str]] = {}
    for name, having in sorted(pool.source.properties.items()):
        for rank in having & pool.ranks:
            names.setdefault(rank, []).append(name)
    found: dict[tuple[int, int, Any, tuple[str, ...]], int] = {}
    for entry in pool.resources.entries:
        children = entry.children
        has = children.cores.mask.bit_count(), children.gpus.mask.bit_count(), children.amounts
        plain = entry.ranks.mask
        for rank in entry.ranks:
            if rank in names:
                key = (*has, tuple(names[rank]))
                found[key] = found.get(key, 0) | 1 << rank
                plain &= ~(1 << rank)
        if plain:
            key = (*has, ())
            found[key] = found.get(key, 0) | plain
    ordered = sorted(found.items(), key=lambda one: one[1] & -one[1])
    return [Kind(Idset(mask), *key[:3], frozenset(key[3])) for key, mask in ordered]

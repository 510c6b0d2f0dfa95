"""The interface of policies: a small class that looks at a view of one group and yields decisions, and nothing else.

Law: a policy is a pure function of its view and a time (same view, same time, same decisions). It cannot change
anything: it yields, and the engine makes each decision real before the next one is asked for, so `view.place` always
answers on what is left. It never sees the ledger. Where more than the policy decides in a pass, one stage follows the
other, and what the engine says of a decision goes to the stage that made it.

    class Smallest:
        name = "smallest"
        OPTIONS = {}

        def schedule(self, view, now_s):
            for job in sorted(view.queue, key=lambda job: job.request.cores):
                outcome = view.place(job)
                if isinstance(outcome, Fits):
                    yield Start(job.jobid, outcome)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from fluxsched.sched.admission import JobIndex
from fluxsched.sched.decisions import (
    BACKFILLED,
    IMMEDIATE,
    PAUSE,
    RESERVED,
    Decision,
    Deny,
    Grow,
    Pause,
    Pending,
    Preempt,
    Reservation,
    Reserve,
    Shrink,
    Start,
    Wake,
    Withhold,
)
from fluxsched.sched.extras import AllMayGo, ExtrasSearch, MayGo
from fluxsched.sched.fair.accounts import Account
from fluxsched.sched.fair.usage import safe_of
from fluxsched.sched.ledger import JobAllocation
from fluxsched.sched.loading import Option
from fluxsched.sched.plan.counted_plan import Plan
from fluxsched.sched.plan.reserved_nodes import ReservedNodes
from fluxsched.sched.pool.amounts import AskedAmounts
from fluxsched.sched.pool.placement import (
    BEST_FIT,
    BINPACKING,
    FAIR,
    LEAST_LOST,
    PLACEMENTS,
    WORST_FIT,
    Fits,
    Infeasible,
    Insufficient,
    Outcome,
    cores_in,
)
from fluxsched.sched.preemption import (
    UNKNOWN,
    LackingParts,
    Leaving,
    Openings,
    PartHeld,
    PreemptibleJobs,
    Preemptions,
    WhatIfPreempted,
    enough,
    merged,
    rank_of,
)
from fluxsched.sched.queue import AccountLines, PendingJobs
from fluxsched.sched.sorted_jobs import FIFO, LXF, ORDERS, PendingJob, Skips

__all__ = [
    "ANYTHING",
    "BACKFILLED",
    "BEST_FIT",
    "BINPACKING",
    "FAIR",
    "FIFO",
    "IMMEDIATE",
    "ITSELF",
    "ITS_START",
    "LEAST_LOST",
    "LXF",
    "NO",
    "NOTHING",
    "ORDER",
    "ORDERS",
    "PAUSE",
    "PAUSE_EVERY",
    "PLACEMENT",
    "RESERVED",
    "SWITCH",
    "TREE_PLACEMENT",
    "UNKNOWN",
    "WORST_FIT",
    "YES",
    "Account",
    "AccountLines",
    "AllMayGo",
    "AskedAmounts",
    "Decision",
    "Deny",
    "ExtrasSearch",
    "Fits",
    "Grow",
    "Infeasible",
    "Insufficient",
    "JobAllocation",
    "JobIndex",
    "LackingParts",
    "Leaving",
    "MayGo",
    "Openings",
    "Option",
    "Outcome",
    "PartHeld",
    "Pause",
    "Pending",
    "PendingJob",
    "PendingJobs",
    "Plan",
    "Policy",
    "Preempt",
    "PreemptibleJobs",
    "Preemptions",
    "Reservation",
    "Reserve",
    "ReservedNodes",
    "Running",
    "Shrink",
    "Skips",
    "Stages",
    "Start",
    "View",
    "Waiting",
    "Wake",
    "WhatIfPreempted",
    "Withhold",
    "cores_in",
    "decide",
    "enough",
    "merged",
    "needs_accounts",
    "placement_of",
    "rank_of",
    "reads_fair",
    "safe_of",
]

Waiting = PendingJob
"""The name that `PendingJob` had in 0.1.0."""

PLACEMENT: Final = Option(
    WORST_FIT, (WORST_FIT, BEST_FIT, LEAST_LOST), help="spread the load, fill gaps first, or leave least of a node"
)
"""The option `placement`, for any policy that passes it on to `view.place`."""

TREE_PLACEMENT: Final = Option(FAIR, (FAIR, BINPACKING), help="most or least free targets first")
"""Placement of targets without cores, as an option of policies."""


ORDER: Final = Option(FIFO, ORDERS, help="in which order jobs are tried")
"""The option `order`, for any policy that passes it on to `view.candidates`."""


NO, YES = "no", "yes"

SWITCH: Final = Option(NO, (NO, YES), help="yes or no; the name alone means yes")
"""An option that is on or off: `conservative:compress`."""

PAUSE_EVERY: Final = 64
"""Jobs planned between two pauses: about two milliseconds where cores are counted."""

ANYTHING, ITSELF, ITS_START, NOTHING = "anything", "itself", "its start", "nothing"
"""Effects that a job may have which arrives behind all others (`Policy`, `ARRIVALS`)."""


class Running(NamedTuple):
    """One job that holds resources; masks are of cores and of GPUs. `expiration_s` is wall time, 0.0 for none.

    `started_s` is wall time, too; `account`, `preemptible_after_s`, `queue` and `name` are as in `PendingJob`.
    """

    jobid: int
    expiration_s: float
    parts: Mapping[int, tuple[int, int]]
    account: Account | None = None
    preemptible_after_s: float | None = None
    started_s: float = 0.0
    userid: int = 0
    queue: str = ""
    name: str = ""


class View(Protocol):
    """View of one group for a policy: its own queue, and what the queues of the group share."""

    @property
    def queue(self) -> Iterator[PendingJob]:
        """Jobs that may start, in priority order; each access begins with the first."""
        ...

    @property
    def first(self) -> PendingJob | None:
        """The first of them; once it has been started, the next."""
        ...

    def first_beside(self, queues: Collection[str]) -> PendingJob | None:
        """Return the first job whose queue is none of these; None where all are of one queue, or accounts have limits.
        """
        ...

    def candidates(self, skips: Skips, order: str = FIFO) -> Iterator[PendingJob | None]:
        """Jobs that may start, in one of the ORDERS, without those that `skips` names, now and as it grows.

        Jobs whose decision cannot differ from the last pass are left out where the policy allows that
        (`ARRIVALS`, `REPLANS`). Now and then it yields None instead of a job: then yield PAUSE.
        """
        ...

    def job(self, jobid: int) -> PendingJob | None:
        """Return the job of this id, if it is pending in this queue; else None."""
        ...

    @property
    def running(self) -> Iterator[Running]:
        """Jobs that hold resources in this group, in the order in which they began."""
        ...

    @property
    def by_end(self) -> Iterator[Running]:
        """Jobs that hold resources in this group and have an end, the earliest first; read it before you yield."""
        ...

    @property
    def planned(self) -> Mapping[int, Reservation]:
        """The reservations of the last pass that are still valid, by job; those of this pass replace them."""
        ...

    @property
    def lines(self) -> AccountLines | None:
        """The waiting jobs by account, and the accounts; None unless the policy asks for them (`ACCOUNTS`)."""
        ...

    @property
    def index(self) -> JobIndex | None:
        """Return the pending jobs in the order of the admission, if it has one of its own (`sched.admission`)."""
        ...

    @property
    def reserved_nodes(self) -> ReservedNodes:
        """The targets that are kept for jobs (`Withhold`); to be read only."""
        ...

    def is_held_back(self, job: PendingJob) -> bool:
        """Return whether a plugin defers this very job in this pass, but not its equals: no placement is found for it.
        """
        ...

    @property
    def has_outages(self) -> bool:
        """Return whether outages are planned: where a job fits may depend on its limit."""
        ...

    def is_put_off(self, job: PendingJob, whole: bool = False) -> bool:
        """Return whether preemption for this job is deferred in this pass: another group of its queue may start it as
        it is.

        With `whole` (jobs are to be preempted): or may start it once extras are released. In that case a pass of the
        same instant follows, unless the job has started.
        """
        ...

    def find_on(self, job: PendingJob, rank: int) -> Fits | None:
        """Return a placement of the job on this one target, even if the target is reserved for it; None if there is
        none.
        """
        ...

    @property
    def plan(self) -> Plan:
        """The reservations of this pass, including those of the group's other queues."""
        ...

    def place(self, job: PendingJob, placement: str = WORST_FIT) -> Outcome:
        """Return Fits, Insufficient or Infeasible for this job on what is free now, with the reason in words."""
        ...

    def find(self, job: PendingJob, placement: str = WORST_FIT) -> Fits | None:
        """Return a placement of the job, or None without a reason, for passes that look at many jobs."""
        ...

    @property
    def preemptions(self) -> Preemptions:
        """Return the preemptible jobs, those being preempted, and the number that still may be; to be read only."""
        ...

    def if_gone(self, job: PendingJob | None = None) -> WhatIfPreempted:
        """Return a what-if, for a `with` block, in which jobs are gone; do not yield inside the block.

        Targets that outages keep from `job`, for which they go, are left out for its shape.
        """
        ...

    def step(self, jobid: int) -> Fits | None:
        """Return the next step of a running elastic job, for `Grow`: of the part that is least beyond its minimum.

        It is free, near to what the part has, and in the way of no reservation. None if no part can have more now:
        the job is as large as it may be, nothing suits, or it rests after a shrink; another pass comes when that ends.
        """
        ...

    def reason(self, job: PendingJob) -> Callable[[], str]:
        """Why the job does not start, worked out when it is needed; for `Pending` and `Reserve`."""
        ...


class Policy(Protocol):
    """Interface that the engine needs of a policy; options arrive as keyword arguments of the constructor.

    Some more attributes are optional:

    - `BACKFILLS = True`: it backfills, so jobs without a limit are warned.
    - `ARRIVALS`: what a job may change that arrives behind all others while nothing else happens. With ITSELF
      `candidates` offers arrivals alone, in the plan of the last pass; with ITS_START there is no pass if that plan
      rules out that one of them starts, and with NOTHING there is none at all.
    - `PLANS_ONE = True`: it reserves for one job at most where jobs of one queue wait, so that counting suffices beside
      outages.
    - `REPLANS = True`: it passes every candidate to `plan.seat` in order, so those whose reservation stays the same are
      not offered.
    - `GROWS = True`: it decides how running elastic jobs grow: the engine gives them nothing more by itself, and asks
      the policy also while no job waits.
    - `HOLDS = True`: it leaves jobs waiting on purpose though there is room, such as under a cap on power; the rule
      `progress` does not count that.
    - `placement`: the one of PLACEMENTS by which it places, WORST_FIT if it has no such attribute; the engine grows
      elastic jobs by it.
    - `ACCOUNTS = True`: it needs accounts, which are kept as the site settles them in `[fair]`; `fair_overrides` are
      names of FairSettings and values that it was given instead.
    - `ended(job, now_s)`: is called when a job (`Running`) gives back the last of what it has held.
    - `explain(lines, job, now_s)`: with accounts, why a job waits (`core.job_text.Why`; without reason: the usual one).
    - `why_not_preempted(jobs, job, preemptions, now_s)`: what keeps running jobs from being preempted for one that
      waits for resources; `jobs` are all of its queue (`PendingJobs`).
    - `INNER`: which of its OPTIONS names another policy, which is given to it ready; options that it does not have are
      that policy's.
    """

    name: ClassVar[str]
    OPTIONS: ClassVar[Mapping[str, Option]]

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        """Yield decisions for one group at `now_s` (wall time, seconds)."""
        ...


def needs_accounts(policy: Policy) -> bool:
    """Return whether accounts are to be kept for the policy (its attribute `ACCOUNTS`)."""
    return bool(getattr(policy, "ACCOUNTS", False))


def reads_fair(policy: Policy) -> bool:
    """Return whether `[fair]` matters to the policy: it needs accounts, or the weights of free amounts of targets."""
    return needs_accounts(policy) or placement_of(policy) == LEAST_LOST


def placement_of(policy: Policy) -> str:
    """Return the one of PLACEMENTS by which the policy places jobs (its attribute `placement`)."""
    found: Any = getattr(policy, "placement", None)
    return found if found in PLACEMENTS else WORST_FIT


def decide(job: PendingJob, outcome: Outcome) -> Decision:
    """Return the decision that an outcome calls for when nothing else is weighed: start, wait, or never."""
    match outcome:
        case Fits():
            return Start(job.jobid, outcome)
        case Insufficient(why):
            return Pending(job.jobid, why)
        case Infeasible(why):
            return Deny(job.jobid, why)


# ---- stages

class Stages:
    """The decisions of one stage after the other. What is thrown in goes to the one that decides.

    `watch` sees each decision before it is passed on.
    """

    def __init__(
        self, stages: Iterable[Callable[[], Iterable[Decision]]], watch: Callable[[Decision], None] | None = None
    ) -> None:
        self._watch = watch
        self._stages = iter(stages)
        self._at = iter(next(self._stages)())

    def __iter__(self) -> Iterator[Decision]:
        return self

    def __next__(self) -> Decision:
        while True:
            try:
                decision = next(self._at)
            except StopIteration:
                self._at = iter(next(self._stages)())
                continue
            if self._watch is not None:
                self._watch(decision)
            return decision

    def throw(self, fault: BaseException) -> Decision:
        """Raise an exception of the engine at the policy's own `yield`."""
        throw: Callable[[BaseException], Decision] | None = getattr(self._at, "throw", None)
        if throw is None:
            raise fault
        return throw(fault)

    def close(self) -> None:
        """Close the stages when the pass is dropped."""
        close = getattr(self._at, "close", None)
        if close is not None:
            close()

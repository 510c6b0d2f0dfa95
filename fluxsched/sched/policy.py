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

Search for the targets that running elastic jobs release so that a pending job can start: extras.

Law: of targets that could hold a node (or slot) of the job those go first where least work is lost (usage by the time
for which the job has them), the lower rank at a tie, until the job fits. A part goes down to values of its range only,
so that several targets may go together. What is not needed is spared, the first chosen first. Several parts of a job
are looked at one after the other (`lacking_parts`). If that does not suffice for a job with a bound on hops, the
search is repeated under each switch alone that may hold it; targets elsewhere are then not released.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from math import inf, nextafter
from operator import itemgetter
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from fluxsched.core.idset import Idset
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
from fluxsched.sched.fair.accounts import Account
from fluxsched.sched.fair.usage import safe_of
from fluxsched.sched.ledger import ElasticPart, Extras, JobAllocation
from fluxsched.sched.loading import Option
from fluxsched.sched.plan.counted_plan import Plan, ReservedNodes
from fluxsched.sched.pool.amounts import AskedAmounts
from fluxsched.sched.pool.placement import (
    BEST_FIT,
    BINPACKING,
    FAIR,
    LEAST_LOST,
    PLACEMENTS,
    WORD_SHIFT,
    WORST_FIT,
    Block,
    Fits,
    HeldBlocks,
    Infeasible,
    Insufficient,
    Outcome,
    Part,
    Shape,
    cores_in,
    ids_of,
    words_of,
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
from fluxsched.sched.queue import FIFO, LXF, ORDERS, AccountLines, JobIndex, PendingJob, PendingJobs, Skips, warn_of_end

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
    "Part",
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
    "warn_of_end",
]

LOOKED_AT_ONCE: Final = 64
"""Jobs between two pauses: some milliseconds."""

ONE_BY_ONE: Final = 64
"""Choices that are tried without one by one; of more of them just the first ones are spared together."""


class MayGo(Protocol):
    """Rule that decides which jobs' extras may be taken."""

    def allows(self, allocation: JobAllocation) -> bool:
        """Return whether any extras of the job may be taken."""
        ...

    def takes(self, account: Account | None, usage: float) -> bool:
        """Return whether this much more usage of the account may be taken after all taken before; if so, count it as
        taken.
        """
        ...

    def fresh(self) -> MayGo:
        """Return a copy of the rule with nothing taken yet."""
        ...


class AllMayGo:
    """Any job's, where no accounts are kept."""

    def allows(self, allocation: JobAllocation) -> bool:
        return True

    def takes(self, account: Account | None, usage: float) -> bool:
        return True

    def fresh(self) -> AllMayGo:
        return self


class ExtrasSearch:
    """The search for one waiting job at `now_s` (wall time, seconds): `look` until it is over, then `choose`.

    Then `chosen` go; the job fits at `fit` once they are gone, and all that is going, or at None if that is not enough.
    `looked_at` counts jobs.
    """

    __slots__ = (
        "_able", "_found", "_left", "_may_go", "_now_s", "_preemptions", "_rest", "_shape", "_taken", "chosen", "fit",
        "looked_at",
    )  # fmt: skip

    def __init__(self, shape: Shape, preemptions: Preemptions, now_s: float) -> None:
        self._shape = shape
        self._preemptions = preemptions
        self._now_s = now_s
        self._able: Sequence[dict[int, int]] = ()
        self._found: list[tuple[JobAllocation, Extras]] = []  # all that is looked at
        self._rest: list[Leaving] = []  # in order, the first at the end
        self._taken: list[Leaving] = []  # of these, in the order in which they go
        self._left: dict[ElasticPart, int] = {}  # how many each may still leave, where there is choice
        self._may_go: MayGo = AllMayGo()
        self.chosen: list[Leaving] = []
        self.fit: Fits | None = None
        self.looked_at = 0

    def look(self, able: Sequence[dict[int, int]], may_go: MayGo, least: int = 0) -> Iterator[None]:
        """Examine extras on targets that are `able` to hold a node (of each part), with pauses.

        If `least` targets or more must be released, they are worked out, too.
        """
        self._able = able
        jobs = iter([each for each in self._preemptions.elastic.values() if not each.is_ending])
        while some := list(islice(jobs, LOOKED_AT_ONCE)):
            for allocation in some:
                if allocation.elastic is not None and may_go.allows(allocation):
                    found = [(allocation, extras) for extras in allocation.elastic.extras(self._now_s)]
                    self._found += found
                    self._rest += self._in_bundles(found)
            self.looked_at += len(some)
            yield
        self._begin(may_go)
        yield
        if not self._shape.request.parts:
            self._take(least)
        yield

    def choose(self, what_if: WhatIfPreempted) -> bool:
        """Find how many of them have to go; return whether the job fits then."""
        start = what_if.mark()
        suffices = self._choose(what_if)
        if not self._found or (suffices and not any(each.needs_former for each in self.chosen)):
            return suffices
        best = self if suffices else None
        what_if.back(start)
        for able in what_if.lacking_switches(self._shape, self._ranks):
            other = self._among(able)
            if other is not None and other._choose(what_if) and (best is None or other._work < best._work):
                best = other
            what_if.back(start)
        if best is not None:
            what_if.release_targets(best.chosen)
            self.chosen, self.fit = best.chosen, best.fit
        return best is not None

    @property
    def _ranks(self) -> int:
        """Return all targets that one of the jobs may release."""
        found = 0
        for _, extras in self._found:
            found |= extras.ranks.mask
        return found

    @property
    def _work(self) -> float:
        return sum([each.work for each in self.chosen])

    def _among(self, ranks: int) -> ExtrasSearch | None:
        """Return this search restricted to these targets; None if they have no extras."""
        other = ExtrasSearch(self._shape, self._preemptions, self._now_s)
        other._able = [{at: word & able.get(at, 0) for at, word in words_of(ranks)} for able in self._able]
        may_go = self._may_go.fresh()
        there = [each for each in self._found if each[1].ranks.mask & ranks]
        other._rest = other._in_bundles([each for each in there if may_go.allows(each[0])])
        other._begin(may_go)
        return other if other._rest else None

    def _in_bundles(self, found: list[tuple[JobAllocation, Extras]]) -> list[Leaving]:
        return [each for allocation, extras in found for each in self._bundles(allocation, extras)]

    def _begin(self, may_go: MayGo) -> None:
        """Sort the candidates, which are all known now."""
        self._rest.sort(key=itemgetter(0, 1, 2), reverse=True)
        self._may_go = may_go

    def _choose(self, what_if: WhatIfPreempted) -> bool:
        shape = self._shape
        self.fit = what_if.find(shape)
        if self.fit is not None or not (self._rest or self._taken):
            return self.fit is not None
        if shape.request.parts:
            if not self._take_by_part(what_if):
                self.chosen = self._taken
                return False
            least = max(1, len(self._taken))
        else:
            least = self._of_targets(max(1, what_if.missing(shape)))
        count = least
        too_few = least - 1  # so many do not suffice
        mark = what_if.mark()
        while not self._suffices(what_if, count):
            what_if.back(mark)
            if count > len(self._taken):
                self.chosen = self._taken
                return False
            too_few, count = count, 2 * count
        count = min(count, len(self._taken))
        if count - too_few > 1:
            count = self._fewest(what_if, mark, too_few, count)
        self.chosen = self._taken[:count]
        is_one_each = shape.request.nodes is not None and not shape.request.parts and count == least
        if not is_one_each or any(len(each.ranks) > 1 for each in self.chosen):
            self.spare(what_if)
        self.fit = what_if.find(shape)
        return True

    def spare(self, what_if: WhatIfPreempted) -> None:
        """Keep targets without whose release the job fits as well, in the order chosen; all are released in the
        what-if.
        """
        if len(self.chosen) > ONE_BY_ONE and not any(each.needs_former for each in self.chosen):
            too_many, count = len(self.chosen), 0  # without the first `count` it fits
            while too_many - count > 1:
                middle = (count + too_many) // 2
                if what_if.fits_without(self.chosen[:middle], self._shape):
                    count = middle
                else:
                    too_many = middle
            if count:
                what_if.restore_targets(self.chosen[:count])
            self.chosen = self.chosen[count:]
            return
        free = [each for each in self.chosen if not each.needs_former]
        for each in [*free, *[each for each in reversed(self.chosen) if each.needs_former]]:
            if each.needs_former and self._is_needed(each):
                continue
            if what_if.fits_without([each], self._shape):
                what_if.restore_targets([each])
                self.chosen.remove(each)

    def _is_needed(self, each: Leaving) -> bool:
        """Return whether other targets of the part can be released only after these."""
        later = self.chosen[self.chosen.index(each) + 1 :]
        return any(other.needs_former and other.part is each.part for other in later)

    def _of_targets(self, count: int) -> int:
        """Return the least number of leading releases that have `count` targets; all that may be released if too
        few.
        """
        self._take(count)  # each is one at least
        found = 0
        for number, each in enumerate(self._taken, 1):
            found += len(each.ranks)
            if found >= count:
                return number
        return max(1, len(self._taken))

    def _take_by_part(self, what_if: WhatIfPreempted) -> bool:
        """Take releases that help, part by part from the one with the fewest targets; return whether all parts fit
        then.
        """
        openings, mark = what_if.openings(self._shape), what_if.mark()
        lacking = openings.lacking_parts()
        while lacking.next_part():
            passed_over: list[Leaving] = []
            kept: set[ElasticPart] = set()  # which may leave no more before what is passed over
            while lacking.lacks and self._rest:
                each = self._rest.pop()
                if each.part in kept or not lacking.helps(each.ranks):
                    passed_over.append(each)
                    if each.needs_former:
                        kept.add(each.part)
                elif self._takes(each):
                    self._taken.append(each)
                    what_if.release_targets([each])
                    lacking.came_free(openings.opened(each.ranks))
            self._rest += reversed(passed_over)
        what_if.back(mark)
        return not lacking.lacks

    def _take(self, count: int) -> None:
        """Take from the rest until `count` allowed releases are taken."""
        taken, rest = self._taken, self._rest
        while len(taken) < count and rest:
            each = rest.pop()
            if self._takes(each):
                taken.append(each)

    def _takes(self, each: Leaving) -> bool:
        """Return whether this release is allowed after all taken before; if so, count it as taken."""
        if len(self._able) == 1:  # there is no more than may go
            return self._may_go.takes(each.account, each.usage)
        left = self._left[each.part] - len(each.ranks)
        if left < 0 or not self._may_go.takes(each.account, each.usage):
            return False
        self._left[each.part] = left
        return True

    def _suffices(self, what_if: WhatIfPreempted, count: int) -> bool:
        """Return whether the first `count` releases suffice, or all allowed ones; they are then made in the what-if."""
        self._take(count)
        what_if.release_targets(self._taken[:count])
        return what_if.fits(self._shape)

    def _fewest(self, what_if: WhatIfPreempted, mark: tuple[int, dict[int, Idset]], too_few: int, count: int) -> int:
        """Return the fewest releases that suffice, between `too_few` and `count`; they are then made in the what-if."""
        while count - too_few > 1:
            what_if.back(mark)
            middle = (count + too_few) // 2
            if self._suffices(what_if, middle):
                count = middle
            else:
                too_few = middle
        what_if.back(mark)
        what_if.release_targets(self._taken[:count])
        return count

    def _bundles(self, allocation: JobAllocation, extras: Extras) -> Iterator[Leaving]:
        """Yield the targets of a part that are released together, in ascending order of the work lost."""
        elastic = allocation.elastic
        assert elastic is not None
        usage_of = self._preemptions.running.usage
        targets: list[tuple[int, float, int, float]] = []  # which part first, if any, work, rank, usage
        useless = len(self._able)
        left = extras.ranks
        for since_s, some in elastic.ages(allocation.started_s):
            mine = left if some is None else left & some
            left -= mine
            age_s = max(0.0, self._now_s - since_s)
            for block in allocation.on_ranks(mine):
                usage = usage_of(HeldBlocks((Block(block.at, block.word & -block.word, *block[2:]),)))
                base, word = block.at << WORD_SHIFT, block.word
                for number, able in enumerate(self._able):
                    good = word & able.get(block.at, 0)
                    targets += [(number, usage * age_s, base + bit, usage) for bit in ids_of(good)]
                    word ^= good
                targets += [(useless, usage * age_s, base + bit, usage) for bit in ids_of(word)]
        targets.sort()
        part, gone, last = extras.part, 0, -inf
        self._left[part] = extras.spare
        jobid, account = allocation.jobid, allocation.account
        if part.nodes.operator == "+" and part.nodes.operand == 1 and part.nodes.listed is None:
            for number, same in groupby(targets, itemgetter(0)):
                for _, work, rank, usage in islice(same, extras.spare if number < useless else 0):
                    yield Leaving(work, (rank,), jobid, usage, account, part)
            return
        while gone < len(targets) and targets[gone][0] < useless:
            count = part.rounded(gone + 1)
            if count is None or count > min(len(targets), extras.spare):
                return
            some_of_them = targets[gone:count]
            last = max(nextafter(last, inf), sum([work for _, work, *_ in some_of_them]))  # after those before
            usage = sum([usage for *_, usage in some_of_them])
            yield Leaving(last, tuple([rank for *_, rank, _ in some_of_them]), jobid, usage, account, part, True)
            gone = count


# ---- views and policies

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

ANYTHING: Final = "anything"
ITSELF: Final = "itself"
ITS_START: Final = "its start"
NOTHING: Final = "nothing"
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
        """Return the first job whose queue is none of these; None where all are of one queue, or accounts have
        limits.
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
        """Return the pending jobs in the order of the admission, if it has one of its own (`sched.queue`)."""
        ...

    @property
    def reserved_nodes(self) -> ReservedNodes:
        """The targets that are kept for jobs (`Withhold`); to be read only."""
        ...

    def is_held_back(self, job: PendingJob) -> bool:
        """Return whether a plugin defers this very job in this pass, but not its equals: no placement is found for
        it.
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
    - `explain(lines, job, now_s)`: with accounts, why a job waits (`core.jobid.Why`; without reason: the usual one).
    - `why_not_preempted(jobs, job, preemptions, now_s)`: what keeps running jobs from being preempted for one that
      waits for resources; `jobs` are all of its queue (`PendingJobs`).
    - `INNER`: which of its OPTIONS names another policy, which is given to it ready; options that it does not have are
      that policy's. Kept as `inner`, it is named by `job why`.
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


# ---- stages of a pass


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

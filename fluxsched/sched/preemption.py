"""Preemption in one scheduler: which running jobs may go, which are going and for whom, and what fits without them.

Law: a job is preempted at most once, and in any `window_s` at most `rate` of them are. What is going holds what it has
until that is freed. Running jobs are indexed by account and by target; one entry in a dict is all that a start
or an end costs, and the rest is caught up with when it is asked for. Leaving the block of a what-if undoes everything,
so nothing may be yielded inside. For a job of several parts a target helps if it suits any of the parts that lack most
together, of several such sets the smallest: then all the parts so far lack one less, and else they lack as many as
before (Hall). So nothing goes that suits none that lacks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import islice, repeat
from math import inf
from types import TracebackType
from typing import Final, NamedTuple

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.quantities import Amounts
from fluxsched.errors import LocalProtocolError
from fluxsched.sched.fair.accounts import RATE_WINDOW_S, Account, FairSettings
from fluxsched.sched.ledger import ElasticPart, JobAllocation, Ledger, without_ranks
from fluxsched.sched.pool.amounts import AskedAmounts
from fluxsched.sched.pool.find_fit import LeftOut, WhatIf, room_for
from fluxsched.sched.pool.parts import Hall, by_suited, choices_of, offers, suited_ever, suited_now
from fluxsched.sched.pool.placement import (
    BEST_FIT,
    FIRST_FIT,
    LOW_BITS,
    WORD_SHIFT,
    Blocks,
    Fits,
    HeldBlocks,
    Holds,
    Shape,
    cores_in,
    on_targets,
    parts_in,
    words_of,
)
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.pool.select_targets import Need, PartChoice, count_nodes, need_of, slots_of_idle, slots_on
from fluxsched.sched.pool.switches import Place
from fluxsched.sched.pool.target_class import TargetClass

PREEMPT_TIMEOUT_S: Final = 5.0
"""`[exec] preempt-timeout`, where nothing else is known."""

UNKNOWN: Final = 0
"""The beneficiary of a job that was found going: none has this id."""

RATE: Final = FairSettings().rate

REST_FROM: Final = 512
"""Running jobs that may be looked at in vain in each pass: some milliseconds."""

REST_S: Final = 1e-4
"""Pause for each job looked at without success (seconds): searches then take some hundredths of the time."""

REST_MAX_S = 10.0
"""Maximum pause after a search (seconds): a longer one means that the clock has stepped back."""


def cores_held(held: Holds) -> float:
    """Return the usage of a holder where there are no accounts: its number of cores."""
    return float(cores_in(held.blocks))


class Preemptions:
    """`running` are the jobs that may be preempted, `going` maps those that were to the job that they go for.

    `leaving` maps jobs that go on, and are to leave some targets, to these, by the job that they leave them to.
    `awaited` maps beneficiaries to those that are not gone yet: to none once they all are, until a pass has seen that
    while no job is going. What is going is killed after `timeout_s`. `of_account` counts preempted jobs.
    Before `in_use` there was no job that may be preempted or leave a target, nor one that was to.
    """

    __slots__ = (
        "_begun_s", "_in_vain", "_ledger", "_spared", "awaited", "going", "in_use", "leaving", "of_account", "rate",
        "running", "timeout_s", "window_s",
    )  # fmt: skip

    def __init__(
        self,
        ledger: Ledger,
        timeout_s: float = PREEMPT_TIMEOUT_S,
        rate: int = RATE,
        usage_of: UsageOf = cores_held,
    ) -> None:
        self._ledger = ledger
        self.rate = rate
        self.window_s: float = RATE_WINDOW_S
        self.timeout_s = timeout_s
        self.running = PreemptibleJobs(usage_of)
        self.in_use = False
        self.going: dict[int, int] = {}
        self.leaving: dict[int, dict[int, Idset]] = {}
        self.of_account: dict[Account, int] = {}
        self.awaited: dict[int, set[int]] = {}
        self._begun_s: deque[float] = deque()
        self._in_vain: tuple[int, float] = (0, -inf)
        self._spared: set[int] = set()  # on which no exception could be raised

    def limit(self, rate: int, window_s: float) -> None:
        """Limit preemptions to `rate` jobs in any `window_s` (seconds)."""
        self.rate, self.window_s = rate, window_s

    # ---- questions

    def left(self, now_s: float) -> int:
        """Return the number of jobs that still may be preempted at `now_s` (wall time, seconds)."""
        begun_s = self._begun_s
        while begun_s and begun_s[0] + self.window_s <= now_s:
            begun_s.popleft()
        if begun_s and begun_s[-1] > now_s:  # the clock stepped back: what has begun began now at the latest
            self._begun_s = begun_s = deque([min(each_s, now_s) for each_s in begun_s])
        return self.rate - len(begun_s)

    def next_s(self, jobs: int, now_s: float) -> float:
        """Return when this many jobs may be preempted (wall time, seconds); inf if they exceed the rate."""
        missing = jobs - self.left(now_s)
        if missing <= 0:
            return now_s
        return self._begun_s[missing - 1] + self.window_s if missing <= len(self._begun_s) else inf

    def refuses(self, jobid: int, now_s: float) -> bool:
        """Return whether the job must not be preempted at `now_s`: it is not here, is ending, or has not allowed it
        yet.
        """
        allocation = self._ledger.get(jobid)
        if allocation is None or allocation.must_end or allocation.preemptible_after_s is None:
            return True
        if jobid in self.going or jobid in self._spared:
            return True
        return now_s < allocation.started_s + allocation.preemptible_after_s or self.left(now_s) <= 0

    def awaits(self, jobid: int, start_s: float, now_s: float) -> bool:
        """Return whether a job that is to start at `start_s` (wall time, seconds) does so in place of preempted
        ones.
        """
        return jobid in self.awaited and start_s <= now_s + self.timeout_s

    def usage_going(self) -> Iterator[tuple[Account, float]]:
        """Yield the usage of resources being released, in units of weight, with its account."""
        for allocation, blocks in self._blocks_going():
            if allocation.account is not None:
                yield allocation.account, self.running.usage(HeldBlocks(blocks))

    def allocations_going(self) -> list[JobAllocation]:
        """Return the allocations of the jobs being preempted."""
        return [self._ledger.allocations[jobid] for jobid in self.going]

    def if_gone(self, pool: Pool, left_out: LeftOut | None = None) -> WhatIfPreempted:
        """Return a what-if in which all resources being released are free; for a `with` block."""
        return WhatIfPreempted(pool, self._ledger, [blocks for _, blocks in self._blocks_going()], left_out)

    def _blocks_going(self) -> Iterator[tuple[JobAllocation, Blocks]]:
        """Yield the blocks of jobs being preempted, and those that other jobs are to release."""
        for jobid in self.going:
            allocation = self._ledger.allocations[jobid]
            yield allocation, allocation.staying
        for jobid in self.leaving:
            allocation = self._ledger.allocations[jobid]
            yield allocation, allocation.on_ranks(allocation.leaving)

    @property
    def elastic(self) -> Mapping[int, JobAllocation]:
        """The running jobs that may change their size."""
        return self._ledger.elastic.by_id

    @property
    def any_going(self) -> bool:
        """Return whether any job is being preempted or is to release a target."""
        return bool(self.going or self.leaving)

    # ---- searches in vain

    def searched_in_vain(self, jobid: int, looked_at: int, now_s: float) -> None:
        """Record a search for the job at `now_s` that looked at so many running jobs without success:
        `rests_until_s`.
        """
        self._in_vain = jobid, now_s + (looked_at * REST_S if looked_at > REST_FROM else 0.0)

    def rests_until_s(self, jobid: int, now_s: float) -> float:
        """Return when to search again for a job without success (wall time, seconds); `now_s` for any other.

        A state that takes long to search changes with each event, and mostly not enough.
        """
        searched, until_s = self._in_vain
        return until_s if searched == jobid and now_s < until_s <= now_s + REST_MAX_S else now_s

    # ---- events

    def began(self, allocation: JobAllocation) -> None:
        """Record that a job holds resources."""
        if allocation.elastic is not None:
            self.in_use = True
        if allocation.preemptible_after_s is None or allocation.jobid in self.going or allocation.jobid in self._spared:
            return
        self.in_use = True
        self.running.began(allocation)

    def found(self, allocation: JobAllocation, preempted_s: float | None, now_s: float) -> None:
        """Enter a job found running, and whether it was preempted (None: not); the job it was preempted for is
        unknown.
        """
        if preempted_s is None:
            self.began(allocation)
            return
        began_s = min(preempted_s, now_s)
        self._goes(allocation.jobid, UNKNOWN, began_s)
        self._begun_s = deque(sorted((*self._begun_s, began_s)))

    def freed(self, jobid: int, waits: Callable[[int], bool]) -> None:
        """Update after a job has freed a part of its resources, or all; `waits` says whether a job is still pending."""
        left = self._ledger.get(jobid)
        if jobid in self.leaving:
            self.has_left(jobid, waits)
        if jobid in self.running.jobs:
            if left is None:
                self.running.ended(jobid)
            else:
                self.running.began(left)
        elif left is None and jobid in self.going:
            self._is_gone(jobid, waits)
        elif left is None:
            self._spared.discard(jobid)

    def has_left(self, jobid: int, waits: Callable[[int], bool]) -> None:
        """Update after a job that is to release targets has freed some, or is to release fewer."""
        leaving = self.leaving[jobid]
        allocation = self._ledger.get(jobid)
        still = EMPTY if allocation is None else allocation.leaving
        for beneficiary, ranks in list(leaving.items()):
            if ranks & still:
                leaving[beneficiary] = ranks & still
                continue
            del leaving[beneficiary]
            if self.going.get(jobid) != beneficiary:
                self._has_gone_for(beneficiary, jobid, waits)
        if not leaving:
            del self.leaving[jobid]

    def failed(self, jobid: int, waits: Callable[[int], bool]) -> None:
        """Record that the job manager has not preempted the job, which is not chosen again."""
        if jobid in self.going:
            self._spared.add(jobid)
            self._ledger.set_going(jobid, inf)
            self._is_gone(jobid, waits)

    def looked_after(self, beneficiaries: Iterable[int]) -> None:
        """Remove beneficiaries that are no longer pending, or had a complete pass since their last victim ended."""
        for jobid in beneficiaries:
            if jobid in self.awaited and not self.awaited[jobid]:
                del self.awaited[jobid]

    def _goes(self, jobid: int, beneficiary: int, began_s: float) -> None:
        self.in_use = True
        self._ledger.set_going(jobid, began_s + self.timeout_s)
        self.going[jobid] = beneficiary
        self.awaited.setdefault(beneficiary, set()).add(jobid)

    def _is_gone(self, jobid: int, waits: Callable[[int], bool]) -> None:
        beneficiary = self.going.pop(jobid)
        if beneficiary not in self.leaving.get(jobid, ()):
            self._has_gone_for(beneficiary, jobid, waits)

    def _has_gone_for(self, beneficiary: int, jobid: int, waits: Callable[[int], bool]) -> None:
        if beneficiary in self.awaited:
            self.awaited[beneficiary].discard(jobid)
        if not waits(beneficiary):
            self.looked_after((beneficiary,))

    def preempt(self, allocation: JobAllocation, beneficiary: int, now_s: float) -> None:
        """Record that the job, which `refuses` allows, is preempted for the beneficiary."""
        self.running.ended(allocation.jobid)
        self._goes(allocation.jobid, beneficiary, now_s)
        self._begun_s.append(now_s)
        if allocation.account is not None:
            self.of_account[allocation.account] = self.of_account.get(allocation.account, 0) + 1

    def shrink(self, allocation: JobAllocation, ranks: Idset, beneficiary: int) -> None:
        """Record for which beneficiary (UNKNOWN: none) the job is to release these targets, as in the ledger."""
        self.in_use = True
        leaving = self.leaving.setdefault(allocation.jobid, {})
        leaving[beneficiary] = leaving.get(beneficiary, EMPTY) | ranks
        self.awaited.setdefault(beneficiary, set()).add(allocation.jobid)
        self.resized(allocation)

    def resized(self, allocation: JobAllocation) -> None:
        """Update a job that has more resources than before, or is to release some."""
        if allocation.jobid in self.running.jobs:
            self.running.began(allocation)


# ---- running jobs that may be preempted

CATCH_UP_JOBS: Final = 1024
"""Jobs that are taken in at a time: some milliseconds."""

ROUNDING: Final = 1e-3
"""Tolerance of sums of work, in units of weight times seconds: estimates sum in another order."""

FEW: Final = 7
"""Ratio of what others keep to what is needed from which on it is no use to estimate what they would lose."""

NARROW: Final = 8
"""Divisor of the number of jobs: if accounts have fewer than one in so many, only their targets are looked at."""

Estimate = tuple[float, int, bool]
"""(work that is lost at least, rank, whether that is exact)."""

UsageOf = Callable[[Holds], float]
"""Function that returns the usage of a holder in units of weight (u in the formulas)."""


def rank_of(allocation: JobAllocation) -> int:
    """Return the first rank on which a job holds something."""
    block = allocation.blocks[0]
    return block.at << WORD_SHIFT | (block.word & -block.word).bit_length() - 1


class PartHeld(NamedTuple):
    """Resources of one job on one target; parts sort by the latest start, then by the higher id."""

    started_s: float
    jobid: int
    usage: float
    account: Account | None
    allowed_s: float
    cores: int
    gpus: int
    amounts: Amounts


class TargetJobs:
    """Jobs on one target that allow preemption, and sums that give a lower bound of the work lost there.

    `cores` is the number that they hold of it. Their `usage` is that of all they hold, wherever it is, and rates are
    usage by core of this target. `weighted_start` is the sum of usage x start, which counts from an origin.
    """

    __slots__ = (
        "cores", "least_rate", "least_usage", "most_rate", "oldest_s", "parts", "usage", "weighted_start", "youngest_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.parts: dict[int, PartHeld] = {}
        self.cores = 0
        self.usage = self.weighted_start = 0.0
        self.least_usage = self.least_rate = self.most_rate = 0.0
        self.youngest_s = self.oldest_s = 0.0

    def summarize(self, origin_s: float) -> None:
        """Works out the sums anew, so that they do not drift."""
        cores, usage, weighted_start = 0, 0.0, 0.0
        least_usage, least_rate, most_rate = inf, inf, 0.0
        youngest_s, oldest_s = -inf, inf
        for part in self.parts.values():
            mine = part.cores.bit_count()
            least_usage = min(least_usage, part.usage)
            youngest_s = max(youngest_s, part.started_s)
            if not mine:
                least_rate = 0.0  # it may stay, whatever else does
                continue
            cores += mine
            usage += part.usage
            weighted_start += part.usage * (part.started_s - origin_s)
            rate = part.usage / mine
            least_rate = min(least_rate, rate)
            most_rate = max(most_rate, rate)
            oldest_s = min(oldest_s, part.started_s)
        self.cores, self.usage, self.weighted_start = cores, usage, weighted_start
        self.least_usage, self.least_rate, self.most_rate = least_usage, least_rate, most_rate
        self.youngest_s, self.oldest_s = youngest_s, oldest_s


class PreemptibleJobs:
    """Preemptible jobs of a scheduler; `jobs` by id, in the order of their starts, and `of_account` by account."""

    def __init__(self, usage_of: UsageOf) -> None:
        self.jobs: dict[int, JobAllocation] = {}
        self.of_account: dict[Account, dict[int, JobAllocation]] = {}
        self.by_target: dict[int, TargetJobs] = {}
        self.origin_s = 0.0
        self._usage_of = usage_of
        self._known: dict[int, Blocks] = {}
        self._touched: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self.jobs)

    def began(self, allocation: JobAllocation) -> None:
        """Enter a job that may be preempted, now or later, or that holds less than before."""
        jobid = allocation.jobid
        self.jobs[jobid] = allocation
        self._touched[jobid] = None
        if allocation.account is not None:
            self.of_account.setdefault(allocation.account, {})[jobid] = allocation

    def ended(self, jobid: int) -> None:
        """Remove a job that has ended or is being preempted."""
        allocation = self.jobs.pop(jobid, None)
        if allocation is None:
            return
        if jobid in self._known:
            self._touched[jobid] = None
        else:  # it was never taken in
            self._touched.pop(jobid, None)
        if allocation.account is not None:
            mine = self.of_account[allocation.account]
            del mine[jobid]
            if not mine:
                del self.of_account[allocation.account]

    def usage(self, held: Holds) -> float:
        """Return the usage of a job, or a part of one, in units of weight."""
        return self._usage_of(held)

    def least_work(self, accounts: Collection[Account], need: int, left: int, now_s: float) -> list[Estimate]:
        """Return a lower bound of the work lost on each target with jobs of these accounts, where `need` cores must be
        freed.

        The bound is the usage that must be preempted at the age of the youngest job; and all usage, less what may stay
        at the age of the oldest. Others may keep `left` cores there; where they may keep none, it is exactly the work
        lost.
        """
        targets = self._targets_of(accounts)
        age_s = now_s - self.origin_s
        if not left:
            works = [each.usage * age_s - each.weighted_start for _, each in targets]
            return list(zip(works, [rank for rank, _ in targets], repeat(True)))
        goes = [
            (must if (must := (each.cores - left) * each.least_rate) > each.least_usage else each.least_usage)
            * (now_s - each.youngest_s)
            - ROUNDING
            for _, each in targets
        ]
        if left < FEW * need:
            stays = [min(left, each.cores) * each.most_rate * (now_s - each.oldest_s) for _, each in targets]
            alls = [each.usage * age_s - each.weighted_start - ROUNDING for _, each in targets]
            goes = [max(one, all_of_them - stay) for one, all_of_them, stay in zip(goes, alls, stays, strict=True)]
        return list(zip(goes, [rank for rank, _ in targets], repeat(False)))

    def _targets_of(self, accounts: Collection[Account]) -> Collection[tuple[int, TargetJobs]]:
        """Targets with jobs of these accounts; all, unless these have few of the jobs."""
        jobs = sum([len(self.of_account[account]) for account in accounts])
        if jobs * NARROW >= len(self.jobs):
            return self.by_target.items()
        ranks = {rank for account in accounts for jobid in self.of_account[account] for rank in self.ranks_of(jobid)}
        return [(rank, self.by_target[rank]) for rank in ranks]

    def ranks_of(self, jobid: int) -> list[int]:
        """Return the ranks on which the job holds something, as of the last `catch_up`."""
        return [part.rank for part in parts_in(on_targets(self._known.get(jobid, ())))]

    def catch_up(self) -> bool:
        """Apply some of the changes; return whether all are applied."""
        stale: set[int] = set()
        for jobid in list(islice(self._touched, CATCH_UP_JOBS)):
            del self._touched[jobid]
            for rank, *_ in parts_in(on_targets(self._known.pop(jobid, ()))):
                del self.by_target[rank].parts[jobid]
                stale.add(rank)
            allocation = self.jobs.get(jobid)
            if allocation is not None:
                self._enter(allocation, stale)
        for rank in stale:
            target = self.by_target[rank]
            if target.parts:
                target.summarize(self.origin_s)
            else:
                del self.by_target[rank]
        return not self._touched

    def _enter(self, allocation: JobAllocation, stale: set[int]) -> None:
        blocks = allocation.staying
        usage = self._usage_of(HeldBlocks(blocks) if allocation.leaving else allocation)
        jobid, account = allocation.jobid, allocation.account
        if not self._known:
            self.origin_s = allocation.started_s
        after_s = allocation.preemptible_after_s
        allowed_s = inf if after_s is None else allocation.started_s + after_s
        self._known[jobid] = blocks
        for rank, cores, gpus, amounts in parts_in(on_targets(blocks)):
            target = self.by_target.get(rank)
            if target is None:
                target = self.by_target[rank] = TargetJobs()
            target.parts[jobid] = PartHeld(allocation.started_s, jobid, usage, account, allowed_s, cores, gpus, amounts)
            stale.add(rank)


# ---- what fits without them

SWITCHES_TRIED: Final = 64
"""Switches under which a search for extras is tried, at most: each takes some milliseconds on a large machine."""


class Opening(NamedTuple):
    """Free resources of a target (ids as masks), and the amounts needed so that one more node, or slot, fits there."""

    cores: int
    gpus: int
    amounts: Amounts
    need_cores: int
    need_gpus: int
    need_amounts: Amounts

    @property
    def fits(self) -> bool:
        """Return whether the amounts needed are free."""
        if self.cores.bit_count() < self.need_cores or self.gpus.bit_count() < self.need_gpus:
            return False
        return enough(self.amounts, self.need_amounts)


class Leaving(NamedTuple):
    """Targets that a job releases together of a part, with the work lost (units of weight x seconds) and their usage.

    The job may release others without these, or (`needs_former`) only after those before them in the part.
    """

    work: float
    ranks: tuple[int, ...]
    jobid: int
    usage: float
    account: Account | None
    part: ElasticPart
    needs_former: bool = False


def merged(chosen: Sequence[Leaving]) -> dict[int, Idset]:
    """Return the ranks that each job releases."""
    found: dict[int, list[int]] = {}
    for each in chosen:
        ranks = found.get(each.jobid)
        if ranks is None:
            found[each.jobid] = list(each.ranks)
        else:
            ranks += each.ranks
    return {jobid: Idset.of(ranks) for jobid, ranks in found.items()}


class WhatIfPreempted:
    """Hypothetical state of a pool within a `with` block; `going` are blocks that are assumed to be free.

    `left_out` has the targets that outages keep from the job for which others may go.
    """

    __slots__ = ("_going", "_ledger", "_left", "_left_out", "_pool", "_what_if")

    def __init__(self, pool: Pool, ledger: Ledger, going: Iterable[Blocks], left_out: LeftOut | None = None) -> None:
        self._left_out = left_out
        self._pool = pool
        self._ledger = ledger
        self._going = going
        self._left: dict[int, Idset] = {}  # the targets that jobs have left that go on
        self._what_if = WhatIf(pool)

    def __enter__(self) -> WhatIfPreempted:
        self._what_if.__enter__()
        if self._left_out is not None:
            self._left_out.__enter__()
        for blocks in self._going:
            self._what_if.give(blocks)
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        if self._left_out is not None:
            self._left_out.__exit__(kind, fault, at)
        self._what_if.__exit__(kind, fault, at)

    def give(self, jobids: Iterable[int]) -> None:
        """Free all resources of these jobs, too."""
        for jobid in jobids:
            allocation = self._ledger.get(jobid)
            if allocation is not None:
                self._what_if.give(self._rest_of(allocation))

    def release_targets(self, leaving: Sequence[Leaving]) -> None:
        """Release these targets of jobs that go on, too."""
        for jobid, ranks in merged(leaving).items():
            self._what_if.give(self._ledger.allocations[jobid].on_ranks(ranks))
            self._left[jobid] = self._left.get(jobid, EMPTY) | ranks

    def restore_targets(self, leaving: Sequence[Leaving]) -> None:
        """Undo the release of these targets."""
        for jobid, ranks in merged(leaving).items():
            self._what_if.keep(self._ledger.allocations[jobid].on_ranks(ranks))
            self._left[jobid] -= ranks

    def fits_without(self, leaving: Sequence[Leaving], shape: Shape) -> bool:
        """Return whether the shape fits if these targets had not been released."""
        mark = self.mark()
        self.restore_targets(leaving)
        fits = self.fits(shape)
        self.back(mark)
        return fits

    def mark(self) -> tuple[int, dict[int, Idset]]:
        """Return a point to go back to."""
        return self._what_if.mark(), dict(self._left)

    def back(self, mark: tuple[int, dict[int, Idset]]) -> None:
        """Undo all changes since a mark."""
        self._what_if.back(mark[0])
        self._left = dict(mark[1])  # the mark may be gone back to again

    def missing(self, shape: Shape) -> int:
        """Return the least number of targets to be freed so that the shape fits, which it does not now."""
        request = shape.request
        if request.nodes is None or request.parts:
            return 1
        return request.nodes.min - count_nodes(self._pool.choice_of(shape), need_of(request, request.slots.min))

    def lacking_switches(self, shape: Shape, ranks: int) -> list[int]:
        """Return the targets under each switch where the shape may fit within its bound once `ranks` are free, as
        counted.

        Those that lack least come first; SWITCHES_TRIED at most.
        """
        request, network = shape.request, self._pool.rooms.network
        if request.max_hops is None or request.parts:
            return []
        room, _ = room_for(self._pool, shape)
        least = request.slots.min if request.nodes is None else request.nodes.min
        found: list[tuple[int, int, int, int]] = []
        for number, level in enumerate(network.switches.levels):
            for at in range(len(level.names)) if level.hops <= request.max_hops else ():
                under = network.under(Place(number, at)).mask()
                lacking, more = least - room.of(Place(number, at)), (under & ranks).bit_count()
                if more >= lacking or (more and request.nodes is None):
                    found.append((lacking, number, at, under))
        return [under for *_, under in nsmallest(SWITCHES_TRIED, found)]

    def _rest_of(self, allocation: JobAllocation) -> Blocks:
        """Return the blocks of a job on targets that it has not released and is not to release."""
        left = self._left.get(allocation.jobid)
        if left is None:
            return allocation.staying
        return without_ranks(allocation.staying, left)

    def seat(self, shape: Shape, wanted: Fits | None) -> None:
        """Take the wanted placement for a job, else any other; nothing if it does not fit."""
        if wanted is not None and self._takes(wanted):
            return
        fit = self.find(shape)
        if fit is not None:
            self._what_if.take(fit.blocks)

    def _takes(self, fit: Fits) -> bool:
        try:
            self._what_if.take(fit.blocks)
        except LocalProtocolError:  # not all of it is free
            return False
        return True

    def find(self, shape: Shape) -> Fits | None:
        """Return a tight placement of the shape, on released resources rather than on those free already."""
        return self._what_if.find(shape, BEST_FIT, prefer_given=True)

    def fits(self, shape: Shape) -> bool:
        """Return whether the shape fits at all."""
        return self._what_if.find(shape, BEST_FIT) is not None

    def spare(self, jobid: int, shape: Shape) -> bool:
        """Keep a job that was given, if the shape fits all the same; return whether it does."""
        what_if, allocation = self._what_if, self._ledger.allocations[jobid]
        mark = what_if.mark()
        what_if.keep(self._rest_of(allocation))
        if what_if.find(shape, BEST_FIT) is not None:
            return True
        what_if.back(mark)
        return False

    def openings(self, shape: Shape) -> Openings:
        """Return the openings for the shape on single targets."""
        return Openings(self._pool, shape)

    def asked(self, shape: Shape) -> AskedAmounts:
        """Return a request of amounts without cores with its targets, by which the shortage on each can be found."""
        return self._pool.asked_amounts(shape.request, self._pool.narrowed.get(shape.number))


class Openings:
    """Openings for a node, or one more slot, of a shape if jobs were gone, for one of its parts; as of now.

    A node or slot takes `need` cores of a target at least, and leaves others `left` at most.
    """

    __slots__ = ("_able", "_choices", "_pool", "_request", "left", "need")

    def __init__(self, pool: Pool, shape: Shape) -> None:
        request = self._request = shape.request
        self._pool = pool
        choices = self._choices = choices_of(pool, request, pool.narrowed.get(shape.number))
        if not choices:
            need = need_of(request, request.slots.min if request.nodes is not None else 1)
            choices = (PartChoice(need, pool.choice_of(shape)),)
        self._able = [(each, need) for need, able in choices for each in able if need.fits_ever(each.targets)]
        cores = [(each.targets.cores, need.on(each.targets)[0]) for each, need in self._able]
        self.need = min([mine for _, mine in cores], default=0)
        self.left = max([there - mine for there, mine in cores], default=0)

    def at(self, rank: int) -> Opening | None:
        """Return what has to be freed on a target; None if the shape fits there already, or could not at all."""
        at, bit = rank >> WORD_SHIFT, 1 << (rank & LOW_BITS)
        suiting = self._suiting(at, bit)
        if suiting is None or not self._pool.is_up(rank):
            return None
        request, (targets, need) = self._request, suiting
        cores, gpus = targets.free_ids(rank)
        amounts = targets.free_amounts(rank) if targets.countables else ()
        if request.nodes is None and not request.exclusive:
            slots = slots_on(request, cores.bit_count(), gpus.bit_count(), amounts) + 1
            if slots > slots_of_idle(request, targets):
                return None
            need = need_of(request, slots)
        need_cores, need_gpus = need.on(targets)
        opening = Opening(cores, gpus, amounts, need_cores, need_gpus, need.amounts_on(targets))
        return None if opening.fits else opening

    def able(self) -> list[dict[int, int]]:
        """Return the usable targets that could hold a node, word by word; of several parts, of each, the scarcest
        first.
        """
        if self._choices:
            return [dict(words_of(mask)) for _, mask in scarcest_first(self._pool, self._choices)]
        found: dict[int, int] = {}
        for candidates, _ in self._able:
            targets, _, only, _ = candidates
            for at, word in targets.members.words.items():
                found[at] = found.get(at, 0) | (word if only is None else word & only.at(at))
        return [{at: word & ~self._pool.down_words.get(at, 0) for at, word in found.items()}]

    def lacking_parts(self) -> LackingParts:
        """Return the shortage of a request of several parts; empty if there is one part."""
        return LackingParts(self._pool, self._choices, [part.least_nodes for part in self._request.parts])

    def opened(self, ranks: Iterable[int]) -> list[int]:
        """Return the targets among these on which nothing more needs to be freed, or would be of use."""
        return [rank for rank in ranks if self.at(rank) is None]

    def _suiting(self, at: int, bit: int) -> tuple[TargetClass, Need] | None:
        """Return the class of a target, and the need of a part on it; None if it suits none."""
        for candidates, need in self._able:
            targets, _, only, _ = candidates
            if targets.members.at(at) & bit and (only is None or only.at(at) & bit):
                return targets, need
        return None


def enough(there: Amounts, need: Amounts) -> bool:
    """Return whether the amount of each kind is as much as needed."""
    if not need:
        return True
    have = dict(there)
    return all(have.get(kind, 0) >= amount for kind, amount in need)


# ---- lacking parts


def scarcest_first(pool: Pool, choices: Sequence[PartChoice]) -> list[tuple[int, int]]:
    """Return the parts, by number, each with the mask of the usable targets that could suit it."""
    down = pool.down.mask
    able = [mask & ~down for mask in suited_ever(choices)]
    return sorted(enumerate(able), key=lambda each: each[1].bit_count())


class LackingParts:
    """Shortage of several parts as targets are freed; `needs` are their minima. No part counts before `next_part`."""

    __slots__ = ("_able", "_came", "_free", "_hall", "_lacking", "_needs", "_order", "_sure")

    def __init__(self, pool: Pool, choices: Sequence[PartChoice], needs: Sequence[int]) -> None:
        free = by_suited(suited_now([offers(choice, FIRST_FIT) for choice in choices]))
        self._needs = needs
        self._hall = Hall({some: mask.bit_count() for some, mask in free.items()}, [0] * len(needs))
        self._free = 0
        for mask in free.values():
            self._free |= mask
        self._able = scarcest_first(pool, choices)
        self._order = [part for part, _ in reversed(self._able)]
        self._lacking: tuple[int, ...] = ()
        self._came: dict[int, int] = {}  # free, and not counted yet: how many suit which parts
        self._sure = 0  # so many may come free before other parts could be those that lack most

    @property
    def lacks(self) -> bool:
        """Return whether the parts that count cannot all be placed yet."""
        return bool(self._lacking)

    def next_part(self) -> bool:
        """Count one more part; return False if all count already."""
        if not self._order:
            return False
        part = self._order.pop()
        self._hall.needs[part] = self._needs[part]
        self._look()
        return True

    def helps(self, ranks: Iterable[int]) -> bool:
        """Return whether these targets, if freed, would suit a part that lacks some."""
        lacking = self._lacking
        return any(mask >> rank & 1 and part in lacking for rank in ranks for part, mask in self._able)

    def came_free(self, ranks: Iterable[int]) -> None:
        """Record that these targets hold nothing any more."""
        for rank in ranks:
            if self._free >> rank & 1:
                continue
            self._free |= 1 << rank
            suited = sum([1 << part for part, mask in self._able if mask >> rank & 1])
            self._came[suited] = self._came.get(suited, 0) + 1
            self._sure -= 1
        if self._sure <= 0:
            self._look()

    def _look(self) -> None:
        for suited, count in self._came.items():
            self._hall.take(suited, -count)
        self._came.clear()
        short = self._hall.shortfall()
        self._lacking = () if short is None else short.parts
        self._sure = 0 if short is None else self._hall.lead(short)

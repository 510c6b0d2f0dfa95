"""Search for the targets that running elastic jobs release so that a pending job can start: extras.

Law: of targets that could hold a node (or slot) of the job those go first where least work is lost (usage by the time
for which the job has them), the lower rank at a tie, until the job fits. A part goes down to values of its range only,
so that several targets may go together. What is not needed is spared, the first chosen first. Several parts of a job
are looked at one after the other (`lacking_parts`). If that does not suffice for a job with a bound on hops, the
search is repeated under each switch alone that may hold it; targets elsewhere are then not released.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from math import inf, nextafter
from operator import itemgetter
from typing import Final, Protocol

from fluxsched.core.idset import Idset
from fluxsched.sched.fair.accounts import Account
from fluxsched.sched.ledger import ElasticPart, Extras, JobAllocation
from fluxsched.sched.pool.bitset import WORD_SHIFT, ids_of, words_of
from fluxsched.sched.pool.placement import Block, Fits, HeldBlocks, Shape
from fluxsched.sched.preemption import Leaving, Preemptions, WhatIfPreempted

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
        """Return the least number of leading releases that have `count` targets; all that may be released if too few.
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

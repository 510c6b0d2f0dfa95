"""The first instant at which all parts of a request could fit, if jobs end by their limits and nothing is reserved.

Law: exact without reservations, and with them no later than the truth, so a plan that has some tries from there on.
Targets that are whole only become more as jobs end, so the instant is found by halving, with Hall's theorem at each
step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf, nextafter

from fluxsched.sched.pool.bitset import LOW_BITS, WORD_SHIFT, Bits
from fluxsched.sched.pool.parts.hall import Hall, by_suited
from fluxsched.sched.pool.parts.placing import nodes_of
from fluxsched.sched.pool.parts.suited import choices_of, offers, suited_ever, suited_now
from fluxsched.sched.pool.placement import FIRST_FIT
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.shape import Shape


def soonest(pool: Pool, idle_times: Sequence[tuple[float, int, int]], shape: Shape, now_s: float) -> float:
    """When the parts can all have their minima; `inf` if not before jobs without an end are gone.

    `idle_times` are triples of an instant, 1, and the rank of a target that is whole from then on, ascending.
    """
    needs = [count.min for count in nodes_of(shape.request)]
    choices = choices_of(pool, shape.request, pool.narrowed.get(shape.number))
    now = Counter(_counts(suited_now([offers(choice, FIRST_FIT) for choice in choices])))

    def fits(later: Counter[int]) -> bool:
        return Hall(now + later, needs).shortfall() is None

    if fits(Counter()):
        return now_s
    up = ~pool.down.mask
    ever = [Bits.of(mask & up) for mask in suited_ever(choices)]
    suited = [_parts_at(ever, rank) for _, _, rank in idle_times]
    if not fits(_some(suited)):
        return inf
    first, last = 0, len(suited)  # too few by the first, enough by the last
    while last - first > 1:
        middle = (first + last) >> 1
        if fits(_some(suited[:middle])):
            last = middle
        else:
            first = middle
    return max(idle_times[last - 1][0], nextafter(now_s, inf))


def _counts(masks: Sequence[int]) -> Mapping[int, int]:
    return {some: mask.bit_count() for some, mask in by_suited(masks).items()}


def _some(suited: Sequence[int]) -> Counter[int]:
    """How many suit which parts, without those that suit none."""
    found = Counter(suited)
    found.pop(0, None)
    return found


def _parts_at(masks: Sequence[Bits], rank: int) -> int:
    """Which parts a target suits."""
    at, id, found = rank >> WORD_SHIFT, rank & LOW_BITS, 0
    for part, mask in enumerate(masks):
        found |= (mask.words.get(at, 0) >> id & 1) << part
    return found

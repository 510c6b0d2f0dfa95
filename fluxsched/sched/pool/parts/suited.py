"""Which targets of a pool suit which part of a request: ever, and now.

Law: a part has whole targets, so one suits it now if all that it has is free. Masks have a bit a rank; they are made of
the words of levels, in a time that grows with the words of the group and not with its jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from fluxsched.core.constraint import Constraint
from fluxsched.core.jobspec import Request
from fluxsched.core.rfields import ONE_PART
from fluxsched.sched.pool.bitset import Bits, mask_of
from fluxsched.sched.pool.choice import Candidates, Narrowed, PartChoice, need_of, restricted
from fluxsched.sched.pool.placement import BEST_FIT, LEAST_LOST, LIKE, WORST_FIT
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.pool.target_class import TargetClass

ANY_RANK: Final = -1
"""The mask of all ranks."""


class IdleTargets(NamedTuple):
    """Idle targets of one class that suit a part, and where they come in the order of a placement."""

    order: tuple[int, int, int]
    targets: TargetClass
    mask: int


def choices_of(pool: Pool, request: Request, narrowed: Narrowed | None) -> tuple[PartChoice, ...]:
    """For each part what it may choose from; `narrowed` is what plugins leave."""
    found = []
    for part in request.parts:
        need, choice = need_of(part, part.slots.min), pool.choice(_constraint(pool, part))
        if narrowed is not None:
            choice = restricted(choice, narrowed.ranks, narrowed.scores)
        found.append(PartChoice(need, tuple([each for each in choice if need.fits_ever(each.targets)])))
    return tuple(found)


def _constraint(pool: Pool, part: Request) -> Constraint:
    """Return that of the part, less the targets that take no parts."""
    if ONE_PART not in pool.source.properties:
        return part.constraint
    elsewhere = {"not": [{"properties": [ONE_PART]}]}
    return Constraint.parse({"and": [*filter(None, [part.constraint.to_json()]), elsewhere]})


def choices_ever(pool: Pool, request: Request, narrowed: Narrowed | None) -> tuple[PartChoice, ...]:
    """The same of all that there is, whatever plugins say of now."""
    if narrowed is None:
        return choices_of(pool, request, None)
    left = 0
    for each in narrowed.ever:
        left |= members_of(each)
    found = [(choice.need, restricted(choice.able, left)) for choice in choices_of(pool, request, None)]
    return tuple([PartChoice(need, able) for need, able in found])


def members_of(candidates: Candidates) -> int:
    """All their targets, whatever is free."""
    members, only = candidates.targets.members, candidates.only
    return members.mask() if only is None else members.mask() & only.mask()


def suited_ever(choices: Sequence[PartChoice]) -> list[int]:
    """For each part the targets that have what it needs, up or down, busy or free."""
    return [_union([members_of(each) for each in choice.able]) for choice in choices]


def offers(choice: PartChoice, placement: str, among: int = ANY_RANK) -> list[IdleTargets]:
    """The idle targets for a part, class by class, those in `among`."""
    placement = LIKE.get(placement, placement)
    found = []
    for targets, _, only, score in choice.able:
        mask = _idle(targets, only) & among
        if mask:
            first, second = _place(targets, placement)
            found.append(IdleTargets((-score, first, second), targets, mask))
    return found


def suited_now(all_offers: Sequence[Sequence[IdleTargets]]) -> list[int]:
    """For each part the targets that it is offered."""
    return [_union([offer.mask for offer in some]) for some in all_offers]


def _union(masks: Sequence[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _place(targets: TargetClass, placement: str) -> tuple[int, int]:
    if placement == BEST_FIT:
        return targets.gpus, targets.cores
    if placement == LEAST_LOST:
        return targets.lost.of(targets.cores, targets.gpus, targets.amounts), 0
    return (-targets.cores, targets.gpus) if placement == WORST_FIT else (0, 0)


def _idle(targets: TargetClass, only: Bits | None) -> int:
    """The usable targets of a class of which nothing is taken."""
    level = targets.index.level(targets.cores, targets.gpus)
    words = {at: word if only is None else word & only.words.get(at, 0) for at, word in level.filled()}
    for kind, amount in targets.amounts:
        countable = targets.countables[kind]
        words = {at: countable.enough(at, word, amount) for at, word in words.items()}
    return mask_of(words) if words else 0

"""Where a request goes: counts what is free, decides how much of a range to grant, then picks targets in order.

Law: nothing is changed here. A request for one target looks at one small mask per GPU count, one summary and one word;
one for many moves over words, 512 targets at a time, and begins only when the buckets hold enough of them. Ranges: as
many slots a node as still leave enough nodes, then as many nodes (or slots) as are free. A target gets as many slots as
fit on it, so a job touches few. Exclusive requests take idle targets whole.
"""

from __future__ import annotations

from fluxsched.core.jobspec import Count, Request
from fluxsched.sched.pool import reasons
from fluxsched.sched.pool.bitset import BITS, lowest
from fluxsched.sched.pool.choice import Plan, Wish, need_of, slots_of_idle
from fluxsched.sched.pool.free_index import BEST_FIT, WORST_FIT
from fluxsched.sched.pool.placement import Block, Fits, Infeasible, Insufficient, Outcome, shared_block
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.pool.select import Given, count, count_slots, nodes_of, slots_of
from fluxsched.sched.pool.target_class import Shelf

WISHES_MAX = 4096
"""Requests that are remembered in a generation, with all that can be worked out about them beforehand; 1 KiB each."""



def place(pool: Pool, request: Request, placement: str) -> Outcome:
    """What the request comes to on what is free now, in the order of `placement` (one of shelf.PLACEMENTS)."""
    fit = find(pool, request, placement)
    if fit is not None:
        return fit
    never = infeasible(pool, request)
    if never is not None:
        return Infeasible(never)
    plan = pool.plan(request.constraint)
    if lacking := pool.shared.lacking(request.shared):
        return Insufficient(reasons.lacking_now(request, lacking))
    return Insufficient(reasons.insufficient(pool, plan, request, _found(plan, request)))


def find(pool: Pool, request: Request, placement: str, given: Given | None = None) -> Fits | None:
    """Where the request fits now, or None. What is in `given` is chosen before all else."""
    try:
        wish = pool.wishes[id(request)]  # the wish holds the request, so nobody else has its id
    except KeyError:
        wish = _wish(pool, request)
    _, _, rack, best, worst, need_cores, need_gpus, nslots, first_cores, first_gpus, whole, targets = wish
    if rack is None or given is not None:
        if whole is not None and given is None:
            return _idle(request, whole, targets, nslots)
        return _search(pool, wish, placement, given)
    while True:
        if placement == BEST_FIT:
            some, order = rack.best & best, rack.by_best
        elif placement == WORST_FIT:
            some, order = (rack.spread() if rack.worst is None else rack.worst) & worst, rack.by_worst
        else:
            at, word = rack.first(best)
            if word:
                break
            return None
        if not some:
            return None
        bucket = order[some.bit_length()]
        top = bucket.top
        at = (top & -top).bit_length() - 1
        word = bucket.words[at]
        if word:
            break
        bucket.end(at)
    lowest_id = (word & -word).bit_length() - 1
    rest = pool.rests[at][lowest_id]
    if rest is None:  # it is idle
        return _fits(Fits, (request, ((at, BITS[lowest_id], first_cores, first_gpus, ()),), nslots))
    cores, gpus, bucket = rest
    if need_cores != bucket.cores:
        cores = cores & -cores if need_cores == 1 else lowest(cores, need_cores)
    if need_gpus != bucket.gpus:
        gpus = gpus & -gpus if need_gpus == 1 else lowest(gpus, need_gpus)
    return _fits(Fits, (request, ((at, BITS[lowest_id], cores, gpus, ()),), nslots))


_fits = tuple.__new__  # what the constructor of a NamedTuple calls: half its cost, once an allocation


def infeasible(pool: Pool, request: Request) -> str | None:
    """Why the request can never fit on what the pool counts, up or down, busy or free; None if it can (law 10)."""
    return shortage(pool, request)[1]


def shortage(pool: Pool, request: Request) -> tuple[int | None, str | None]:
    """How many nodes (or slots) of the pool could ever hold the request, and `infeasible`.

    The number is None where what is missing is something else, which the instance has once.
    """
    plan = pool.plan(request.constraint)
    if lacking := pool.shared.lacking(request.shared, ever=True):
        return None, reasons.lacking(request, lacking)
    per_node = request.slots.min if request.nodes is not None else 1
    need = need_of(request, per_node)
    able = [choice for choice in plan if need.fits_ever(choice.shelf)]
    if request.nodes is not None:
        have, wanted = sum([choice.size for choice in able]), request.nodes.min
    else:
        have = sum([choice.size * slots_of_idle(request, choice.shelf) for choice in able])
        wanted = request.slots.min
    return have, None if have >= wanted else reasons.infeasible(plan, able, request, have)


def _found(plan: Plan, request: Request) -> int:
    """How many nodes, or slots where nodes are of no matter, fit now."""
    if request.nodes is None:
        return count_slots(plan, request)
    return count(plan, need_of(request, request.slots.min))


def _search(pool: Pool, wish: Wish, placement: str, given: Given | None) -> Fits | None:
    """The general way: any number of targets on any number of shelves, and what the instance has once."""
    request, plan = wish.request, wish.plan
    if request.shared and pool.shared.lacking(request.shared):
        return None
    if request.nodes is not None:
        fit = _by_nodes(plan, request, request.nodes, placement, given)
    else:
        fit = _by_slots(plan, request, placement, given)
    if fit is None or not request.shared:
        return fit
    return Fits(request, fit.blocks + shared_block(request.shared), fit.nslots)


def _by_slots(plan: Plan, request: Request, placement: str, given: Given | None) -> Fits | None:
    slots: int | None = request.slots.min
    if not request.slots.is_fixed or (slots != 1 and not request.amounts):
        slots = request.slots.largest(count_slots(plan, request))
    blocks = slots_of(plan, request, slots, placement, given) if slots else None
    return Fits(request, tuple(blocks), slots) if slots and blocks else None


def _idle(request: Request, shelf: Shelf, n: int, nslots: int) -> Fits | None:
    """The `n` lowest idle targets of a shelf, whole."""
    idle = shelf.idle
    if idle.count < n:
        return None
    cores, gpus = shelf.all_cores, shelf.all_gpus
    at = (idle.top & -idle.top).bit_length() - 1
    word = idle.words[at]
    if word.bit_count() >= n:  # mostly one word will do
        return _fits(Fits, (request, ((at, lowest(word, n), cores, gpus, ()),), nslots))
    blocks: list[Block] = []
    for at, word in idle.filled():
        have = word.bit_count()
        if have > n:
            word, have = lowest(word, n), n
        blocks.append((at, word, cores, gpus, ()))
        n -= have
        if not n:
            break
    return _fits(Fits, (request, tuple(blocks), nslots))


def _by_nodes(plan: Plan, request: Request, nodes: Count, placement: str, given: Given | None) -> Fits | None:
    per_node = request.slots.largest(_most_slots(plan, request))
    while per_node is not None:
        need = need_of(request, per_node)
        wanted: int | None = 1
        if nodes.max != 1:  # the first one that fits is found without counting
            wanted = nodes.largest(count(plan, need))
        blocks = nodes_of(plan, need, wanted, placement, given) if wanted else None
        if wanted and blocks:
            return Fits(request, tuple(blocks), wanted * per_node)
        per_node = request.slots.largest(per_node - 1)
    return None


def _most_slots(plan: Plan, request: Request) -> int:
    """The most slots that a node of the plan could ever hold; bounds the slots a node that are tried."""
    if request.slots.is_fixed:
        return request.slots.min
    return max([slots_of_idle(request, choice.shelf) for choice in plan], default=0)


def _wish(pool: Pool, request: Request) -> Wish:
    """Works out once what each placing of a request needs."""
    if len(pool.wishes) >= WISHES_MAX:
        pool.wishes.clear()
    plan = pool.plan(request.constraint)
    wish = Wish(request, plan)
    if request.slots.is_fixed and not request.shared and len(plan) == 1 and plan[0].only is None:
        wish = _wish_on(wish, plan[0].shelf, plan[0].size)
    pool.wishes[id(request)] = wish
    return wish


def _wish_on(wish: Wish, shelf: Shelf, size: int) -> Wish:
    """What a wish is worth that can stand on one whole shelf, of `size` targets, only."""
    request = wish.request
    slots, nodes = request.slots.min, request.nodes
    is_alone = nodes.max == 1 if nodes is not None else slots == 1 or size == 1
    nslots = slots if is_alone or nodes is not None else 1
    need = need_of(request, nslots)
    cores, gpus = need.on(shelf)
    if not need.fits_ever(shelf) or need.amounts_on(shelf):
        return wish
    if is_alone:
        ids = (0, 0) if shelf.mixed else (lowest(shelf.all_cores, cores), lowest(shelf.all_gpus, gpus))
        return Wish(request, wish.plan, shelf.rack, *shelf.rack.fitting(cores, gpus), cores, gpus, nslots, *ids)
    whole = (cores, gpus) == (shelf.cores, shelf.gpus) and not shelf.mixed
    if nodes is None:
        return wish._replace(whole=shelf, targets=slots, nslots=slots) if whole and request.cores == cores else wish
    if nodes.is_fixed and whole:
        return wish._replace(whole=shelf, targets=nodes.min, nslots=nodes.min * nslots)
    return wish

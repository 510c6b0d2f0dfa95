"""What must hold of a ledger at any time (law 5): asserted in tests and the simulator, refused where a peer says else.

Law: free and held are all there is, and nothing is both or held twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

from fluxsched.core.amounts import Amounts, less, total
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import RemoteProtocolError
from fluxsched.sched.holdings.holding import Holding, amounts_held
from fluxsched.sched.pool.bitset import WORD_SHIFT
from fluxsched.sched.pool.placement import NO_TARGET, Part, instance_amounts, parts_in, ranks_in
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.quotas.tree import QueueTree

NOTHING: Final = Part(NO_TARGET, 0, 0)
"""What is held of a target that no job has."""


def check_held(
    holdings: Mapping[int, Holding],
    pools: Sequence[Pool],
    by_word: Mapping[int, Set[int]],
    uncounted: Mapping[int, Set[int]],
) -> None:
    """Asserts it, linear in everything; `by_word` lists jobs by words of ranks, `uncounted` by ranks not in a pool."""
    held: dict[int, Part] = {}
    shared: Amounts = ()
    counted_ranks = EMPTY
    for pool in pools:
        counted_ranks |= pool.ranks
    for jobid, holding in holdings.items():
        shared = total(shared, instance_amounts(holding.blocks))
        _check_elastic(holding)
        for rank, cores, gpus, amounts in parts_in(holding.blocks):
            _, cores_before, gpus_before, amounts_before = held.get(rank, NOTHING)
            assert not cores & cores_before, f"job {jobid}: a core of rank {rank} is held twice"
            assert not gpus & gpus_before, f"job {jobid}: a gpu of rank {rank} is held twice"
            assert jobid in by_word.get(rank >> WORD_SHIFT, ()), f"job {jobid} is not listed"
            counted = rank in counted_ranks
            listed = jobid in uncounted.get(rank, ())
            assert counted != listed, f"rank {rank} is counted: {counted}, but listed as not counted: {listed}"
            held[rank] = Part(rank, cores | cores_before, gpus | gpus_before, total(amounts, amounts_before))
    if pools:
        used = pools[0].instance_countables.used()
        assert shared == used, f"jobs hold {shared} of the instance, {used} is booked"
    for pool in pools:
        _check_pool(pool, held)


def _check_pool(pool: Pool, held: Mapping[int, Part]) -> None:
    for rank in pool.ranks:
        target, part = pool[rank], held.get(rank, NOTHING)
        assert target.cores == target.all_cores & ~part.cores, f"rank {rank}: free and held are not its cores"
        assert target.gpus == target.all_gpus & ~part.gpus, f"rank {rank}: free and held are not its gpus"
        wrong = less(target.all_amounts, total(target.amounts, part.amounts))
        assert not wrong, f"rank {rank}: free and held are not its {wrong}"
        if rank in pool.amount_targets.by_rank:
            there = pool.amount_targets.by_rank[rank].held()
            assert there == dict(part.amounts), f"rank {rank}: jobs hold {part.amounts}, {there} is booked"
    pool.amount_targets.check()


def _check_elastic(holding: Holding) -> None:
    elastic = holding.elastic
    if elastic is None:
        return
    found = EMPTY
    for part in elastic.parts:
        assert part.ranks.isdisjoint(part.leaving), f"job {holding.jobid} is to leave what it has"
        assert found.isdisjoint(part.ranks | part.leaving), f"job {holding.jobid}: a target is of two parts"
        assert elastic.is_settled or part.size in part.nodes, f"job {holding.jobid}: {part.size} is not in {part.nodes}"
        assert part.base <= part.ranks, f"job {holding.jobid}: a minimum is to go"
        found |= part.ranks | part.leaving
    assert found == ranks_in(holding.blocks), f"job {holding.jobid} holds other targets than its parts have"
    asked = EMPTY
    for ranks in elastic.asked:
        asked |= ranks
    assert asked <= elastic.unstored <= found, f"job {holding.jobid}: {elastic.unstored} are not stored"


def check_booked(holdings: Iterable[Holding], quotas: QueueTree) -> None:
    """Asserts that a tree of queues says what jobs hold."""
    quotas.check()
    for holding in holdings:
        application = holding.application
        booked = None if application is None else application.allocations.get(holding.jobid)
        held_here = None if application is None else amounts_held(holding.blocks)
        assert booked == held_here, f"job {holding.jobid} holds {held_here}, {booked} is booked"


def is_free(pool: Pool, part: Part) -> bool:
    """Whether a pool counts all of this, and no job has it."""
    if part.rank not in pool:
        return False
    target = pool[part.rank]
    return part.cores & target.cores == part.cores and part.gpus & target.gpus == part.gpus


def check_apart(other: Holding, jobid: int, part: Part) -> None:
    """Raises RemoteProtocolError if a job that is taken over says that it has what another one holds."""
    cores, gpus = other.parts[part.rank]
    if cores & part.cores or gpus & part.gpus:
        raise RemoteProtocolError(
            f"hello: jobs {other.jobid} and {jobid} both hold rank {part.rank}, "
            f"cores {Idset(cores & part.cores)} gpus {Idset(gpus & part.gpus)}"
        )

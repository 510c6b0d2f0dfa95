"""What of a pool is taken, free or down, target by target: for people and for what-ifs."""

from __future__ import annotations

from fluxsched.core.amounts import less
from fluxsched.sched.pool.bitset import WORD_SHIFT, ids_of
from fluxsched.sched.pool.choice import Candidates
from fluxsched.sched.pool.placement import Block, Blocks, instance_amounts, instance_block
from fluxsched.sched.pool.pool import Pool


def busy(pool: Pool) -> list[Block]:
    """What is taken of every target that is not idle; linear in the group, for people."""
    found: list[Block] = []
    for at, pairs in pool.classes.by_word.items():
        for members, targets in pairs:
            busy = 0 if targets.countables else targets.busy.words.get(at, 0) & members
            if busy:
                found.append(Block(at, busy, targets.all_cores, targets.all_gpus, ()))
            for id in ids_of(members ^ busy):
                rank = at << WORD_SHIFT | id
                (all_cores, all_gpus), (cores, gpus) = targets.ids(rank), targets.free_ids(rank)
                taken = less(targets.amounts, targets.free_amounts(rank)) if targets.countables else ()
                if all_cores != cores or all_gpus != gpus:
                    found.append(Block(at, 1 << id, all_cores ^ cores, all_gpus ^ gpus, taken))
    for target in pool.amount_targets.by_rank.values():
        if held := target.held():
            found.append(Block(target.at, target.bit, 0, 0, tuple(held.items())))
    return found


def free_of(pool: Pool, blocks: Blocks) -> list[Block]:
    """What of this is free and may be used; of an amount as much as there is, up to all of it."""
    shared = [(kind, min(n, pool.instance_countables.left(kind))) for kind, n in instance_amounts(blocks)]
    found = list(instance_block(tuple([one for one in shared if one[1] > 0])))
    for at, word, _, _, amounts in blocks:
        for target in pool.amount_targets.on(at, word & ~pool.down_words.get(at, 0)):
            if left_there := target.free_of(amounts):
                found.append(Block(at, target.bit, 0, 0, left_there))
    for targets, at, word, cores, gpus, amounts in pool.classes.counted(blocks):
        idle = word & targets.idle.words.get(at, 0) if not amounts else 0
        if idle:
            found.append(Block(at, idle, cores, gpus, amounts))
        for id in ids_of((word ^ idle) & ~pool.down_words.get(at, 0)):
            rank = at << WORD_SHIFT | id
            free_cores, free_gpus = targets.free_ids(rank)
            left = [(kind, min(n, targets.countables[kind].left(rank))) for kind, n in amounts]
            mine = tuple([one for one in left if one[1]])
            if free_cores & cores or free_gpus & gpus or mine:
                found.append(Block(at, 1 << id, free_cores & cores, free_gpus & gpus, mine))
    return found


def down_in(pool: Pool, candidates: Candidates) -> int:
    """How many targets of a candidates are down; linear in the words with such targets."""
    members, only = candidates.targets.members.words, candidates.only
    return sum(
        (word & members.get(at, 0) & (word if only is None else only.words.get(at, 0))).bit_count()
        for at, word in pool.down_words.items()
    )

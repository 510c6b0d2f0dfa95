"""What one job holds, and what can be said of blocks that are held."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from fluxsched.core.amounts import Amounts, less, times, total
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import RemoteProtocolError
from fluxsched.sched.accounts.tree import Account
from fluxsched.sched.holdings.elastic import Elastic
from fluxsched.sched.pool.bitset import mask_of, words_of
from fluxsched.sched.pool.placement import NO_TARGET, Block, Blocks, joined, on_targets, parts_in
from fluxsched.sched.quotas.queue import PLAIN, Application, AskOptions


class Holding:
    """What one job holds, since `started_s`. Times are wall time in seconds, `expiration_s` 0.0 for none.

    `account` is None unless a policy asks for accounts; `preemptible_after_s` is None if the job may not be preempted.
    `elastic` is None unless the job may change its size.
    """

    __slots__ = (
        "account",
        "application",
        "blocks",
        "elastic",
        "expiration_s",
        "gone_by_s",
        "jobid",
        "must_end",
        "name",
        "options",
        "preemptible_after_s",
        "priority",
        "queue",
        "started_s",
        "userid",
    )  # fmt: skip

    def __init__(
        self,
        jobid: int,
        blocks: Blocks,
        expiration_s: float,
        started_s: float = 0.0,
        account: Account | None = None,
        preemptible_after_s: float | None = None,
    ) -> None:
        self.jobid = jobid
        self.blocks = blocks
        self.expiration_s = expiration_s
        self.started_s = started_s
        self.account = account
        self.preemptible_after_s = preemptible_after_s
        self.application: Application | None = None  # in a tree of queues
        self.options: AskOptions = PLAIN
        self.priority = 0  # what it asked with, in such a tree
        self.elastic: Elastic | None = None
        self.userid = 0
        self.queue = self.name = ""
        self.must_end = False  # on a shrunk target: a fatal exception was raised on the job
        self.gone_by_s = inf  # it was preempted, and is killed then

    @property
    def end_s(self) -> float:
        """When plans take it to end (wall time, seconds; inf if that is not known)."""
        return min(self.expiration_s or inf, self.gone_by_s)

    @property
    def is_ending(self) -> bool:
        """Whether all of it is to go."""
        return self.must_end or self.gone_by_s < inf

    @property
    def parts(self) -> dict[int, tuple[int, int]]:
        """Rank -> (cores, GPUs) as masks; a copy, for people."""
        return {rank: (cores, gpus) for rank, cores, gpus, _ in sorted(parts_in(self.blocks))}

    @property
    def leaving(self) -> Idset:
        """The targets that it is to leave, while the job itself goes on."""
        return EMPTY if self.elastic is None else self.elastic.leaving

    @property
    def staying(self) -> Blocks:
        """What of it is not on targets that it is to leave."""
        leaving = self.leaving
        return without_ranks(self.blocks, leaving) if leaving else self.blocks

    def on_ranks(self, ranks: Idset) -> Blocks:
        """What of it is on these targets."""
        return tuple(self.on(dict(words_of(ranks.mask))))

    def on(self, words: dict[int, int]) -> Iterator[Block]:
        """What of it is on these targets."""
        for at, word, cores, gpus, amounts in self.blocks:
            if mine := word & words.get(at, 0):
                yield Block(at, mine, cores, gpus, amounts)


def amounts_held(blocks: Blocks) -> Amounts:
    """All amounts in these blocks."""
    if len(blocks) == 1 and not blocks[0].word & (blocks[0].word - 1):
        return blocks[0].amounts
    found: Amounts = ()
    for _, word, _, _, amounts in blocks:
        found = total(found, times(amounts, word.bit_count() or 1))
    return found


def without_ranks(blocks: Blocks, ranks: Idset) -> Blocks:
    """What of these is not on these targets."""
    words = dict(words_of(ranks.mask))
    found = [block._replace(word=block.word & ~words.get(block.at, 0)) for block in blocks]
    return tuple([block for block in found if block.word or block.at == NO_TARGET])


def covers(blocks: Blocks, part: Blocks) -> bool:
    """Whether this much is held on the one target of a part."""
    if len(blocks) != 1 or len(part) != 1 or blocks[0][:2] != part[0][:2]:
        return False
    return not less(part[0].amounts, blocks[0].amounts)


def once_each(blocks: Blocks) -> bool:
    """Whether no target is named twice."""
    words: dict[int, int] = {}
    for at, word, *_ in blocks:
        before = words.get(at, 0)
        if before & word:
            return False
        words[at] = before | word
    return True


def without(holding: Holding, blocks: Blocks) -> Blocks:
    """What is left when these are freed. Raises RemoteProtocolError naming the ranks that are not held like that."""
    blocks_held = joined(on_targets(holding.blocks))
    held = {(at, cores, gpus, amounts): word for at, word, cores, gpus, amounts in blocks_held}
    wrong: dict[int, int] = {}
    for at, word, cores, gpus, amounts in blocks:
        have = held.get((at, cores, gpus, amounts), 0)
        if word & ~have:
            wrong[at] = wrong.get(at, 0) | word & ~have
        held[at, cores, gpus, amounts] = have & ~word
    if wrong:
        ranks = Idset(mask_of(wrong))
        raise RemoteProtocolError(f"free of job {holding.jobid}: it does not hold this on ranks {ranks}")
    return tuple([Block(at, word, cores, gpus, amounts) for (at, cores, gpus, amounts), word in held.items() if word])

"""`Predicates` and `PreemptionPredicates` of an in-process resource manager, as the plugin `predicates`.

Law: what a callback raises is its refusal of that node, in its own words, and of nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from fluxsched.adapters.si.machine.answers.items import REASON_CHARS_MAX
from fluxsched.adapters.si.messages import PredicatesArgs, PreemptionPredicatesArgs
from fluxsched.sched.hooks.api import PASS, JobSeen, Later, Option, Pass
from fluxsched.sched.queue import Waiting


class Predicates:
    """A plugin that asks a callback about the node that was chosen for an ask.

    `key_of` gives the allocation key of a job, `node_of` the nodeID of a rank.
    """

    name: ClassVar[str] = "predicates"
    OPTIONS: ClassVar[Mapping[str, Option]] = {}
    READS: ClassVar[Sequence[str]] = ()

    def __init__(self, callback: Any, key_of: Callable[[int], str], node_of: Callable[[int], str]) -> None:
        self._callback = callback
        self._key_of = key_of
        self._node_of = node_of

    def look(self, job: JobSeen, rank: int) -> Pass | Later:
        """Return whether the ask may be allocated on the node of a rank."""
        why = self.refusal(job.jobid, rank, is_allocation=True)
        return PASS if why is None else Later(why)

    def allows_reservation(self, job: Waiting, rank: int) -> bool:
        """Return whether the node of a rank may be kept for the ask."""
        return self.refusal(job.jobid, rank, is_allocation=False) is None

    def refusal(self, jobid: int, rank: int, is_allocation: bool) -> str | None:
        """Why an ask may not be allocated on a node, or not reserve it; None if it may, or if that is not asked."""
        ask = getattr(self._callback, "Predicates", None)
        if ask is None:
            return None
        args = PredicatesArgs(allocationKey=self._key_of(jobid), nodeID=self._node_of(rank), allocate=is_allocation)
        try:
            ask(args)
        except Exception as fault:
            return str(fault)[:REASON_CHARS_MAX] or type(fault).__name__
        return None

    def last_to_go(self, jobid: int, rank: int, keys: Sequence[str], start_index: int) -> int | None:
        """The index of the last of the allocations `keys` that has to go before an ask can run on a node.

        `start_index` is that of the last that frees enough, which is the answer where the callback is not asked; None
        if none of them helps.
        """
        ask = getattr(self._callback, "PreemptionPredicates", None)
        if ask is None:
            return start_index
        args = PreemptionPredicatesArgs(
            allocationKey=self._key_of(jobid),
            nodeID=self._node_of(rank),
            preemptAllocationKeys=keys,
            startIndex=start_index,
        )
        try:
            answer = ask(args)
        except Exception:
            return None
        if not answer.success or not start_index <= answer.index < len(keys):
            return None
        return int(answer.index)

"""Nodes for asks that fit nowhere: which ask gets which, and when to look again.

Law: only what has failed in this generation for lack of a node is looked at, in the order in which it failed, so that
those whose turn is sooner reserve first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import TypeAlias

from fluxsched.sched.policy import Asks, Decision, View, Waiting, Wake, Withhold

RESERVE_AFTER_S = 2.0
"""How long an ask waits until a node is kept for it."""

SEARCHES_A_PASS = 4
"""Different asks for which a pass looks at all nodes: some milliseconds each, at 5,000."""

LINES_A_PASS = 256
"""Lines of asks without a node that a pass looks at."""

LOOK_AGAIN_S = 0.1
"""When the next ones follow."""


REFUSALS_A_PASS = 64
"""Nodes that may be refused in a pass, each by a callback; then no more are reserved in it."""

MayReserve: TypeAlias = Callable[[Waiting, int], bool]
"""(ask, rank) -> whether the node may be kept for it."""


class _Nodes:
    """Which node is the next for an ask, looked up once for all that ask for the same."""

    __slots__ = ("_by_shape", "_may_reserve", "_refusals", "_view", "searches")

    def __init__(self, view: View, may_reserve: MayReserve | None) -> None:
        self._view = view
        self._may_reserve = may_reserve
        self._by_shape: dict[int, Iterator[int]] = {}
        self._refusals = 0
        self.searches = 0

    def next(self, job: Waiting) -> int | None:
        node = job.options.node
        if node is not None:
            return node if self._may_have(job, node) else None
        nodes = self._by_shape.get(job.shape.number)
        if nodes is None:
            self.searches += 1
            nodes = self._by_shape[job.shape.number] = iter(self._view.reserved_nodes.best_first(job))
        return next((rank for rank in nodes if self._may_have(job, rank)), None)

    def _may_have(self, job: Waiting, rank: int) -> bool:
        if self._refusals >= REFUSALS_A_PASS or not self._view.reserved_nodes.may_reserve(rank):
            return False
        if self._may_reserve is None or self._may_reserve(job, rank):
            return True
        self._refusals += 1
        return False


def reservations(
    view: View, asks: Asks, now_s: float, may_reserve: MayReserve | None = None
) -> Iterator[Decision]:
    """Reserves nodes for those that wait long enough, and asks for a pass when the next ones do."""
    reserved, nodes, looked_at = view.reserved_nodes, _Nodes(view, may_reserve), 0
    wake_s = inf
    for line in asks.lacking_nodes():
        if looked_at >= LINES_A_PASS or reserved.all_taken:
            break
        if nodes.searches >= SEARCHES_A_PASS:
            wake_s = min(wake_s, now_s + LOOK_AGAIN_S)
            break
        missed = False
        for job in line.in_order():
            if job.jobid in reserved.by_job:
                continue
            due_s = now_s if line.node is not None else job.t_submit_s + RESERVE_AFTER_S
            missed = True
            if due_s > now_s:
                wake_s = min(wake_s, due_s)
                break
            rank = nodes.next(job)
            if rank is None:
                break
            yield Withhold(job.jobid, rank)
        looked_at += missed
    wake_s = min(wake_s, reserved.next_s)
    if wake_s < inf:
        yield Wake(wake_s)

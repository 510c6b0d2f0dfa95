"""The order that a plugin gives to the jobs of a queue (`queue_sort`), in place of priority and time of submission.

Law: tuples of one queue always compare: those of its first job settle how many items there are, and of which kinds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import isnan
from typing import Any

from fluxsched.errors import InvalidValue
from fluxsched.sched.hooks.api import JobSeen
from fluxsched.sched.hooks.chain import Chain, PluginFault, ask, wrong

SORT_ITEMS_MAX = 8
"""Of the tuple of a job."""


class Sorts:
    """The tuples of all queues of a scheduler."""

    def __init__(self, chains: Mapping[str, Chain]) -> None:
        self._chains = chains
        self._kinds: dict[str, tuple[type, ...]] = {}

    def check(self, queues: Collection[str], is_alone: bool) -> None:
        """Raises InvalidValue where only some jobs of a policy's queue would have a tuple.

        `queues` of a group have policies of their own; `is_alone` if there is one group, which has all others then.
        """
        shared = [scope for scope in self._chains if scope and scope not in queues] if is_alone else []
        for scope in shared:
            sort = self._chains[scope].sort
            if sort is not None:
                raise InvalidValue(
                    f"plugin {sort[0]!r} of queue {scope!r} has queue_sort, but that queue shares its order with "
                    "others: give it a policy of its own, or give the plugin to all"
                )
        general = self._chains.get("")
        if general is not None and general.sort is not None and shared:
            raise InvalidValue(
                f"plugin {general.sort[0]!r} of all queues has queue_sort, but queue {shared[0]!r} shares their order "
                "and has plugins of its own: give it a policy of its own"
            )

    def of(self, job: JobSeen) -> tuple[Any, ...] | PluginFault:
        """The tuple of a job, empty if no plugin sorts; checked to compare with those of all others."""
        scope = job.shape.scope or ""
        sort = self._chains[scope].sort
        if sort is None:
            return ()
        name, method = sort
        found = ask(name, method, job)
        if isinstance(found, PluginFault):
            return found
        allowed = f"a tuple of 1 to {SORT_ITEMS_MAX} numbers and texts, of the same kinds for all jobs"
        if not isinstance(found, tuple) or not 0 < len(found) <= SORT_ITEMS_MAX:
            return wrong(name, "queue_sort", found, allowed)
        kinds = tuple([_kind(one) for one in found])
        if not all(kind in (float, str) for kind in kinds) or self._kinds.setdefault(scope, kinds) != kinds:
            return wrong(name, "queue_sort", found, allowed)
        return found


def _kind(one: object) -> type:
    """That of all numbers is float, but for nan, which compares with none."""
    if isinstance(one, float) and isnan(one):
        return type(None)
    return float if isinstance(one, (int, float)) else type(one)

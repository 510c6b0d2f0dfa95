"""Limits of a site as a scheduler obeys them: a plugin of its own, before all others, of every queue.

Law: what a job gets is booked before it is committed, or it does not start; what ran before is a fact. The scheduler
counts the jobs of the groups that it serves, each with what it has now, so an elastic job grows as far as its limits
allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from fluxsched.core.limits import NOTHING, Holder, SiteLimit, least_amounts
from fluxsched.sched.hooks.api import PASS, SKIP, Fits, GroupSeen, JobSeen, Later, Option, Pass, Plugin, Shape, Skip
from fluxsched.sched.ledger import SizeRule
from fluxsched.sched.pool.placement import Blocks, parts_in

_Held = tuple[int, ...]
_Key = tuple[int, Holder]


class RunningLimits(SizeRule):
    """Record of what the holders of each limit have, which says what they may start."""

    name: ClassVar[str] = "limits"
    READS: ClassVar[Sequence[str]] = ("bank", "queue", "user")
    OPTIONS: ClassVar[Mapping[str, Option]] = {}

    def __init__(self, limits: Sequence[SiteLimit]) -> None:
        self._limits = tuple(limits)
        self._held: dict[_Key, _Held] = {}
        self._jobs: dict[int, tuple[list[_Key], _Held]] = {}
        self.generation = 0

    def pre_filter(self, shape: Shape, group: GroupSeen) -> Pass | Skip | Later:
        """Return whether one more job of the shape would exceed a limit; SKIP where none is about it."""
        keys = self._keys(shape)
        if not keys:
            return SKIP
        text = self._exceeded(keys, least_amounts(shape.request))
        return PASS if text is None else Later(text)

    def reserve(self, job: JobSeen, fit: Fits) -> Pass | Later:
        """Book what the job gets, which may be more than it asks for."""
        keys, amounts = self._keys(job.shape), _amounts(fit.blocks)
        text = self._exceeded(keys, amounts)
        if text is not None:
            return Later(text)
        self._book(job.jobid, keys, amounts)
        return PASS

    def unreserve(self, job: JobSeen, fit: Fits) -> None:
        """Record that the job has not started."""
        self._free(job.jobid)

    def post_bind(self, job: JobSeen, fit: Fits) -> None:
        """Book a job that ran before this scheduler started, whatever it exceeds."""
        if job.adopted:
            self._book(job.jobid, self._keys(job.shape), _amounts(fit.blocks))

    def on_free(self, job: JobSeen, fit: Fits) -> None:
        """Record that the job holds nothing any more."""
        self._free(job.jobid)

    def refuses_extras(self, fit: Fits) -> bool:
        """See `SizeRule`."""
        return self._exceeded(self._keys(fit.shape), _amounts(fit.blocks)) is not None

    def refuses_grow(self, jobid: int, fit: Fits) -> str:
        """See `SizeRule`; the job counts as running already."""
        keys, _ = self._jobs.get(jobid, ([], NOTHING))
        return self._exceeded(keys, (0, *_amounts(fit.blocks)[1:])) or ""

    def resized(self, jobid: int, blocks: Blocks) -> None:
        """Book what a job has after it has grown, or given something back."""
        keys, before = self._jobs.get(jobid, ([], NOTHING))
        after = _amounts(blocks)
        if keys and after != before:
            self._free(jobid)
            self._book(jobid, keys, after)

    def _keys(self, shape: Shape) -> list[_Key]:
        user, bank, queue = shape.label("user"), shape.label("bank"), shape.label("queue")
        found: list[_Key] = []
        for at, limit in enumerate(self._limits):
            holder = limit.holder(user, bank, queue)
            if holder is not None:
                found.append((at, holder))
        return found

    def _exceeded(self, keys: Sequence[_Key], amounts: _Held) -> str | None:
        for key in keys:
            text = self._limits[key[0]].exceeded(self._held.get(key, NOTHING), amounts)
            if text is not None:
                return text
        return None

    def _book(self, jobid: int, keys: list[_Key], amounts: _Held) -> None:
        if not keys:
            return
        for key in keys:
            has = self._held.get(key, NOTHING)
            self._held[key] = tuple([one + more for one, more in zip(has, amounts, strict=True)])
        self._jobs[jobid] = (keys, amounts)
        self.generation += 1

    def _free(self, jobid: int) -> None:
        keys, amounts = self._jobs.pop(jobid, ([], NOTHING))
        for key in keys:
            left = tuple([has - less for has, less in zip(self._held[key], amounts, strict=True)])
            self._held[key] = left
            if not left[0]:
                del self._held[key]
        self.generation += bool(keys)


def _amounts(blocks: Blocks) -> _Held:
    """Return what these blocks of a job have of each of `SiteLimit.sizes`."""
    nodes = cores = gpus = 0
    for part in parts_in(blocks):
        nodes, cores, gpus = nodes + 1, cores + part.cores.bit_count(), gpus + part.gpus.bit_count()
    return (1, nodes, cores, gpus)


def with_limits(plugins: dict[str, list[Plugin]], limits: Sequence[SiteLimit]) -> dict[str, list[Plugin]]:
    """Return the plugins of each queue, by the empty name of those without plugins of their own, behind one that obeys
    these limits; they are counted over all queues.
    """
    if not limits:
        return plugins
    ours: Plugin = RunningLimits(limits)
    return {queue: [ours, *plugins.get(queue, ())] for queue in dict.fromkeys(["", *plugins])}

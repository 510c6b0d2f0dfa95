"""Compatibility with Flux's own tools and tests: debug bits of sched-simple, annotations as its others write.

Law: nothing here changes a decision. A backfilled job's annotations name the job that it overtook, an estimate that no
longer holds is removed at once, and under the names of Flux's FIFO schedulers the first waiting jobs get estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from math import inf
from typing import Any, ClassVar

from fluxsched.adapters.flux.handle import BrokerHandle
from fluxsched.core.jobid import format_f58
from fluxsched.errors import InvalidValue, Refused
from fluxsched.sched.policy import BACKFILLED, Decision, Option, Policy, Reservation, Reserve, View, needs_accounts

FAIL_ALLOC = 1
"""While set, every alloc request is denied."""
ANNOTATE_PENDING = 2
"""While set, the annotations of each waiting job say why it waits, and how many jobs are ahead of it."""
DENY_EXPIRATION = 4
"""While set, a running job's expiration cannot be changed."""

FORECAST_MAX = 8
"""Jobs that get a forecast where the policy itself plans none: it is made in every pass."""

ESTIMATE = "t_estimate"
"""The annotation with a job's estimated start (RFC 27, wall time)."""


class CompatPolicy:
    """A policy around the policy, which observes what it leaves in the queue. `planned` gives its reservations."""

    name: ClassVar[str] = "compat"
    OPTIONS: ClassVar[Mapping[str, Option]] = {}

    def __init__(
        self, handle: BrokerHandle, policy: Policy, forecast: bool, planned: Callable[[], Iterator[Reservation]]
    ) -> None:
        self.BACKFILLS = bool(getattr(policy, "BACKFILLS", False))
        self.ACCOUNTS = needs_accounts(policy)
        self.fair_overrides: Mapping[str, object] = getattr(policy, "fair_overrides", {})
        self._handle = handle
        self._policy = policy
        self._forecast = forecast
        self._planned = planned
        self._keys: dict[int, set[str]] = {}
        self._estimated: set[int] = set()
        self._left: list[int] = []

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        """The policy's own decisions, then the forecast for jobs without a reservation."""
        yield from self._policy.schedule(view, now_s)
        if self._forecast:
            planned = {kept.jobid for kept in self._planned()}
            for job in islice(view.queue, FORECAST_MAX):
                if job.jobid not in planned:
                    yield Reserve(view.plan.reserve(job), view.reason(job))
        if self._handle.debug(ANNOTATE_PENDING):
            self._left = [job.jobid for job in view.queue]

    def annotated(self, jobid: int, sched: Mapping[str, Any]) -> None:
        """A waiting job gets these annotations; null removes a key."""
        keys = self._keys.setdefault(jobid, set())
        for key, value in sched.items():
            (keys.discard if value is None else keys.add)(key)
        if ESTIMATE in sched:
            (self._estimated.discard if sched[ESTIMATE] is None else self._estimated.add)(jobid)

    def forget(self, jobid: int) -> None:
        """A job no longer waits."""
        self._keys.pop(jobid, None)
        self._estimated.discard(jobid)

    def granted(self, jobid: int, annotations: Mapping[str, Any]) -> dict[str, Any]:
        """A grant's annotations as Flux's schedulers write them: those of a waiting job are removed.

        `backfill` names the job that was overtaken.
        """
        sched = {**dict.fromkeys(sorted(self._keys.get(jobid, ()))), **annotations["sched"]}
        backfilled = sched.pop("selection_type") == BACKFILLED
        if backfilled and (head := next(self._planned(), None)) is not None:
            sched["backfill"] = format_f58(head.jobid, ascii=self._handle.ascii)
        return {**annotations, "sched": sched}

    def more_annotations(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Further annotations of the jobs that the last pass left waiting; once."""
        left, self._left = self._left, []
        for ahead, jobid in enumerate(left):
            yield jobid, {"reason_pending": "insufficient resources", "jobs_ahead": ahead}
        planned = {kept.jobid: kept.start_s for kept in self._planned() if kept.start_s < inf}
        for jobid in sorted(self._estimated - planned.keys()):
            yield jobid, {ESTIMATE: None}
        for jobid in sorted(planned.keys() - self._estimated):
            yield jobid, {ESTIMATE: planned[jobid]}

    def check_alloc(self) -> None:
        """Raises InvalidValue when alloc requests are to be denied."""
        if self._handle.debug(FAIL_ALLOC):
            raise InvalidValue("DEBUG_FAIL_ALLOC")

    def check_expiration(self) -> None:
        """Raises Refused when changes of an expiration are to be denied."""
        if self._handle.debug(DENY_EXPIRATION):
            raise Refused("Rejecting expiration update for testing")

"""What only Flux's own tools and tests ask of a scheduler: the debug bits of sched-simple, annotations in its words.

Law: nothing here changes a decision; a job learns of the one that it overtook, and without a bit set that is all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from fluxsched.adapters.flux.handle import Handle
from fluxsched.core.jobid import format_f58
from fluxsched.errors import InvalidValue, Refused
from fluxsched.protocol.messages import alloc as msg
from fluxsched.sched.policy import BACKFILLED, IMMEDIATE, Decision, Option, Policy, Reserve, View

FAIL_ALLOC = 1
"""While set, every alloc request is denied."""
ANNOTATE_PENDING = 2
"""While set, every job that waits is told why, and how many are ahead of it."""
DENY_EXPIRATION = 4
"""While set, a running job's end cannot be changed."""


class Quirks:
    """A policy around the policy, that looks on: who has the reservation, and who was left in the queue."""

    name: ClassVar[str] = "quirks"
    OPTIONS: ClassVar[Mapping[str, Option]] = {}

    def __init__(self, handle: Handle, policy: Policy) -> None:
        self._handle = handle
        self._policy = policy
        self.BACKFILLS = bool(getattr(policy, "BACKFILLS", False))
        self._head: int | None = None
        self._left: list[int] = []

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        """The policy's own decisions."""
        self._head = None
        for decision in self._policy.schedule(view, now_s):
            if isinstance(decision, Reserve) and self._head is None:
                self._head = decision.reservation.jobid
            yield decision
        if self._handle.debug(ANNOTATE_PENDING):
            self._left = [job.jobid for job in view.queue]

    def granted(self, annotations: Mapping[str, Any]) -> dict[str, Any]:
        """A grant's annotations as Flux's schedulers write them: `backfill` names the job that was overtaken."""
        sched = dict(annotations["sched"])
        selection = sched.get("selection_type")
        if selection == IMMEDIATE:
            del sched["selection_type"]
        elif selection == BACKFILLED and self._head is not None:
            sched["backfill"] = format_f58(self._head)
        return {**annotations, "sched": sched}

    def annotations(self) -> Iterator[msg.AllocResponse]:
        """What to tell the jobs that the last pass left, in their order; once."""
        left, self._left = self._left, []
        for ahead, jobid in enumerate(left):
            sched = {"reason_pending": "insufficient resources", "jobs_ahead": ahead}
            yield msg.AllocResponse(jobid, msg.ANNOTATE, annotations={"sched": sched})

    def check_alloc(self) -> None:
        """Raises InvalidValue when alloc requests are to be denied."""
        if self._handle.debug(FAIL_ALLOC):
            raise InvalidValue("DEBUG_FAIL_ALLOC")

    def check_expiration(self) -> None:
        """Raises Refused when changes of an end are to be denied."""
        if self._handle.debug(DENY_EXPIRATION):
            raise Refused("Rejecting expiration update for testing")

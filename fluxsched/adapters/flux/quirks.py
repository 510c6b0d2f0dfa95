"""What nobody but Flux's own test suite asks of a scheduler: the debug bits of its sched-simple.

Law: without a bit set, nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from fluxsched.adapters.flux.handle import Handle
from fluxsched.errors import InvalidValue, Refused
from fluxsched.protocol.messages import alloc as msg
from fluxsched.sched.policy import Decision, Option, Policy, View

FAIL_ALLOC = 1
"""While set, every alloc request is denied."""
ANNOTATE_PENDING = 2
"""While set, every job that waits is told why, and how many are ahead of it."""
DENY_EXPIRATION = 4
"""While set, a running job's end cannot be changed."""


class Quirks:
    """A policy around the policy, that looks at the queue after a pass when the bit says so."""

    name: ClassVar[str] = "quirks"
    OPTIONS: ClassVar[Mapping[str, Option]] = {}

    def __init__(self, handle: Handle, policy: Policy) -> None:
        self._handle = handle
        self._policy = policy
        self._left: list[int] = []

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        """The policy's own decisions."""
        yield from self._policy.schedule(view, now_s)
        if self._handle.debug(ANNOTATE_PENDING):
            self._left = [job.jobid for job in view.queue]

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

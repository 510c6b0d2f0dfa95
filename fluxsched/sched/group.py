"""One acquired group as the scheduler sees it: its pool, its queue, and what the queue has been told.

Law: nothing is judged before the first grow (RFC 28 draft); from then on every waiting job is feasible, or has been
denied. A verdict is worked out once a request and generation, since it does not depend on the weather (law 10).
"""

from __future__ import annotations

from collections.abc import Mapping

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Request
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import RemoteProtocolError
from fluxsched.sched.effects import Denied
from fluxsched.sched.outcome import Outcome
from fluxsched.sched.placing import infeasible, place
from fluxsched.sched.pool import Pool
from fluxsched.sched.queue import Queue, Waiting

VERDICTS_MAX = 4096
"""Requests whose verdict is remembered in a generation; some hundred bytes each."""


class Group:
    """`leaving` are targets shrunk and not yet released; `changed` tells that a pass may decide something new."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pool = Pool()
        self.queue = Queue()
        self.grown = False
        self.leaving = EMPTY
        self.expiration_s = 0.0
        self.changed = False
        self.reasons: dict[int, str] = {}
        self._verdicts: dict[Request, str | None] = {}
        self._judged = -1

    def grow(self, resources: ResourceSet, online: Idset) -> None:
        """Counts new targets. Raises RemoteProtocolError if some are leaving and were not released."""
        if early := resources.ranks & self.leaving:
            raise RemoteProtocolError(f"grow of group {self.name!r} names ranks {early}, which are not released yet")
        self.pool.add(resources, online)
        self.expiration_s = resources.expiration_s if resources.ranks or not self.grown else self.expiration_s
        self.grown = self.changed = True

    def shrink(self, targets: Idset) -> None:
        """Forgets targets. Raises RemoteProtocolError, and changes nothing, if some are not ours."""
        if unknown := targets - self.pool.ranks:
            raise RemoteProtocolError(f"shrink of group {self.name!r} names ranks {unknown}, which it does not have")
        self.pool.remove(targets)
        self.changed = True

    def describe(self, add: Mapping[str, Idset], remove: Mapping[str, Idset]) -> None:
        """Takes over changed properties."""
        self.pool.describe(add, remove)
        self.changed = True

    def verdict(self, request: Request) -> str | None:
        """Why the request can never fit here, None if it can; None as well before the first grow."""
        if not self.grown:
            return None
        if self._judged != self.pool.generation:
            self._judged = self.pool.generation
            self._verdicts.clear()
        verdict = self._verdicts.get(request, "")
        if verdict == "":
            if len(self._verdicts) >= VERDICTS_MAX:
                self._verdicts.clear()
            verdict = self._verdicts[request] = infeasible(self.pool, request)
        return verdict

    def judge_all(self) -> list[Denied]:
        """Judges the whole queue again, held jobs too: what has become infeasible is denied."""
        denied = []
        for job in self.queue.everyone():
            why = self.verdict(job.request)
            if why is not None:
                self.forget(job.jobid)
                denied.append(Denied(job.jobid, why))
        return denied

    def place(self, job: Waiting, placement: str) -> Outcome:
        return place(self.pool, job.request, placement)

    def forget(self, jobid: int) -> bool:
        """Takes a job off the queue; whether it was there."""
        self.reasons.pop(jobid, None)
        return self.queue.remove(jobid) is not None

"""Jobs that a plugin does not let into the queue yet: they wait, and no policy sees them.

Law: a job is asked about on entry, at the time that its Gate names, and after the events that it names; nothing else.
"""

from __future__ import annotations

from math import inf

from fluxsched.sched.engine.waiting.policy_queue import PolicyQueue
from fluxsched.sched.hooks.api import JobSeen
from fluxsched.sched.hooks.chain import RETRY_S, Chain, PluginFault, ask, check_gate, why_of
from fluxsched.sched.queue.pending import Waiting


class GatedJob:
    """A job, its queue, and what its plugin has said."""

    __slots__ = ("at_s", "job", "on", "queue", "why")

    def __init__(self, job: Waiting, queue: PolicyQueue, why: str, on: tuple[str, ...], at_s: float) -> None:
        self.job = job
        self.queue = queue
        self.why = why
        self.on = on
        self.at_s = at_s


class Gates:
    """Those of one group; `next_s` is when some job is to be asked about again (wall time, seconds; else inf)."""

    __slots__ = ("_faults", "_happened", "gated", "next_s")

    def __init__(self, faults: list[str]) -> None:
        self._faults = faults
        self._happened: set[str] = set()
        self.gated: dict[int, GatedJob] = {}
        self.next_s = inf

    def ask(self, chain: Chain, seen: JobSeen, job: Waiting, queue: PolicyQueue) -> GatedJob | None:
        """Asks the plugins one by one whether the job may enter: None if it may, else it is kept here."""
        for name, method in chain.gates:
            found = check_gate(name, ask(name, method, seen))
            if found is None:
                continue
            if isinstance(found, PluginFault):
                self._faults.append(found.why)
                gated = GatedJob(job, queue, found.why, (), seen.now_s + RETRY_S)
            else:
                at_s = inf if found.at_s is None or found.at_s <= seen.now_s else found.at_s
                gated = GatedJob(job, queue, why_of(name, found), found.on, at_s)
            self.keep(gated)
            return gated
        return None

    def keep(self, gated: GatedJob) -> None:
        """A job is kept here until its time."""
        self.gated[gated.job.jobid] = gated
        self.next_s = min(self.next_s, gated.at_s)

    def ask_soon(self, job: Waiting, queue: PolicyQueue) -> None:
        """A job that is to be asked about with the next turn, and is not in its queue until then."""
        self.keep(GatedJob(job, queue, "", (), -inf))

    def happened(self, event: str) -> None:
        """One of EVENTS."""
        if self.gated:
            self._happened.add(event)

    @property
    def has_events(self) -> bool:
        """Whether some job may be asked about again since something has happened."""
        return bool(self._happened)

    def due(self, now_s: float) -> list[GatedJob]:
        """Those to be asked about again, which are here no more; in the order in which they came."""
        if not self._happened and now_s < self.next_s:
            return []
        happened, self._happened = self._happened, set()
        due = [each for each in self.gated.values() if each.at_s <= now_s or not happened.isdisjoint(each.on)]
        for each in due:
            del self.gated[each.job.jobid]
        self.next_s = min([each.at_s for each in self.gated.values()], default=inf)
        return due

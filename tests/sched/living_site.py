"""A made-up site that lives by itself: things happen to its scheduler, and a judge sees each start."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from fluxsched.core.idset import EMPTY
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.decisions import Granted
from fluxsched.sched.policy import Policy
from tests.sched.site import scheduler_of

INSTANTS_MAX = 2000
"""More of them mean that the scheduler asks to be called again and again."""


class LivingSite:
    """One group under a policy; `at` plans what happens, `started` judges a start and plans its end."""

    def __init__(self, policy: Policy | str) -> None:
        self.scheduler = scheduler_of(policy, ("default",))
        self.held: dict[int, ResourceSet] = {}
        self.now_s = 0.0
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._planned = 0

    def at(self, when_s: float, do: Callable[[], object]) -> None:
        """Plan something; of what happens in one instant, the first planned comes first."""
        self._planned += 1
        heappush(self._agenda, (when_s, self._planned, do))

    def started(self, jobid: int, held: ResourceSet) -> None:
        """Judge the start of a job."""
        raise NotImplementedError

    def live(self, resources: ResourceSet) -> None:
        """Have all happen, with a pass after each instant."""
        scheduler, agenda = self.scheduler, self._agenda
        scheduler.grown("default", resources, resources.ranks, EMPTY)
        for _ in range(INSTANTS_MAX):
            self.now_s = agenda[0][0]
            while agenda and agenda[0][0] == self.now_s:
                heappop(agenda)[2]()
            for effect in scheduler.schedule(self.now_s):
                if isinstance(effect, Granted):
                    held = self.held[effect.jobid] = ResourceSet.parse(effect.R)
                    self.started(effect.jobid, held)
            scheduler.check()
            if not agenda:
                return
            if self.now_s < scheduler.next_notice_s < agenda[0][0]:
                self.at(scheduler.next_notice_s, lambda: None)
        raise AssertionError(f"it goes on and on at {self.now_s}")

    def end(self, jobid: int) -> None:
        self.scheduler.free(jobid, self.held.pop(jobid), True, self.now_s)

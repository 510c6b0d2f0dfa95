"""A site under `fair` for tests of preemption: jobs of users with letters, going jobs that a test lets go."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fluxsched.core.idset import EMPTY
from fluxsched.sched.decisions import PREEMPT, Granted, Raise
from fluxsched.sched.fair.accounts import FairSettings
from tests.sched.site import make_r, scheduler_of, spec


class Site:
    """A scheduler under `fair`; users are letters. What is preempted goes when a test lets it."""

    def __init__(self, targets: int, cores: int, policy: str = "fair", **fair: Any) -> None:
        fair.setdefault("rate", 1000)
        self.scheduler = scheduler_of(
            policy, fair=FairSettings(**fair), user_name=lambda user: chr(96 + user), notify=False
        )
        self.resources = make_r("0" if targets == 1 else f"0-{targets - 1}", cores=cores)
        self.scheduler.grown("default", self.resources, self.resources.ranks, EMPTY)
        self.cores = cores
        self.user: dict[int, str] = {}
        self.asked: dict[int, int] = {}
        self.running: dict[int, float] = {}
        self.going: list[int] = []
        self.notes: dict[int, str] = {}
        self.now_s = 0.0

    def submit(
        self, user: str, jobs: int = 1, cores: int = 1, nodes: int | None = None, after: float | None = 0, **system: Any
    ) -> list[int]:
        found = []
        for _ in range(jobs):
            jobid = len(self.user)
            asked = spec(cores=cores, nodes=nodes, exclusive=nodes is not None, preemptible_after=after, **system)
            found_effects = self.scheduler.alloc(jobid, 16, ord(user) - 96, self.now_s, asked, self.now_s)
            assert not found_effects, found_effects
            self.user[jobid] = user
            self.asked[jobid] = cores if nodes is None else nodes * self.cores
            found.append(jobid)
        return found

    def passes(self, after_s: float = 0.0) -> list[int]:
        """Passes until there is nothing more to do; the jobs that are preempted, in order."""
        self.now_s += after_s
        preempted: list[int] = []
        for _ in range(20):
            effects = [each for each in self.scheduler.schedule(self.now_s) if isinstance(each, Granted | Raise)]
            self.scheduler.check()
            for effect in effects:
                if isinstance(effect, Granted):
                    self.running[effect.jobid] = self.now_s
                else:
                    assert effect.type == PREEMPT
                    preempted.append(effect.jobid)
                    self.notes[effect.jobid] = effect.note
            if not effects:
                self.going += preempted
                return preempted
        raise AssertionError("passes do not come to an end")

    def end(self, *jobids: int) -> None:
        for jobid in jobids:
            self.scheduler.free_all(jobid, self.now_s)
            self.going = [each for each in self.going if each != jobid]
            del self.running[jobid]

    def settle(self, after_s: float = 1.0) -> list[int]:
        """Lets all go that are going, again and again, until none is; all that were preempted."""
        found = self.passes(after_s)
        for _ in range(50):
            if not self.going:
                return found
            self.end(*self.going)
            found += self.passes()
        raise AssertionError("preemption does not come to an end")

    @property
    def held(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for jobid in self.running:
            counts[self.user[jobid]] += self.asked[jobid]
        return dict(counts)

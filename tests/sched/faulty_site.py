"""A site for years in seconds: users, a job manager that requeues, targets that fail, and a scheduler that is watched.

Jobs come at random, most of them preemptible; some are cancelled, held, or urgent, and a victim takes its time to go.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.sched.decisions import Denied, Effect, Granted, Raise
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.fair.accounts import Bank, FairSettings
from fluxsched.sched.policy import Policy
from tests.sched.preemption_judge import Judge, watched
from tests.sched.progressive_filling import EXPEDITED, Path, Site
from tests.sched.site import make_r
from tests.sched.site import spec as jobspec

TARGETS, CORES = 8, 4
TIMEOUT_S = 5.0
BANKS = {
    "a": Bank(2.0, users={"1": 2.0}),
    "b": Bank(1.0),
    "c": Bank(1.0),
    "d": Bank(3.0, parent="c"),
    "e": Bank(1.0, parent="c"),
}
OPEN_BANKS = ("a", "b", "d", "e")
USERS = (1, 2, 3)


class Work(NamedTuple):
    """One job over all its attempts."""

    number: int
    bank: str
    user: int
    spec: dict[str, Any]
    run_s: float
    submit_s: float
    requeue: int


class FaultySite:
    """`attempts` maps ids of the scheduler to jobs and how often they were begun before.

    Of the jobs that reach their limit so many are `overdue`: they hold on for a while. With `whole` all ask for nodes.
    """

    def __init__(
        self,
        policy: Policy,
        seed: int,
        rate: int = 60,
        load: float = 0.9,
        overdue: float = 0.0,
        whole: bool = False,
        timeout_s: float = TIMEOUT_S,
        **settings: Any,
    ) -> None:
        self.chance = Random(seed)
        self.overdue = overdue
        self.whole = whole
        self.timeout_s = timeout_s
        self.now_s = 0.0
        self.load = load
        fair = FairSettings(banks=BANKS, rate=rate, half_life_s=3600.0, **settings)
        self.scheduler = Scheduler(policy, fair=fair, user_name=str, preempt_timeout_s=timeout_s)
        weights: dict[Path, float] = {fair.path(name): bank.weight for name, bank in BANKS.items()}
        weights |= {(*fair.path(name), user): w for name, bank in BANKS.items() for user, w in bank.users.items()}
        site = Site(Fraction(0), fair.signal.value, fair.half_life_s, weights, fair.shares_of_all)
        self.judge = Judge(site, rate)
        self._watched = watched(
            self.scheduler, self.judge, lambda bank, userid: (*fair.path(bank or "default"), str(userid))
        )
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._turn = 0
        self.attempts: dict[int, tuple[Work, int]] = {}
        self.waiting: set[int] = set()
        self.running: dict[int, float] = {}
        self.going: set[int] = set()
        self.works = 0
        self.over: Counter[int] = Counter()  # by number of the work
        self.down: set[int] = set()
        self._grow()

    def _grow(self) -> None:
        resources = make_r(f"0-{TARGETS - 1}", CORES)
        self.scheduler.grown("default", resources, resources.ranks, EMPTY, 0.0)
        self.judge.has(set(resources.ranks), CORES)
        self.judge.usable(set(resources.ranks), True)

    def at(self, when_s: float, do: Callable[[], None]) -> None:
        self._turn += 1
        heapq.heappush(self._agenda, (when_s, self._turn, do))

    def live(self, until_s: float) -> None:
        """Jobs come and targets fail until then; then all goes on to its end."""
        self._home_s = until_s
        self.at(1.0, self._arrive)
        self.at(5000.0, self._fail)
        while self._agenda:
            self.now_s = self._agenda[0][0]
            while self._agenda and self._agenda[0][0] <= self.now_s:
                heapq.heappop(self._agenda)[2]()
            self._passes()
        lost = [work for work in range(1, self.works + 1) if self.over[work] != 1]
        assert not lost, f"jobs {lost[:9]} were lost, or ended twice"

    def _passes(self) -> None:
        for effect in self._watched.schedule(self.now_s):
            self._perform(effect)
        self.scheduler.check()
        wake_s = self.scheduler.next_notice_s
        if self.now_s < wake_s < float("inf"):
            self.at(wake_s, lambda: None)

    def _perform(self, effect: Effect) -> None:
        now_s, chance = self.now_s, self.chance
        match effect:
            case Granted(jobid):
                work, _ = self.attempts[jobid]
                self.waiting.discard(jobid)
                self.running[jobid] = now_s
                limit_s = work.spec["attributes"]["system"]["duration"]
                over_s = 0.0
                if self.overdue and work.run_s >= limit_s and chance.random() < self.overdue:
                    over_s = chance.uniform(0, 3600)
                self.at(now_s + min(work.run_s, limit_s) + over_s, lambda: self._end(jobid))
            case Raise(jobid):
                self.going.add(jobid)
                self.at(now_s + chance.choice((0.0, 0.1, 1.0, self.timeout_s)), lambda: self._end(jobid))
            case Denied(jobid):
                raise AssertionError(f"job {jobid} is denied: {effect.note}")

    # ---- jobs

    def _arrive(self) -> None:
        """Some jobs of one user, and the time of the next ones."""
        chance, now_s = self.chance, self.now_s
        bank, user = chance.choice(OPEN_BANKS), chance.choice(USERS)
        nodes = chance.choice((1, 2, TARGETS // 2) if self.whole else (None, None, None, None, 1, 2, TARGETS // 2))
        cores = CORES if nodes else chance.choice((1, 1, 1, 2, CORES))
        jobs = chance.choice((1, 1, 1, 2, 5, 30))
        run_s = chance.choice((30.0, 300.0, 300.0, 1800.0, 7200.0)) * chance.uniform(0.5, 1.5)
        system: dict[str, Any] = {"duration": run_s * chance.choice((1.0, 1.2, 3.0)), "bank": bank}
        after_s = chance.choice((None, 0, 0, 60, 600))
        if after_s is not None:
            system["preemptible-after"] = after_s
        spec = jobspec(nodes=nodes, cores=cores, exclusive=nodes is not None, **system)
        for at in range(jobs):
            self.works += 1
            work = Work(self.works, bank, user, spec, run_s * (1 + at / 1000), now_s, chance.choice((0, 1, 3)))
            self._submit(work, 0)
        work_s = jobs * run_s * (nodes or 1) * cores
        if now_s < self._home_s:
            self.at(now_s + work_s / (TARGETS * CORES * self.load) * chance.uniform(0, 2), self._arrive)
        if chance.random() < 0.05:
            self.at(now_s + chance.uniform(0, 600), self._cancel)
        if chance.random() < 0.02:
            self.at(now_s + chance.uniform(0, 600), self._hold)

    def _submit(self, work: Work, attempt: int) -> None:
        jobid = len(self.attempts) + 1
        self.attempts[jobid] = (work, attempt)
        self.waiting.add(jobid)
        priority = EXPEDITED if self.chance.random() < 0.002 else 16
        self._watched.alloc(jobid, priority, work.user, work.submit_s, work.spec, self.now_s)

    def _end(self, jobid: int) -> None:
        if self.running.pop(jobid, None) is None:
            return  # it went before
        self._watched.free_all(jobid, self.now_s)
        work, attempt = self.attempts[jobid]
        if jobid in self.going and attempt < work.requeue:
            self._submit(work, attempt + 1)
        else:
            self.over[work.number] += 1

    def _cancel(self) -> None:
        if self.waiting:
            jobid = self.chance.choice(sorted(self.waiting))
            self._watched.cancel(jobid)
            self.waiting.remove(jobid)
            self.over[self.attempts[jobid][0].number] += 1
        elif self.running:
            self._end(self.chance.choice(sorted(self.running)))

    def _hold(self) -> None:
        """For some minutes."""
        for jobid in self.chance.sample(sorted(self.waiting), min(3, len(self.waiting))):
            self._watched.prioritize([(jobid, 0)])
            self.at(self.now_s + 300.0, lambda jobid=jobid: self._watched.prioritize([(jobid, 16)]))  # type: ignore[misc]

    # ---- targets

    def _fail(self) -> None:
        """Some targets are down for a while; what runs there goes on, or is lost."""
        chance = self.chance
        if self.now_s < self._home_s:
            self.at(self.now_s + chance.uniform(1000, 40000), self._fail)
        ranks = set(chance.sample(range(TARGETS), chance.choice((1, 1, 3)))) - self.down
        self._watched.went_offline(Idset.of(ranks))
        self.down |= ranks
        if chance.random() < 0.5:
            for jobid in [each for each in self.running if {rank for rank, _ in self.judge.places[each]} & ranks]:
                self._end(jobid)
        self.at(self.now_s + chance.uniform(10, 5000), lambda: self._repair(ranks))

    def _repair(self, ranks: set[int]) -> None:
        self.down -= ranks
        self._watched.went_online(Idset.of(ranks))

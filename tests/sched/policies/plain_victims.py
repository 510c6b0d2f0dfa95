"""Which jobs go, found plainly, and a machine of accounts on which to find them."""

from __future__ import annotations

from collections.abc import Iterable

from fluxsched.core.jobspec import Request
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.fair.accounts import Account, Accounts, Measure, Signal
from fluxsched.sched.ledger import JobAllocation, Ledger
from fluxsched.sched.policies.fair_preemption import Levels, VictimSearch
from fluxsched.sched.policy import PendingJob
from fluxsched.sched.pool.find_fit import find_fit
from fluxsched.sched.pool.placement import BEST_FIT, Shape, parts_in
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.preemption import Preemptions

NOW_S = 1000.0


class Machine:
    """Targets of equal size, with jobs of accounts; cores weigh 1."""

    def __init__(self, resources: ResourceSet) -> None:
        self.pool = Pool()
        self.pool.add(resources, resources.ranks)
        self.ledger = Ledger([self.pool])
        self.preemptions = Preemptions(self.ledger)
        self.tree = Accounts(Measure({"core": 1.0}), Signal.DECAYED_USAGE, 600.0, 0.0)
        self.tree.set_capacity((sum(len(each.ranks) * len(each.children.cores) for each in resources.entries),), 0.0)

    def account(self, *path: str, weight: float = 1.0, waits: int = 0) -> Account:
        found = self.tree.account(path)
        self.tree.configure(found, weight)
        self.tree.activate(found, waits)
        return found

    def run(self, jobid: int, account: Account, request: Request, started_s: float, after_s: float | None) -> bool:
        fit = find_fit(self.pool, Shape(request), BEST_FIT)
        holding = None if fit is None else self.ledger.take(jobid, fit.blocks, self.pool, 0.0, started_s)
        if holding is None:
            return False
        holding.account, holding.preemptible_after_s = account, after_s
        self.preemptions.began(holding)
        self.tree.activate(account, 1)
        self.tree.book(account, (int(self.usage(holding)),), 1, after_s is None, started_s)
        return True

    def usage(self, holding: JobAllocation) -> float:
        return self.preemptions.running.usage(holding)

    def search(self, account: Account, request: Request, now_s: float = NOW_S) -> VictimSearch:
        levels = Levels(self.tree)
        job = PendingJob(10**6, 16, 1000, now_s, Shape(request), 60.0, account)
        asked = (1 if request.nodes is None else request.nodes.min) * request.slots.min * request.cores
        banks = levels.scope(account, float(asked))
        running = self.preemptions.running
        while not running.catch_up():
            pass
        found = VictimSearch(job, banks, levels, running, now_s)
        done = False
        while not done and banks:
            with self.preemptions.if_gone(self.pool) as what_if:
                done = found.go_on(what_if)
        return found


class Plainly:
    """The search in the words of its law: every target is worked out, each time anew."""

    def __init__(self, machine: Machine, account: Account, request: Request, now_s: float = NOW_S) -> None:
        self.machine = machine
        self.account = account
        self.request = request
        self.now_s = now_s
        self.size = machine.pool[0].all_cores.bit_count()
        self.lost: dict[Account, float] = {}
        self.gone: list[int] = []

    def victims(self) -> list[int]:
        left = self.priced(self.machine.pool.ranks)
        while not self.fits(self.gone):
            if not left:
                return []
            left.sort()
            _, rank = left.pop(0)
            chosen = self.on_target(rank)
            if chosen is None:
                continue
            self.gone += [each.jobid for each in chosen]
            for each in chosen:
                self.lose(each, self.lost)
            if self.request.nodes is None:
                left += self.priced([rank])
        for jobid in list(self.gone):
            without = [each for each in self.gone if each != jobid]
            if len(self.gone) > 1 and self.fits(without):
                self.gone = without
        return self.gone

    def priced(self, ranks: Iterable[int]) -> list[tuple[float, int]]:
        found = [(self.on_target(rank), rank) for rank in ranks]
        return [(self.work(chosen), rank) for chosen, rank in found if chosen is not None]

    def work(self, chosen: list[JobAllocation]) -> float:
        return sum(self.machine.usage(each) * (self.now_s - each.started_s) for each in chosen)

    def lose(self, each: JobAllocation, lost: dict[Account, float]) -> None:
        assert each.account is not None
        for at in each.account.up():
            lost[at] = lost.get(at, 0.0) + self.machine.usage(each)

    # ---- one target

    def on_target(self, rank: int) -> list[JobAllocation] | None:
        lost, chosen, need = dict(self.lost), list[JobAllocation](), self.need(rank)
        if self.free_on(rank, self.gone) >= need or need > self.size:
            return None
        while self.free_on(rank, [*self.gone, *[each.jobid for each in chosen]]) < need:
            able = [each for each in self.machine.ledger if each not in chosen and self.may_go(each, rank, lost)]
            if not able:
                return None
            best = max(able, key=lambda each: self.furthest(each, lost))
            chosen.append(best)
            self.lose(best, lost)
        return chosen

    def need(self, rank: int) -> int:
        request = self.request
        if request.nodes is not None:
            return self.size if request.exclusive else request.slots.min * request.cores
        return (self.free_on(rank, self.gone) // request.cores + 1) * request.cores

    def free_on(self, rank: int, without: Iterable[int]) -> int:
        held = [
            part.cores.bit_count()
            for holding in self.machine.ledger
            if holding.jobid not in without
            for part in parts_in(holding.blocks)
            if part.rank == rank
        ]
        return self.size - sum(held)

    def fits(self, without: Iterable[int]) -> bool:
        free = {rank: self.free_on(rank, without) for rank in self.machine.pool.ranks}
        if self.request.nodes is None:
            return sum(each // self.request.cores for each in free.values()) >= self.request.slots.min
        return sum(each >= self.need(rank) for rank, each in free.items()) >= self.request.nodes.min

    # ---- one job

    def may_go(self, each: JobAllocation, rank: int, lost: dict[Account, float]) -> bool:
        if each.account is None or each.account is self.account or each.jobid in self.gone or rank not in each.parts:
            return False
        if each.preemptible_after_s is None or each.started_s + each.preemptible_after_s > self.now_s:
            return False
        mine = [*self.account.up()]
        for at in each.account.up():
            if at in mine:
                return True
            if at.all_jobs.usage - lost.get(at, 0.0) <= self.machine.tree.fair_usage(at) * (1 + 1e-9):
                return False
        return True

    def furthest(self, each: JobAllocation, lost: dict[Account, float]) -> tuple[float, float, int]:
        assert each.account is not None
        usage = each.account.all_jobs.usage - lost.get(each.account, 0.0)
        return usage / self.machine.tree.fair_usage(each.account), each.started_s, each.jobid

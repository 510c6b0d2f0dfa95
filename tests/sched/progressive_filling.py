"""Progressive filling by brute force, from the formulas alone: for each job all accounts are looked at.

Slow and obvious on purpose, and nothing of it is shared with the project: sums are of fractions, signals are brought up
to date account by account, and what rounding may decide either way is accepted either way.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import exp2, inf, isclose

FLOW, DECAYED_USAGE = "flow", "decayed-usage"
EXPEDITED = 2**32 - 1
"""The priority of urgency 31."""

Path = tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """A job: `usage` is u of the formulas; `preemptible_after_s` None for never, `limit_s` 0.0 for no time limit."""

    jobid: int
    path: Path
    usage: Fraction
    priority: int = 16
    submit_s: float = 0.0
    preemptible_after_s: float | None = None
    limit_s: float = 0.0

    @property
    def place(self) -> tuple[int, float, int]:
        """RFC 27's order."""
        return -self.priority, self.submit_s, self.jobid

    @property
    def is_firm(self) -> bool:
        return self.preemptible_after_s is None

    @property
    def safe_minutes(self) -> Fraction:
        """X of the formulas."""
        assert self.preemptible_after_s is not None
        return Fraction(min(self.preemptible_after_s, self.limit_s or inf)) / 60


class Remembered:
    """One signal of one account: what it was when the usage last changed."""

    def __init__(self, signal: str, half_life_s: float) -> None:
        self.signal, self.half_life_s = signal, half_life_s
        self.since_s, self.level, self.usage = 0.0, 0.0, Fraction(0)

    def at(self, now_s: float) -> float:
        beta = exp2(-max(now_s - self.since_s, 0.0) / self.half_life_s)
        usage = float(self.usage)
        above = self.level - usage
        return usage + (max(above, 0.0) if self.signal == FLOW else above) * beta

    def change(self, usage: Fraction, now_s: float) -> None:
        self.level = self.at(now_s)
        self.usage = usage
        self.level = self.at(self.since_s)  # to the new usage with dt 0
        self.since_s = max(now_s, self.since_s)

    def is_exact(self, now_s: float) -> bool:
        """Whether no power of 2 was rounded in it, so that equal keys are equal here and elsewhere."""
        return self.level == self.usage or now_s == self.since_s == 0.0


@dataclass
class Site:
    """What is settled: accounts that are not in `weights` weigh 1; those in it are configured."""

    capacity: Fraction
    signal: str = DECAYED_USAGE
    half_life_s: float = 600.0
    weights: Mapping[Path, float] = field(default_factory=dict)
    shares_of_all: bool = False
    cap: float | None = None
    caps: Mapping[Path, float] = field(default_factory=dict)
    budget_min: float | None = None


class Filling:
    """Accounts that run and wait, and who comes next."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.waiting: dict[int, Asked] = {}
        self.holding: dict[int, Asked] = {}
        self.planned: list[tuple[Path, Fraction]] = []
        self.charges: dict[int, Fraction] = {}
        self._signals: dict[Path, Remembered] = {}
        self._flows: dict[Path, Remembered] = {}
        self._used: defaultdict[Path, Fraction] = defaultdict(Fraction)
        self._used_by_firm: defaultdict[Path, Fraction] = defaultdict(Fraction)
        self._active: Counter[Path] = Counter()

    # ---- what happens

    def waits(self, job: Asked) -> None:
        self.waiting[job.jobid] = job
        if job.priority:
            self._activate(job.path, 1)

    def leaves(self, jobid: int) -> None:
        job = self.waiting.pop(jobid)
        if job.priority:
            self._activate(job.path, -1)

    def starts(self, jobid: int, now_s: float) -> None:
        job = self.waiting[jobid]
        if not job.is_firm:
            self.charges[jobid] = self.charge(job)
        self.leaves(jobid)
        self.holding[jobid] = job
        self._activate(job.path, 1)
        self._change(job, 1, now_s)

    def frees(self, jobid: int, now_s: float) -> None:
        self.charges.pop(jobid, None)
        job = self.holding.pop(jobid)
        self._activate(job.path, -1)
        self._change(job, -1, now_s)

    def plans(self, jobid: int) -> None:
        """It gets a reservation, until `planned` is cleared."""
        job = self.waiting[jobid]
        self.planned.append((job.path, job.usage))

    def _activate(self, path: Path, jobs: int) -> None:
        for at in above(path):
            self._active[at] += jobs

    def _change(self, job: Asked, sign: int, now_s: float) -> None:
        for at in above(job.path):
            self._used[at] += sign * job.usage
            if job.is_firm:
                self._used_by_firm[at] += sign * job.usage
            kept = self._signals.setdefault(at, Remembered(self.site.signal, self.site.half_life_s))
            kept.change(self.usage(at), now_s)
            kept = self._flows.setdefault(at, Remembered(FLOW, self.site.half_life_s))
            kept.change(self.usage(at, firm_alone=True), now_s)

    # ---- usage and share

    def usage(self, path: Path, firm_alone: bool = False) -> Fraction:
        """U, or U' of those jobs alone that cannot be preempted."""
        return (self._used_by_firm if firm_alone else self._used)[path]

    def signal(self, path: Path, now_s: float) -> float:
        kept = self._signals.get(path)
        return 0.0 if kept is None else kept.at(now_s)

    def firm_flow(self, path: Path, now_s: float) -> float:
        kept = self._flows.get(path)
        return 0.0 if kept is None else kept.at(now_s)

    def weight(self, path: Path) -> Fraction:
        return Fraction(self.site.weights.get(path, 1.0))

    def siblings(self, path: Path) -> set[Path]:
        """Those who share with it, itself among them."""
        known = set(self.site.weights)
        if not self.site.shares_of_all:
            known = {at for at, jobs in self._active.items() if jobs}
        return {at for at in known if len(at) == len(path) and at[:-1] == path[:-1]} | {path}

    def share(self, path: Path) -> Fraction:
        share = Fraction(1)
        for at in above(path):
            share *= self.weight(at) / sum(self.weight(each) for each in self.siblings(at))
        return share

    def fair_usage(self, path: Path) -> Fraction:
        """S."""
        return self.share(path) * self.site.capacity

    # ---- limits

    def over_cap(self, job: Asked, now_s: float) -> Path | None:
        """The lowest account in which a firm job would be over its cap."""
        for at in reversed(above(job.path)):
            cap = self.site.caps.get(at, self.site.cap)
            if cap is not None:
                used = max(float(self.usage(at, firm_alone=True) + job.usage), self.firm_flow(at, now_s))
                if _more(used, cap * float(self.fair_usage(at))):
                    return at
        return None

    def charge(self, job: Asked) -> Fraction:
        beyond = self.usage(job.path) + job.usage - self.fair_usage(job.path)
        return job.safe_minutes * min(job.usage, max(Fraction(0), beyond))

    def charged(self, user: str) -> Fraction:
        own = [charge for jobid, charge in self.charges.items() if self.holding[jobid].path[-1] == user]
        return sum(own, Fraction(0))

    def over_budget(self, job: Asked) -> bool:
        """Whether the charge of a preemptible job is more than is left."""
        budget, charge = self.site.budget_min, self.charge(job)
        return budget is not None and charge > 0 and _more(float(self.charged(job.path[-1]) + charge), budget)

    # ---- whose job comes next

    def free_to_start(self, path: Path, now_s: float) -> list[Asked]:
        """A user's jobs in order, without those that a limit blocks: these block others that draw on the same limit."""
        found = []
        capped = spent = False
        for job in sorted([job for job in self.waiting.values() if job.path == path], key=lambda job: job.place):
            if job.is_firm:
                capped = capped or self.over_cap(job, now_s) is not None
                blocked = capped
            else:
                spent = spent or self.over_budget(job)
                blocked = spent and self.charge(job) > 0
            if not blocked and job.priority:
                found.append(job)
        return found

    def next(self, now_s: float, passed: set[int]) -> list[Asked]:
        """The jobs that may come next: one, or several where rounding decides.

        A job that a limit blocks keeps its place in line until it is its turn: then it is `passed` over like one that
        does not fit, and its account offers its next.
        """
        while True:
            offers: dict[Path, Asked] = {}
            for job in sorted(self.waiting.values(), key=lambda job: job.place):
                if job.priority and job.jobid not in passed:
                    offers.setdefault(job.path, job)
            expedited = [job for job in offers.values() if job.priority == EXPEDITED]
            if expedited:
                jobs = [min(expedited, key=lambda job: job.place)]
            else:
                jobs = self._best((), offers, now_s) if offers else []
            blocked = [job.jobid for job in jobs if job not in self.free_to_start(job.path, now_s)]
            if not blocked:
                return jobs
            passed.update(blocked)

    def _best(self, at: Path, offers: Mapping[Path, Asked], now_s: float) -> list[Asked]:
        if at in offers:
            return [offers[at]]
        depth = len(at) + 1
        ranked = []
        for child in {path[:depth] for path in offers if _within(path, at)}:
            jobs = self._best(child, offers, now_s)
            ranked += [(self._keys(child, job, now_s), child[-1], child, job) for job in jobs]
        ranked.sort(key=lambda each: each[:2])
        last = {each[2]: each for each in ranked}  # of each child; it may offer any of its jobs where rounding decides
        return [each[3] for each in ranked if all(self._is_as_good(each, other, now_s) for other in last.values())]

    def _is_as_good(self, one: Ranked, best: Ranked, now_s: float) -> bool:
        if one[:2] <= best[:2]:
            return True
        (first, second), (least, second_least) = one[0], best[0]
        if not isclose(first, least, rel_tol=1e-9, abs_tol=1e-9):
            return False
        exact = first == least and self._is_exact(one[2], now_s) and self._is_exact(best[2], now_s)
        if not exact:
            return True
        return second != second_least and isclose(second, second_least, rel_tol=1e-9, abs_tol=1e-9)

    def _is_exact(self, path: Path, now_s: float) -> bool:
        kept = self._signals.get(path)
        return kept is None or kept.is_exact(now_s)

    def _keys(self, path: Path, job: Asked, now_s: float) -> tuple[float, float]:
        planned = sum((usage for at, usage in self.planned if _within(at, path)), Fraction(0))
        usage, level, weight = self.usage(path) + planned, self.signal(path, now_s), self.weight(path)
        if self.site.signal == FLOW:
            level = max(level, float(usage))
            return float(Fraction(max(float(usage + job.usage), level)) / weight), float(Fraction(level) / weight)
        return float((usage + Fraction(level)) / weight), float(usage / weight)


Ranked = tuple[tuple[float, float], str, Path, Asked]


def above(path: Path) -> list[Path]:
    """The banks above an account, from the highest down, and the account itself."""
    return [path[:depth] for depth in range(1, len(path) + 1)]


def filled(filling: Filling, now_s: float, fits: Callable[[Asked], bool]) -> Iterator[list[Asked]]:
    """A pass of one who starts what fits and passes over the rest: for each start the jobs that may be meant.

    The caller says which by `filling.starts`.
    """
    passed: set[int] = set()
    while jobs := filling.next(now_s, passed):
        unfit = [job.jobid for job in jobs if not fits(job)]
        passed.update(unfit)
        if not unfit:
            yield jobs


def _within(path: Path, top: Path) -> bool:
    return path[: len(top)] == top


def _more(used: float, bound: float) -> bool:
    return used > bound * (1 + 1e-9)

"""What limits hold back in one pass: who is over a cap or a budget, why, and when time alone lifts it.

Law: a job that is held back holds back those behind it in its account that draw on the same limit, and no others. Less
and less is left within a pass, so what is held back once is so for the rest of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from fluxsched.sched.accounts.limits import MINUTE_S, NOTHING_KEPT, Blocked
from fluxsched.sched.accounts.tree import Account
from fluxsched.sched.policy import AccountLines, Waiting, safe_of


class PassLimits:
    """Asked about each job when it is its turn. `blocked` are jobs that met a limit, `wake_s` when the first may start
    by itself (wall time, seconds).
    """

    __slots__ = ("_capped", "_kept", "_kept_for", "_lines", "_now_s", "_spent", "any", "blocked", "wake_s")

    def __init__(self, lines: AccountLines, now_s: float) -> None:
        self.any = lines.book.limits.any
        self.blocked: list[tuple[Waiting, Blocked]] = []
        self.wake_s = inf
        self._lines = lines
        self._now_s = now_s
        self._kept: dict[Account, float] = {}
        self._kept_for: set[int] = set()
        self._capped: set[Account] = set()
        self._spent: set[Account] = set()

    def admits(self, job: Waiting, may_start: bool) -> bool:
        """Whether a job that `may_start` otherwise may do so now; one that could not may still hold others back."""
        if not self.any or job.jobid in self._kept_for:
            return may_start
        account = job.account
        assert account is not None
        firm = job.preemptible_after_s is None
        if account in (self._capped if firm else self._spent) and (firm or charge_of(self._lines, job)):
            return False
        found = limit_of(self._lines, job, self._now_s, self._kept)
        if found is None:
            return may_start
        (self._capped if firm else self._spent).add(account)
        self.blocked.append((job, found))
        self.wake_s = min(self.wake_s, found.until_s)
        return False

    def keep(self, job: Waiting) -> None:
        """The job was admitted and others are going for it: what is left of its caps is not for those behind it."""
        self._kept_for.add(job.jobid)
        if job.account is not None and job.preemptible_after_s is None:
            usage = self._lines.book.usage(job.shape)
            for at in job.account.up():
                self._kept[at] = self._kept.get(at, 0.0) + usage

    def holds_all(self, account: Account, preemptible: int) -> bool:
        """Whether no job of the account can start, of which so many are preemptible."""
        return not preemptible and account in self._capped


def limit_of(
    lines: AccountLines, job: Waiting, now_s: float, kept: Mapping[Account, float] = NOTHING_KEPT
) -> Blocked | None:
    """The limit that the job would exceed if it started now, with what of caps is `kept` for others."""
    book, account = lines.book, job.account
    assert account is not None
    usage = book.usage(job.shape)
    safe_s = safe_of(job.preemptible_after_s, job.duration_s)
    if safe_s is None:
        return book.limits.over_cap(account, usage, now_s, kept)
    return book.limits.over_budget(account, account.name, usage, safe_s / MINUTE_S)


def charge_of(lines: AccountLines, job: Waiting) -> float:
    """What the start of a preemptible job would be charged, in resource minutes."""
    book, account = lines.book, job.account
    safe_s = safe_of(job.preemptible_after_s, job.duration_s)
    assert account is not None
    return 0.0 if safe_s is None else book.limits.charge(account, book.usage(job.shape), safe_s / MINUTE_S)


def limit_text(found: Blocked) -> str:
    """In words for the job's owner: the limit and its numbers."""
    name = "/".join(found.account)
    if found.limit == "cap":
        return (
            f"account {name} is at its cap: {found.used:.6g} of {found.bound:.6g} count as used by jobs that may not "
            f"be preempted, and the job asks for {found.asks:.6g}"
        )
    return (
        f"budget of {found.account[-1]}: {found.used:.6g} of {found.bound:.6g} resource minutes are charged, and the "
        f"job would be charged {found.asks:.6g}"
    )

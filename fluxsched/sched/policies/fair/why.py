"""Why a job waits under `fair`: which limit holds it back with which number, and which account comes before its own.

Law: nothing is changed, so it can be asked at any time; linear in the accounts that have jobs waiting.
"""

from __future__ import annotations

from math import inf

from fluxsched.core.jobid import format_f58
from fluxsched.core.why import Why
from fluxsched.sched.accounts.order import FairOrder
from fluxsched.sched.accounts.signal import Signal
from fluxsched.sched.accounts.tree import Account
from fluxsched.sched.policies.fair.limits import charge_of, limit_of, limit_text
from fluxsched.sched.policy import AccountLines, Waiting

LIFTED = "by itself, as what was used before counts less and less; sooner if jobs of the account end"
NOT_LIFTED = "not known: when jobs that draw on this limit end"
TOO_LARGE = "not before the share of the account grows, or the limit: it asks for more than the whole limit"
KEYS = {
    Signal.FLOW: "the flow of its usage with that job, by weight,",
    Signal.DECAYED_USAGE: "its usage and its decayed usage, by weight,",
}
"""What accounts are ordered by, in words."""


def explain(lines: AccountLines, job: Waiting, now_s: float) -> Why:
    """The reason is empty if no limit holds the job back; the rule says where it is in line."""
    held = _held_back(lines, job, now_s)
    if held is None:
        return Why("", _place(lines, job, now_s))
    ahead, found = held, limit_of(lines, held, now_s)
    assert found is not None
    reason = limit_text(found)
    if ahead.jobid != job.jobid:
        reason = f"waits behind job {format_f58(ahead.jobid)}, which draws on the same limit: {reason}"
    rule = "no job starts beyond a limit of its account"
    if found.until_s < inf:
        return Why(reason, rule, LIFTED, found.until_s)
    return Why(reason, rule, TOO_LARGE if found.asks > found.bound else NOT_LIFTED, None)


def _held_back(lines: AccountLines, job: Waiting, now_s: float) -> Waiting | None:
    """The first job of the account, up to this one, that a limit holds back on which this one draws, too."""
    account = job.account
    line = None if account is None else lines.by_account.get(account)
    if not lines.book.limits.any or (job.preemptible_after_s is not None and not charge_of(lines, job)):
        return None
    known = set()
    for ahead in line.jobs if line is not None and not lines.is_expedited(job) else ():
        kind = ahead.shape.number, ahead.preemptible_after_s, ahead.duration_s
        if (ahead.preemptible_after_s is None) == (job.preemptible_after_s is None) and kind not in known:
            known.add(kind)
            if limit_of(lines, ahead, now_s) is not None:
                return ahead
        if ahead is job:
            return None
    return job if limit_of(lines, job, now_s) is not None else None


def _place(lines: AccountLines, job: Waiting, now_s: float) -> str:
    """How many are ahead of it in its account, and which account comes first by what."""
    account = job.account
    line = None if account is None else lines.by_account.get(account)
    if account is None or line is None or lines.is_expedited(job):
        return "comes before all accounts: its urgency is the highest"
    before = line.jobs.before(job.key)
    place = f"{before} ahead of it" if before else "first"
    mine, first = _compared(lines, account, now_s)
    name = "/".join(account.path)
    if mine is None or first is None:
        return f"{place} in account {name}, which comes first"
    (own, own_key), (other, other_key) = mine, first
    by = KEYS[lines.book.tree.signal]
    text = f"{by} is {other_key:.6g}, that of {'/'.join(own.path)} {own_key:.6g}"
    return f"{place} in account {name}; account {'/'.join(other.path)} comes first: {text}"


_Keyed = tuple[Account, float]


def _compared(lines: AccountLines, account: Account, now_s: float) -> tuple[_Keyed | None, _Keyed | None]:
    """Where the path of the account parts from that of the first: the two, and their keys; None if it is the first."""
    order = FairOrder(lines.book.tree)
    for each, line in lines.by_account.items():
        order.offer(each, lines.book.usage(line.first.shape))
    first = order.first(now_s)
    assert first is not None
    for own, other in zip(reversed(list(account.up())), reversed(list(first.up())), strict=False):
        if own is not other:
            return (own, order.key(own, now_s)), (other, order.key(other, now_s))
    return None, None

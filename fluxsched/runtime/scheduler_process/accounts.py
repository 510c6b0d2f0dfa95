"""`sched.accounts`: the accounts of a scheduler as messages."""

from __future__ import annotations

import errno

from fluxsched.errors import Refused
from fluxsched.protocol.messages.accounts import AccountInfo, AccountsRequest, AccountsResponse
from fluxsched.sched.accounts.report import AccountRow
from fluxsched.sched.engine.scheduler import Scheduler


def accounts_of(scheduler: Scheduler, wanted: AccountsRequest, now_s: float) -> AccountsResponse:
    """The answer. Raises Refused (EOPNOTSUPP) where no policy asks for accounts."""
    found = scheduler.accounts_report(now_s, wanted.start)
    if found is None:
        text = "this scheduler keeps no accounts: use a policy that does, such as fair:backfill=easy"
        raise Refused(text, errno.EOPNOTSUPP)
    settings = found.settings
    return AccountsResponse(
        signal=settings.signal.value,
        half_life=settings.half_life_s,
        weights=dict(settings.weights),
        shares="all" if settings.shares_of_all else "active",
        capacity=found.capacity,
        budget=settings.budget_min,
        rate=settings.rate,
        accounts=[_info(row) for row in found.rows],
        next=found.next_start,
    )


def _info(row: AccountRow) -> AccountInfo:
    return AccountInfo(
        path=list(row.path),
        user=row.is_user,
        active=row.is_active,
        weight=row.weight,
        share=row.share,
        fair_usage=row.fair_usage,
        usage=row.usage,
        signal=row.level,
        firm_usage=row.firm_usage,
        firm_signal=row.firm_level,
        cap=row.cap_usage,
        budget_left=row.budget_left_min,
        held=row.held,
        waiting=row.waiting,
        running=row.running,
        preempted=row.preempted,
    )

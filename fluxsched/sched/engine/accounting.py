"""The accounts of a scheduler: kept once one of its policies asks for them, over all its groups and queues.

Law: there is one tree, so policies that want it settled differently are refused; what there is, is counted anew
whenever targets come, go, or go up or down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from enum import Enum
from typing import Any

from fluxsched.core.idset import EMPTY
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue
from fluxsched.sched.accounts.settings import FairSettings
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.policy import Policy, needs_accounts
from fluxsched.sched.pool.bitset import words_of
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.usage.amounts import summed
from fluxsched.sched.usage.book import UsageBook


def book_for(
    policies: Iterable[Policy], settings: FairSettings | None, user_name: Callable[[int], str]
) -> UsageBook | None:
    """The accounts that these policies need, None if none does. Raises InvalidValue if they contradict each other."""
    asking = [policy for policy in policies if needs_accounts(policy)]
    if not asking:
        return None
    return UsageBook(replace(settings or FairSettings(), **_overrides(asking)), user_name)


def _overrides(policies: Iterable[Policy]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    known = {field.name for field in fields(FairSettings)}
    for policy in policies:
        own: Mapping[str, object] = getattr(policy, "fair_overrides", {})
        if unknown := sorted(own.keys() - known):
            names = ", ".join(sorted(known))
            raise InvalidValue(f"policy {policy.name!r}: fair_overrides has {', '.join(unknown)}; there are {names}")
        for name, value in own.items():
            if found.setdefault(name, value) != value:
                raise InvalidValue(
                    f"policies contradict each other: {name} is {_text(found[name])} for one and {_text(value)} for "
                    "another, but a scheduler has one tree of accounts: give them the same"
                )
    return found


def _text(value: object) -> object:
    return value.value if isinstance(value, Enum) else value


def adopted_jobspec(jobspec: Jobspec | Mapping[str, Any] | None) -> Jobspec | None:
    """That of a job that is found running; None if it has none, or it is wrong: it runs, so it is not refused for that.
    """
    try:
        return jobspec if isinstance(jobspec, Jobspec) or jobspec is None else Jobspec.parse(jobspec)
    except InvalidValue:
        return None


def adopted_job(jobspec: Jobspec | None) -> tuple[str | None, float | None, float]:
    """Bank, `preemptible-after` (seconds) and time limit of a job that is found running."""
    if jobspec is None:
        return None, None, 0.0
    return jobspec.sharing.bank, jobspec.sharing.preemptible_after_s, jobspec.duration_s


def count_capacity(book: UsageBook, pools: Iterable[Pool], ledger: Ledger, now_s: float) -> None:
    """All usable targets, and what is held on others."""
    usable, found, down = dict[int, int](), [], EMPTY
    for pool in pools:
        ranks = pool.ranks - pool.down
        down |= pool.down
        for at, word in words_of(ranks.mask):
            usable[at] = usable.get(at, 0) | word
        found.append(book.amounts.of_targets(pool.source, ranks))
    instance = ledger.instance_countables
    found.append(book.amounts.of_amounts(instance.totals))
    inside = summed(found, len(book.tree.measure.resources))
    held = [block for holding in ledger.outside(down) for block in holding.blocks]
    book.set_capacity(usable, inside, held, now_s)

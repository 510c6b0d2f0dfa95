"""The groups of a scheduler, put together with what they share: the ledger and the preemptions; what may join them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue, RemoteProtocolError
from fluxsched.sched.accounts.measure import Measure
from fluxsched.sched.accounts.settings import FairSettings
from fluxsched.sched.engine.waiting.group import Group
from fluxsched.sched.engine.waiting.notices import SETTLE_S
from fluxsched.sched.engine.waiting.set_aside import UNSATISFIABLE, TimeText
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.policy import Policy
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.preemption.preemptions import Preemptions, cores_held
from fluxsched.sched.quotas.tree import QueueTree
from fluxsched.sched.usage.book import UsageBook

DEFAULT_GROUP = "default"

QUOTA_RATE, QUOTA_WINDOW_S = 10, 1.0
"""In a tree of queues at most so many are preempted in so many seconds."""


class GroupParts:
    """The parts, ready for use once `keep` was called; `serving` are the groups of each queue that is named."""

    def __init__(
        self,
        policy: Policy,
        names: Sequence[str],
        queues: Mapping[str, str | tuple[str, ...]],
        policies: Mapping[str, Policy],
        unsatisfiable: str,
        notify: bool,
        time_text: TimeText,
        fair: FairSettings | None,
        book: UsageBook | None,
        preempt_timeout_s: float,
    ) -> None:
        if not names:
            raise InvalidValue(f"a scheduler needs at least one group, such as {DEFAULT_GROUP!r}")
        if unsatisfiable not in UNSATISFIABLE:
            raise InvalidValue(f"unsatisfiable {unsatisfiable!r} is not one of {', '.join(UNSATISFIABLE)}")
        named = {queue: (at,) if isinstance(at, str) else at for queue, at in queues.items()}
        if missing := sorted({each for at in named.values() for each in at} - {*names}):
            raise InvalidValue(f"queues of groups {', '.join(missing)}, which this scheduler does not serve")
        pools = {name: Pool() for name in names}
        self.ledger = Ledger(list(pools.values()))
        of_group: dict[str, list[tuple[str, Policy]]] = {name: [] for name in names}
        for queue, own in policies.items():
            for name in named.get(queue, (names[0],)):
                of_group[name].append((queue, own))
        settings = (fair or FairSettings()) if book is None else book.settings
        for pool in pools.values():
            pool.classes.lost.set(Measure(settings.weights).unit_weights)
        rate = settings.rate
        usage_of = cores_held if book is None else book.held_usage
        self.preemptions = Preemptions(self.ledger, preempt_timeout_s, rate, usage_of)
        settled = unsatisfiable, notify, time_text, self.preemptions
        self.groups = {
            name: Group(name, pool, self.ledger, [*of_group[name], ("", policy)], *settled)
            for name, pool in pools.items()
        }
        self.serving = {queue: tuple([self.groups[name] for name in at]) for queue, at in named.items()}
        self.is_joint = any(len(at) > 1 for at in named.values())
        joint: dict[int, tuple[Group, ...]] = {}
        for group in self.groups.values():
            group.joint = joint
            if self.is_joint:
                group.notices.settle_s = SETTLE_S

    def keep(self, book: UsageBook | None, quotas: QueueTree | None) -> None:
        """From now on usage is booked in the accounts and in the queues, where there are any."""
        self.ledger.book, self.ledger.quotas = book, quotas
        if quotas is not None:
            self.preemptions.limit(QUOTA_RATE, QUOTA_WINDOW_S)
        lines: dict[int, int] | None = {} if self.is_joint else None
        for group in self.groups.values():
            if book is not None:
                group.keep_accounts(book, lines)
            if quotas is not None:
                group.keep_quotas(quotas)


def check_grow(at: Group, groups: Iterable[Group], resources: ResourceSet, online: Idset, offline: Idset) -> None:
    """Raises RemoteProtocolError for targets that are neither online nor offline, or that another group has."""
    if online | offline != resources.ranks or online & offline:
        raise RemoteProtocolError(f"grow of group {at.name!r}: each of ranks {resources.ranks} is online or offline")
    for other in groups:
        if twice := (other.pool.ranks | other.leaving) & resources.ranks if other is not at else EMPTY:
            raise RemoteProtocolError(f"grow of group {at.name!r} names ranks {twice}, which {other.name!r} has")

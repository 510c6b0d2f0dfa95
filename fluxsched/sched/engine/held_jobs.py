"""What happens to jobs that hold something: those that are found running, their ends, what they free.

Law: the ledger checks before anything changes; then all that follows it, the groups and the preemptions, is told.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from math import inf, nextafter
from types import MappingProxyType

from fluxsched.core.amounts import Amounts
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import Refused, RemoteProtocolError
from fluxsched.sched.effects import Effect, Raise
from fluxsched.sched.engine.accounting import adopted_job
from fluxsched.sched.engine.running.events import ResizedJobs, left_group
from fluxsched.sched.engine.waiting.group import Group
from fluxsched.sched.holdings.elastic import Elastic
from fluxsched.sched.ledger import Holding, Ledger
from fluxsched.sched.policy import Running
from fluxsched.sched.pool.placement import Part, blocks_in, blocks_of
from fluxsched.sched.preemption.preemptions import Preemptions
from fluxsched.sched.quotas.queue import Application, AskOptions
from fluxsched.sched.usage.book import UsageBook


class HeldJobs:
    """Of all groups; `waits` says whether a job waits, `accounts` are there if a policy asks for them.

    `resized` has what is to be done about those that may change their size.
    """

    def __init__(
        self,
        groups: Mapping[str, Group],
        ledger: Ledger,
        preemptions: Preemptions,
        waits: Callable[[int], bool],
        accounts: UsageBook | None,
    ) -> None:
        self._groups = groups
        self._ledger = ledger
        self._preemptions = preemptions
        self._waits = waits
        self._accounts = accounts
        self.resized = ResizedJobs(groups, ledger, preemptions, waits, self.freed, self.end_on)

    def hello(
        self,
        jobid: int,
        userid: int,
        R: ResourceSet,  # noqa: N803
        free: Idset,
        jobspec: Jobspec | None,
        now_s: float,
        preempted_s: float | None,
        elastic: Elastic | None,
    ) -> None:
        """A job that runs already."""
        if unknown := free - R.ranks:
            raise RemoteProtocolError(f"hello of job {jobid}: ranks {unknown} are freed, but R does not have them")
        bank, after_s, limit_s = adopted_job(jobspec)
        account = None if self._accounts is None else self._accounts.account_above(bank, userid)
        blocks = blocks_in(R, free)
        started_s = min(R.starttime_s, now_s or R.starttime_s)  # a clock may have been set back since
        self._ledger.adopt(jobid, blocks, R.expiration_s, started_s, account, after_s, limit_s, now_s, elastic)
        holding = self._ledger.get(jobid)
        if holding is not None:
            holding.userid = userid
            if jobspec is not None:
                holding.queue, holding.name = jobspec.queue or "", jobspec.job_name or ""
            self._preemptions.found(holding, preempted_s, now_s)
            if elastic is not None:
                self.resized.found(holding, "" if jobspec is None else jobspec.queue or "")
            self.resized.has_changed(holding)

    def adopt(
        self,
        jobid: int,
        rank: int,
        amounts: Amounts,
        application: Application,
        started_s: float,
        options: AskOptions,
        priority: int,
    ) -> list[Effect]:
        """An allocation that a resource manager has."""
        blocks = blocks_of([Part(rank, 0, 0, amounts)])
        holding = self._ledger.adopt_ask(jobid, blocks, application, started_s, options, priority)
        self._preemptions.began(holding)
        self.resized.has_changed(holding)
        return []

    def replace(self, old: int, new: int, amounts: Amounts, now_s: float) -> list[Effect]:
        """One job hands over to another on the same node."""
        before = self._ledger.get(old)
        blocks = () if before is None else tuple([block._replace(amounts=amounts) for block in before.blocks[:1]])
        holding, emptied = self._ledger.replace(old, new, blocks, now_s)
        for group in self._groups.values():
            group.withdraw(new)
        effects = self.freed(old, emptied)
        self._preemptions.began(holding)
        self.resized.has_changed(holding)
        return effects

    def freed(self, jobid: int, emptied: list[int]) -> list[Effect]:
        """A job has freed something, the last of it on these targets, which no pool counts."""
        effects: list[Effect] = []
        if self._preemptions.in_use:
            self._preemptions.freed(jobid, self._waits)
        for group in self._groups.values():
            group.freed(jobid)
            if emptied and group.leaving:
                effects += group.release(group.leaving & Idset.of(emptied))
        return effects

    def end_on(self, targets: Idset, now_s: float) -> list[Effect]:
        """Exceptions on the jobs on these targets, which have left their group; each is told once.

        Of an elastic job just what it can do without goes.
        """
        spared = self.resized.leave(targets, now_s)
        effects: list[Effect] = [effect for effect in spared.values() if effect is not None]
        for holding in self._ledger.end_on(targets, spared.keys()):
            mine = Idset.of([rank for rank in holding.parts if rank in targets])
            effects.append(Raise(holding.jobid, left_group(mine)))
        return effects

    def starts(self, jobid: int, started_s: float, expiration_s: float) -> None:
        """A job that has held its resources for a while starts now."""
        self._ledger.set_start(jobid, started_s, expiration_s)
        self.resized.has_changed(self._ledger.holdings[jobid])

    def preempt_failed(self, jobid: int) -> None:
        """A job that was to be preempted is not going."""
        holding = self._ledger.get(jobid)
        if holding is not None:
            self._preemptions.failed(jobid, self._waits)
            self.resized.has_changed(holding)

    def set_expiration(self, jobid: int, expiration_s: float) -> None:
        """A running job is to end at another time. Raises Refused if it cannot."""
        holding = self._ledger.get(jobid)
        if holding is None:
            raise Refused(f"expiration of job {jobid}: it holds nothing here", errno.ENOENT)
        for group in self._groups.values():
            end_s = group.expiration_s
            if end_s and expiration_s > end_s and any(rank in group.pool for rank in holding.parts):
                raise Refused(f"expiration {expiration_s} of job {jobid} is after the end of its resources, {end_s}")
        self._ledger.set_expiration(jobid, expiration_s)
        self.resized.has_changed(holding)


def end_of(limit_s: float, last_s: float, now_s: float) -> float:
    """When a job that starts now is to end (wall time, seconds; 0.0 for none); `last_s` is the end of the resources."""
    if not limit_s:
        return last_s
    own_s = now_s + limit_s
    if own_s <= now_s:
        own_s = nextafter(now_s, inf)  # later than now, however short the job is
    return min(own_s, last_s) if last_s else own_s


def running_job(holding: Holding) -> Running:
    """The job as policies see it."""
    return Running(
        holding.jobid,
        holding.expiration_s,
        MappingProxyType(holding.parts),
        holding.account,
        holding.preemptible_after_s,
        holding.started_s,
        holding.userid,
        holding.queue,
        holding.name,
    )

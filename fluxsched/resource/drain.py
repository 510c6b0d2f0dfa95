"""Drains, presence of targets, and which of them jobs hold: what decides whether a target may be used (RFC 44).

Laws: a request to drain (an administrator takes a target out of service for new jobs; who, when and why are stored)
is refused whole, naming all offenders, or done whole. A drain belongs to the host, survives a restart, and stays with
a lost target. One made for a graceful move (`for_move`) is undone by the move, one that an outage made (`outage` is
its name) by its end; as soon as a person overwrites it, it is theirs and stays, as is one that a program of the site
made. Of presence, only a change is an event; only online targets are torpid: one that goes offline stops being
torpid, and one that comes back is lively.

A target is held, by the job manager's record, from the moment its scheduler's success arrives until the stored
`release` that names it; several jobs may share a target. Every change costs the size of the job, not of the machine.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import InvalidValue, LimitExceeded, LocalProtocolError, Refused
from fluxsched.resource.effects import Outbox
from fluxsched.resource.inventory import Targets, are

OVERWRITE = {"none": 0, "update": 0, "overwrite": 1, "force-overwrite": 2}
"""Each mode of a drain request and the `overwrite` that RFC 44 records for it."""

PROGRAM_USERS = "fluxsched:"
"""Beginning of the users of drains that programs of the site have made: names that no account has."""

REASON_CHARS_MAX = 1024
"""A reason is a line for people; it is stored once a target and repeated in every status."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Why, since when (seconds since the epoch) and by whom a target is drained."""

    timestamp_s: float
    reason: str | None = None
    user: str | None = None
    for_move: bool = False
    outage: str = ""
    until_s: float = inf
    """When it ends by itself, seconds since the epoch."""

    def to_row(self) -> dict[str, Any]:
        """Return the drain as it is stored."""
        row: dict[str, Any] = {"timestamp": self.timestamp_s, "reason": self.reason, "user": self.user}
        if self.outage:
            row["outage"] = self.outage
        if self.until_s < inf:
            row["until"] = self.until_s
        return row | {"for_move": True} if self.for_move else row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Drain:
        """Return the drain that `to_row` stored."""
        for_move, outage = bool(row.get("for_move", False)), row.get("outage", "")
        until_s = float(row.get("until", inf))
        return cls(float(row["timestamp"]), row.get("reason"), row.get("user"), for_move, outage, until_s)


@dataclass(frozen=True, slots=True)
class DrainStatus:
    """One line of the drain status; `state` is `draining` while a job holds the targets, then `drained`."""

    timestamp_s: float
    reason: str | None
    user: str | None
    state: str
    until_s: float = inf


class Drains:
    """The drained targets, lost ones among them."""

    def __init__(self, targets: Targets, out: Outbox) -> None:
        self.drained = EMPTY
        self._targets = targets
        self._out = out
        self._of: dict[int, Drain] = {}
        self._ends_s: dict[int, float] = {}  # of those that end by themselves

    @property
    def next_s(self) -> float:
        """Return when the next drain ends by itself; `inf` if none does."""
        return min(self._ends_s.values(), default=inf)

    def due(self, now_s: float) -> Idset:
        """Return the targets whose drains end by themselves, and should have by now."""
        return Idset.of([rank for rank, end_s in self._ends_s.items() if end_s <= now_s])

    def get(self, rank: int) -> Drain | None:
        """Why this target is drained, None if it is not."""
        return self._of.get(rank)

    def restore(self, rank: int, drain: Drain) -> None:
        """Take up a stored drain."""
        self._set(rank, drain)
        self.drained |= Idset.of([rank])

    def drain(
        self,
        targets: Idset,
        reason: str | None,
        mode: str | None,
        user: str | None,
        now_s: float,
        excluded: Idset,
        until_s: float = inf,
    ) -> None:
        """Drain `targets` according to `mode`, until then.

        none: none may be drained for a reason. update: the new ones are drained, reasons are kept. Both give a reason
        to those that are drained without one.
        overwrite: reasons replaced, timestamps kept. force-overwrite: both replaced.
        Raises InvalidValue (EINVAL) for targets that are unknown, lost or excluded, Refused (EEXIST) for drained ones.
        """
        mode = checked_mode(mode)
        check_reason(reason)
        self._refuse(targets, mode, excluded)
        fresh, overwrite = targets - self.drained, OVERWRITE[mode]
        if overwrite:
            self._overwrite(targets, Drain(now_s, reason, user, until_s=until_s), keep_time=overwrite == 1)
            self._post_drain(targets, reason, overwrite, user, now_s)
            return
        self._overwrite(fresh, Drain(now_s, reason, user, until_s=until_s), keep_time=False)
        self._post_drain(fresh, reason, 0, user, now_s)
        blank = targets - fresh - self._with_reason(targets - fresh) if reason else EMPTY
        self._overwrite(blank, Drain(now_s, reason, user, until_s=until_s), keep_time=True)
        self._post_drain(blank, reason, 1, user, now_s)

    def drain_for_move(self, targets: Idset, group: str, user: str | None, now_s: float) -> None:
        """Drain those that are not drained yet until they have moved to `group`."""
        fresh, reason = targets - self.drained, f"moving to group {group}"
        self._overwrite(fresh, Drain(now_s, reason, user, for_move=True), keep_time=False)
        self._post_drain(fresh, reason, 0, user, now_s)

    def drain_for_outage(
        self, targets: Idset, name: str, reason: str, user: str | None, now_s: float, takes_over: bool = False
    ) -> None:
        """Drain those that are not drained yet until this outage is over; `takes_over`: all of them, whose own is."""
        fresh = targets if takes_over else targets - self.drained
        self._overwrite(fresh, Drain(now_s, reason, user, outage=name), keep_time=False)
        self._post_drain(fresh, reason, OVERWRITE["force-overwrite"] if takes_over else 0, user, now_s)

    def made_by(self, outage: str) -> Idset:
        """Return the targets that are drained by this outage."""
        return Idset.of([rank for rank, drain in self._of.items() if drain.outage == outage])

    def outages(self) -> set[str]:
        """Return the names of the outages that have drained some target."""
        return {drain.outage for drain in self._of.values() if drain.outage}

    def undrain(self, targets: Idset, reason: str | None, mode: str | None, user: str | None, now_s: float) -> None:
        """Undrain `targets`. Without a mode all must be drained: Refused (EEXIST) names all that are not."""
        mode = checked_mode(mode)
        check_reason(reason)
        _check_some(targets, "undrain")
        self._targets.require(targets, "undrain")
        idle = targets - self.drained
        if idle and mode == "none":
            described = f"{self._targets.describe(idle)} {are(idle)} not drained"
            raise Refused(f"cannot undrain: {described}; `--force` undrains the others", errno.EEXIST)
        self.lift(targets, reason, user, now_s, OVERWRITE[mode])

    def lift(self, targets: Idset, reason: str | None, user: str | None, now_s: float, overwrite: int = 0) -> None:
        """Undrain those of them that are drained, with an event."""
        lifted = targets & self.drained
        if not lifted:
            return
        for rank in lifted:
            del self._of[rank]
            self._ends_s.pop(rank, None)
            self._out.save("drain", self._targets.key(rank), None)
        self.drained -= lifted
        self._out.post(now_s, "undrain", self._context(lifted, reason, overwrite, user))

    def made_for_move(self, targets: Idset) -> Idset:
        """Return the targets among these whose drain a graceful move made."""
        return Idset.of([rank for rank in targets & self.drained if self._of[rank].for_move])

    def report(self, targets: Idset, held: Idset) -> dict[Idset, DrainStatus]:
        """Return the drained among `targets`, equal lines merged, by lowest rank; `held` by a job means draining."""
        merged: dict[DrainStatus, list[int]] = {}
        for rank in targets & self.drained:
            drain, state = self._of[rank], "draining" if rank in held else "drained"
            info = DrainStatus(drain.timestamp_s, drain.reason, drain.user, state, drain.until_s)
            merged.setdefault(info, []).append(rank)
        return {Idset.of(ranks): info for info, ranks in merged.items()}

    def _refuse(self, targets: Idset, mode: str, excluded: Idset) -> None:
        """One error for all that is wrong: EEXIST if nothing is unknown and something is drained, else EINVAL."""
        _check_some(targets, "drain")
        faults, describe = self._targets.faults(targets), self._targets.describe
        unknown = bool(faults)
        outside = targets & excluded
        twice = self._with_reason(targets & self.drained - self._targets.lost) if mode == "none" else EMPTY
        if outside:
            faults.append(f"{describe(outside)} {are(outside)} excluded")
        if twice:
            faults.append(f"{describe(twice)} already drained")
        if twice and not unknown:
            raise Refused(f"cannot drain: {'; '.join(faults)}", errno.EEXIST)
        if faults:
            raise InvalidValue(f"cannot drain: {'; '.join(faults)}")

    def _with_reason(self, targets: Idset) -> Idset:
        return Idset.of([rank for rank in targets if self._of[rank].reason])

    def _overwrite(self, targets: Idset, drain: Drain, keep_time: bool) -> None:
        for rank in targets:
            before = self._of.get(rank) if keep_time else None
            made = drain
            if before is not None:
                user = drain.user if (before.user or "").startswith(PROGRAM_USERS) else before.user
                made = replace(drain, timestamp_s=before.timestamp_s, user=user)
            self._set(rank, made)
            self._out.save("drain", self._targets.key(rank), made.to_row())
        self.drained |= targets

    def _set(self, rank: int, drain: Drain) -> None:
        self._of[rank] = drain
        self._ends_s.pop(rank, None)
        if drain.until_s < inf:
            self._ends_s[rank] = drain.until_s

    def _post_drain(self, targets: Idset, reason: str | None, overwrite: int, user: str | None, now_s: float) -> None:
        if targets:
            self._out.post(now_s, "drain", self._context(targets, reason, overwrite, user))

    def _context(self, targets: Idset, reason: str | None, overwrite: int, user: str | None) -> dict[str, Any]:
        context: dict[str, Any] = {"idset": str(targets), "nodelist": self._targets.nodelist(targets)}
        if reason is not None:
            context["reason"] = reason
        context["overwrite"] = overwrite
        if user is not None:
            context["user"] = user
        return context


def checked_mode(mode: str | None) -> str:
    """Return the mode of a drain request. Raises InvalidValue."""
    if mode is None:
        return "none"
    if mode not in OVERWRITE:
        raise InvalidValue(f"drain mode {mode!r} is unknown: give one of {', '.join(OVERWRITE)}")
    return mode


def check_reason(reason: str | None) -> None:
    """Raise LimitExceeded for a reason that is too long."""
    if reason is not None and len(reason) > REASON_CHARS_MAX:
        raise LimitExceeded(f"reason of {len(reason)} characters is above the limit of {REASON_CHARS_MAX}: shorten it")


def _check_some(targets: Idset, purpose: str) -> None:
    if not targets:
        raise InvalidValue(f"cannot {purpose}: the set of targets is empty; name at least one")


# ---- presence of targets

class Monitor:
    """Two sets and their events; callers have checked that the targets exist."""

    def __init__(self, out: Outbox, online: Idset = EMPTY) -> None:
        self.online = online
        self.torpid = EMPTY
        self._out = out

    @property
    def available(self) -> Idset:
        """Return the targets that are online and lively."""
        return self.online - self.torpid

    def set_online(self, targets: Idset, now_s: float) -> None:
        """Mark the targets among these that were offline as online."""
        joined = targets - self.online
        self.online |= joined
        self._post("online", joined, now_s)

    def set_offline(self, targets: Idset, now_s: float) -> None:
        """Mark the targets among these that were online as offline."""
        left = targets & self.online
        self.online -= left
        self._post("offline", left, now_s)
        self.set_lively(left, now_s)

    def set_torpid(self, targets: Idset, now_s: float) -> None:
        """Mark the online targets among these as torpid: they have sent no heartbeat for a while."""
        silent = (targets & self.online) - self.torpid
        self.torpid |= silent
        self._post("torpid", silent, now_s)

    def set_lively(self, targets: Idset, now_s: float) -> None:
        """Mark the targets among these that were torpid as lively: they have sent a heartbeat."""
        lively = targets & self.torpid
        self.torpid -= lively
        self._post("lively", lively, now_s)

    def _post(self, name: str, targets: Idset, now_s: float) -> None:
        if targets:
            self._out.post(now_s, name, {"idset": str(targets)})


# ---- targets that jobs hold

class TargetUse:
    """Counts, per target, the jobs that hold it.

    The union of what is held is read seldom and changes with every job, so it is updated when it is read: at 16,384
    targets that halves the cost of a job here.
    """

    def __init__(self) -> None:
        self._held = EMPTY
        self._changed: set[int] = set()
        self._jobs: dict[int, Idset] = {}
        self._holders: dict[int, int] = {}
        self._raised: set[int] = set()

    @property
    def held(self) -> Idset:
        """Return the targets that jobs hold."""
        if self._changed:
            changed, self._changed = self._changed, set()
            now = Idset.of([rank for rank in changed if rank in self._holders])
            self._held = self._held - Idset.of(changed) | now
        return self._held

    def add(self, jobid: int, targets: Idset) -> None:
        """Record that the job holds these targets too; those that it holds already are not counted twice."""
        before = self._jobs.get(jobid)
        holders = self._holders
        for rank in targets if before is None else targets - before:
            holders[rank] = holders.get(rank, 0) + 1
            self._changed.add(rank)
        if targets:
            self._jobs[jobid] = targets if before is None else before | targets

    def drop(self, jobid: int, targets: Idset) -> list[int]:
        """Record that the job has released these targets; return those that no job holds any more.

        Raises LocalProtocolError if the job does not hold one of them: our record is wrong, and targets would move
        under a running job.
        """
        before = self._jobs.get(jobid, EMPTY)
        if targets == before:
            self._jobs.pop(jobid, None)
            self._raised.discard(jobid)
        elif targets <= before:
            self._jobs[jobid] = before - targets
        else:
            raise LocalProtocolError(f"job {jobid} releases ranks {targets - before} that it does not hold")
        freed = [rank for rank in targets if self._leave(rank)]
        self._changed.update(freed)
        return freed

    def of(self, jobid: int) -> Idset:
        """Return the targets that the job holds."""
        return self._jobs.get(jobid, EMPTY)

    def jobs_on(self, targets: Idset) -> list[int]:
        """Return the jobs that hold some of these targets."""
        if targets.isdisjoint(self.held):
            return []
        return [jobid for jobid, held in self._jobs.items() if not held.isdisjoint(targets)]

    def raise_once(self, targets: Idset) -> tuple[int, ...]:
        """Return the jobs that hold a part of `targets` and were not returned before."""
        jobids = [job for job in self.jobs_on(targets) if job not in self._raised]
        self._raised.update(jobids)
        return tuple(jobids)

    def check(self) -> None:
        """Assert that counts, sets and union agree."""
        counts: dict[int, int] = {}
        for targets in self._jobs.values():
            assert targets, "a job that holds nothing is remembered"
            for rank in targets:
                counts[rank] = counts.get(rank, 0) + 1
        assert counts == self._holders, "the number of holders of a target is wrong"
        assert Idset.of(counts) == self.held, "the union of what jobs hold is wrong"

    def _leave(self, rank: int) -> bool:
        self._holders[rank] -= 1
        if self._holders[rank]:
            return False
        del self._holders[rank]
        return True

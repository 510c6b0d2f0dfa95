"""Drains, presence of targets, and which of them jobs hold: what decides whether a target may be used (RFC 44).

Laws: a request to drain (an administrator takes a target out of service for new jobs; who, when and why are stored)
is refused whole, naming all offenders, or done whole. A drain belongs to the host, survives a restart, and stays with
a lost target. A target is drained as long as it has a reason. It has at most one of each source: a graceful move, an
outage, a program of the site, each text of a person; a source adds its own beside the others and lifts just that one,
while an undrain that does not name one lifts all, and an overwrite replaces all. The journal has what changes, in one
event for all targets of a call whatever other reasons they have: a reason that is added is a `drain` with `overwrite`
0, one that is lifted while others stay a `drain-lift`. Of presence, only a change is an event; only online targets are
torpid: one that goes offline stops being torpid, and one that comes back is lively.

A target is held, by the job manager's record, from the moment its scheduler's success arrives until the stored
`release` that names it; several jobs may share a target. Every change costs the size of the job, not of the machine.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.text import printable
from fluxsched.errors import InvalidValue, LimitExceeded, LocalProtocolError, Refused
from fluxsched.resource.effects import Outbox
from fluxsched.resource.inventory import Targets, are

ADD = "add"
"""Mode of a drain request, ours: a further reason is kept beside those that are there."""

OVERWRITE = {"none": 0, "update": 0, ADD: 0, "overwrite": 1, "force-overwrite": 2}
"""Each mode of a drain request and the `overwrite` that RFC 44 records for it."""

PROGRAM_USERS = "fluxsched:"
"""Beginning of the users of drains that programs of the site have made: names that no account has."""

REASON_CHARS_MAX = 1024
"""A reason is a line for people; it is stored once a target and repeated in every status."""

REASONS_MAX = 16
"""Reasons of persons that a target, or a part of one, may have at once: all are shown in one line."""


@dataclass(frozen=True, slots=True)
class Drain:
    """One reason for which a target is drained, since when (seconds since the epoch) and by whom."""

    timestamp_s: float
    reason: str | None = None
    user: str | None = None
    for_move: bool = False
    outage: str = ""
    until_s: float = inf
    """When it ends by itself, seconds since the epoch."""

    @property
    def is_planned(self) -> bool:
        """Return whether an outage or a move made it."""
        return self.for_move or bool(self.outage)

    @property
    def is_personal(self) -> bool:
        """Return whether a person made it."""
        return not self.is_planned and not (self.user or "").startswith(PROGRAM_USERS)

    @property
    def source(self) -> tuple[str | None, ...]:
        """Return what made it: of each source a target has one reason at most."""
        if self.is_planned:
            return ("outage", self.outage) if self.outage else ("move", None)
        return ("person", self.user, self.reason) if self.is_personal else ("program", self.user)

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


DrainReasons = tuple[Drain, ...]
"""Reasons that keep a target drained, the oldest first."""


def reasons_from_row(row: Mapping[str, Any]) -> DrainReasons:
    """Return the reasons of a target that were stored."""
    return tuple([Drain.from_row(each) for each in (row, *row.get("also", ()))])


def _to_row(reasons: DrainReasons) -> dict[str, Any]:
    first, *others = [each.to_row() for each in reasons]
    return first | {"also": others} if others else first


def joined_reason(reasons: DrainReasons) -> str | None:
    """Return the reasons as one line, each text once; None if there are none in words."""
    return "; also: ".join(dict.fromkeys([each.reason for each in reasons if each.reason])) or None


@dataclass(frozen=True, slots=True)
class DrainStatus:
    """One line of the drain status; `state` is `draining` while a job holds the targets, then `drained`.

    Of several `reasons`, timestamp and user are those of the first, and `until_s` is when the last one ends.
    """

    timestamp_s: float
    reason: str | None
    user: str | None
    state: str
    until_s: float = inf
    reasons: DrainReasons = ()


class Drains:
    """The drained targets, lost ones among them."""

    def __init__(self, targets: Targets, out: Outbox) -> None:
        self.drained = EMPTY
        self._targets = targets
        self._out = out
        self._of: dict[int, DrainReasons] = {}
        self._ends_s: dict[int, float] = {}  # of those with a reason that ends by itself
        self._planned: set[int] = set()  # of those that outages and moves alone made

    @property
    def next_s(self) -> float:
        """Return when the next drain ends by itself; `inf` if none does."""
        return min(self._ends_s.values(), default=inf)

    def end_due(self, now_s: float) -> None:
        """Lift what ends by itself, and should have by now."""
        due = Idset.of([rank for rank, end_s in self._ends_s.items() if end_s <= now_s])
        self.lift(due, "its time is over", None, now_s, which=lambda each: each.until_s <= now_s)

    @property
    def unplanned(self) -> Idset:
        """Return the drained targets without those that outages and moves alone have drained."""
        return self.drained - Idset.of(self._planned) if self._planned else self.drained

    def restore(self, rank: int, row: Mapping[str, Any]) -> None:
        """Take up the stored reasons of a target."""
        self._set(rank, reasons_from_row(row))
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
        overwrite: reasons replaced, timestamps kept. force-overwrite: both replaced. add: reasons kept beside this one.
        Raises InvalidValue (EINVAL) for targets that are unknown, lost or excluded, Refused (EEXIST) for drained ones,
        LimitExceeded for those with REASONS_MAX.
        """
        mode = checked_mode(mode)
        check_reason(reason)
        self._refuse(targets, mode, excluded)
        made, overwrite = Drain(now_s, reason, user, until_s=until_s), OVERWRITE[mode]
        if mode == ADD:
            self._check_room(targets, made)
            self.add(targets, made)
            return
        if overwrite:
            self._overwrite(targets, made, keep_time=overwrite == 1)
            self._post_drain(targets, reason, overwrite, user, now_s)
            return
        fresh = targets - self.drained
        self._overwrite(fresh, made, keep_time=False)
        self._post_drain(fresh, reason, 0, user, now_s)
        blank = targets - fresh - self._with_reason(targets - fresh) if reason else EMPTY
        self._overwrite(blank, made, keep_time=True)
        self._post_drain(blank, reason, 1, user, now_s)

    def add(self, targets: Idset, made: Drain) -> None:
        """Drain `targets` for this reason, too, in place of the one that its source has there, whose time is kept."""
        source, fresh, added = made.source, targets - self.drained, list[int]()
        replaced: dict[str, list[int]] = {}
        self._overwrite(fresh, made, keep_time=False)
        for rank in targets - fresh:
            before = self._of[rank]
            at = next((at for at, each in enumerate(before) if each.source == source), len(before))
            mine = replace(made, timestamp_s=before[at].timestamp_s) if at < len(before) else made
            after = (*before[:at], mine, *before[at + 1 :])
            if after != before:
                self._put(rank, after)
                added.append(rank)
                _note_lifted(replaced, rank, before, after)
        self._post_lifted(replaced, None, made.user, made.timestamp_s)
        self._post_drain(fresh | Idset.of(added), made.reason, 0, made.user, made.timestamp_s)

    def outages(self) -> set[str]:
        """Return the names of the outages that have drained some target."""
        return {each.outage for reasons in self._of.values() for each in reasons if each.outage}

    def undrain(
        self, targets: Idset, reason: str | None, mode: str | None, user: str | None, now_s: float,
        only: str | None = None,
    ) -> None:  # fmt: skip
        """Undrain `targets`, or lift the reason `only` of them. Without a mode all must be drained, for that reason:
        Refused (EEXIST) names all that are not.
        """
        mode = checked_mode(mode, "undrain")
        check_reason(reason)
        _check_some(targets, "undrain")
        self._targets.require(targets, "undrain")
        which = reason_is(only)
        idle = targets - self.having(targets, which)
        if idle and mode == "none":
            described = f"{self._targets.describe(idle)} {are(idle)} not {drained_text(only)}"
            raise Refused(f"cannot undrain: {described}", errno.EEXIST)
        self.lift(targets, reason, user, now_s, OVERWRITE[mode], which)

    def lift(
        self, targets: Idset, reason: str | None, user: str | None, now_s: float, overwrite: int = 0,
        which: Callable[[Drain], bool] | None = None,
    ) -> None:  # fmt: skip
        """Undrain those of them that are drained, with an event; with `which`, lift only such reasons."""
        gone, kept, lifted = targets & self.drained, list[int](), dict[str, list[int]]()
        for rank in gone:
            before = self._of[rank]
            if which is not None and (after := tuple([each for each in before if not which(each)])):
                kept.append(rank)
                if after != before:
                    self._put(rank, after)
                    _note_lifted(lifted, rank, before, after)
        self._post_lifted(lifted, reason, user, now_s)
        gone -= Idset.of(kept)
        if not gone:
            return
        for rank in gone:
            del self._of[rank]
            self._ends_s.pop(rank, None)
            self._planned.discard(rank)
            self._out.save("drain", self._targets.key(rank), None)
        self.drained -= gone
        self._out.post(now_s, "undrain", self._context(gone, reason, overwrite, user))

    def having(self, targets: Idset, which: Callable[[Drain], bool] | None) -> Idset:
        """Return the targets among these that are drained for such a reason, perhaps for others, too; None: for any."""
        drained = targets & self.drained
        return drained if which is None else Idset.of([rank for rank in drained if any(map(which, self._of[rank]))])

    def report(self, targets: Idset, held: Idset) -> dict[Idset, DrainStatus]:
        """Return the drained among `targets`, equal lines merged, by lowest rank; `held` by a job means draining."""
        merged: dict[DrainStatus, list[int]] = {}
        for rank in targets & self.drained:
            reasons, state = self._of[rank], "draining" if rank in held else "drained"
            first, until_s = reasons[0], max([each.until_s for each in reasons])
            several = reasons if len(reasons) > 1 else ()
            info = DrainStatus(first.timestamp_s, joined_reason(reasons), first.user, state, until_s, several)
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

    def _check_room(self, targets: Idset, made: Drain) -> None:
        check_added(made.reason)
        full = list[int]()
        for rank in targets & self.drained:
            of_persons = [each.reason for each in self._of[rank] if each.is_personal]
            if made.is_personal and len(of_persons) >= REASONS_MAX and made.reason not in of_persons:
                full.append(rank)
        check_reasons(self._targets, full)

    def _with_reason(self, targets: Idset) -> Idset:
        return Idset.of([rank for rank in targets if any(each.reason for each in self._of[rank])])

    def _overwrite(self, targets: Idset, drain: Drain, keep_time: bool) -> None:
        for rank in targets:
            before = self._of.get(rank) if keep_time else None
            made = drain
            if before is not None:
                user = drain.user if (before[0].user or "").startswith(PROGRAM_USERS) else before[0].user
                made = replace(drain, timestamp_s=before[0].timestamp_s, user=user)
            self._put(rank, (made,))
        self.drained |= targets

    def _put(self, rank: int, reasons: DrainReasons) -> None:
        self._set(rank, reasons)
        self._out.save("drain", self._targets.key(rank), _to_row(reasons))

    def _set(self, rank: int, reasons: DrainReasons) -> None:
        self._of[rank] = reasons
        self._ends_s.pop(rank, None)
        if (end_s := min([each.until_s for each in reasons])) < inf:
            self._ends_s[rank] = end_s
        if all(each.is_planned for each in reasons):
            self._planned.add(rank)
        else:
            self._planned.discard(rank)

    def _post_drain(self, targets: Idset, reason: str | None, overwrite: int, user: str | None, now_s: float) -> None:
        if targets:
            self._out.post(now_s, "drain", self._context(targets, reason, overwrite, user))

    def _post_lifted(
        self, lifted: Mapping[str, list[int]], reason: str | None, user: str | None, now_s: float
    ) -> None:  # fmt: skip
        for only, ranks in lifted.items():
            context = self._context(Idset.of(ranks), reason, None, user)
            self._out.post(now_s, "drain-lift", context | {"only": only})

    def _context(self, targets: Idset, reason: str | None, overwrite: int | None, user: str | None) -> dict[str, Any]:
        context: dict[str, Any] = {"idset": str(targets), "nodelist": self._targets.nodelist(targets)}
        optional = (("reason", reason), ("overwrite", overwrite), ("user", user))
        return context | {key: value for key, value in optional if value is not None}


def _note_lifted(lifted: dict[str, list[int]], rank: int, before: DrainReasons, after: DrainReasons) -> None:
    """Add the target to those of each text that it had for a reason, and has no more."""
    left = {each.reason for each in after}
    for text in dict.fromkeys([each.reason for each in before if each.reason not in left]):
        lifted.setdefault(text or "", []).append(rank)


def checked_mode(mode: str | None, purpose: str = "drain") -> str:
    """Return the mode of a request to drain or undrain. Raises InvalidValue."""
    if mode is None:
        return "none"
    known = [each for each in OVERWRITE if each != ADD or purpose == "drain"]
    if mode not in known:
        raise InvalidValue(f"{purpose} mode {mode!r} is unknown: give one of {', '.join(known)}")
    return mode


def check_reason(reason: str | None) -> None:
    """Raise LimitExceeded for a reason that is too long."""
    if reason is not None and len(reason) > REASON_CHARS_MAX:
        raise LimitExceeded(f"reason of {len(reason)} characters is above the limit of {REASON_CHARS_MAX}: shorten it")


def reason_is(only: str | None) -> Callable[[Drain], bool] | None:
    """Return the choice of an undrain that lifts this reason alone; None if it lifts all."""
    return None if only is None else lambda each: (each.reason or "") == only


def drained_text(only: str | None) -> str:
    """Return in words the state of targets that such an undrain applies to."""
    return "drained" if only is None else f"drained for {printable(only)!r}"


def check_added(reason: str | None) -> None:
    """Raise InvalidValue if there is no reason to add."""
    if not reason:
        raise InvalidValue("a drain that is added has a reason, by which it is known: give one")


def check_reasons(targets: Targets, full: list[int]) -> None:
    """Raise LimitExceeded if there are targets with as many reasons as one may have."""
    if full:
        described = targets.describe(Idset.of(full))
        raise LimitExceeded(f"{described}: drained for {REASONS_MAX} reasons, which is the limit: lift some of them")


def _check_some(targets: Idset, purpose: str) -> None:
    if not targets:
        raise InvalidValue(f"cannot {purpose}: the set of targets is empty; name at least one")


# ---- presence of targets


class Monitor:
    """Two sets and their events; callers have checked that the targets exist."""

    def __init__(self, out: Outbox, online: Idset = EMPTY) -> None:
        self.online = online
        self.torpid = EMPTY
        self.gone = EMPTY
        """Targets that have been online since the start, and are not."""
        self._out = out

    @property
    def available(self) -> Idset:
        """Return the targets that are online and lively."""
        return self.online - self.torpid

    def set_online(self, targets: Idset, now_s: float) -> None:
        """Mark the targets among these that were offline as online."""
        joined = targets - self.online
        self.online |= joined
        self.gone -= joined
        self._post("online", joined, now_s)

    def set_offline(self, targets: Idset, now_s: float) -> None:
        """Mark the targets among these that were online as offline."""
        left = targets & self.online
        self.online -= left
        self.gone |= left
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

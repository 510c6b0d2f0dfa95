"""Drain: an administrator takes a target out of service for new jobs; who, when and why are stored (RFC 44).

Law: a request is refused whole, naming all offenders, or done whole. A drain belongs to the host, survives a restart,
and stays with a lost target. One made for a graceful move (`for_move`) is undone by the move; as soon as a person
overwrites it, it is theirs and stays.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.resource.journal import Outbox
from fluxsched.resource.state.inventory import Targets, are

OVERWRITE = {"none": 0, "update": 0, "overwrite": 1, "force-overwrite": 2}
"""Each mode of a drain request and the `overwrite` that RFC 44 records for it."""

REASON_CHARS_MAX = 1024
"""A reason is a line for people; it is stored once a target and repeated in every status."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Why, since when (seconds since the epoch) and by whom a target is drained."""

    timestamp_s: float
    reason: str | None = None
    user: str | None = None
    for_move: bool = False

    def to_row(self) -> dict[str, Any]:
        """Return the drain as it is stored."""
        row: dict[str, Any] = {"timestamp": self.timestamp_s, "reason": self.reason, "user": self.user}
        return row | {"for_move": True} if self.for_move else row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Drain:
        """Return the drain that `to_row` stored."""
        return cls(float(row["timestamp"]), row.get("reason"), row.get("user"), bool(row.get("for_move", False)))


@dataclass(frozen=True, slots=True)
class DrainStatus:
    """One line of the drain status; `state` is `draining` while a job holds the targets, then `drained`."""

    timestamp_s: float
    reason: str | None
    user: str | None
    state: str


class Drains:
    """The drained targets, lost ones among them."""

    def __init__(self, targets: Targets, out: Outbox) -> None:
        self.drained = EMPTY
        self._targets = targets
        self._out = out
        self._of: dict[int, Drain] = {}

    def get(self, rank: int) -> Drain | None:
        """Why this target is drained, None if it is not."""
        return self._of.get(rank)

    def restore(self, rank: int, drain: Drain) -> None:
        """Take up a stored drain."""
        self._of[rank] = drain
        self.drained |= Idset.of([rank])

    def drain(
        self, targets: Idset, reason: str | None, mode: str | None, user: str | None, now_s: float, excluded: Idset
    ) -> None:
        """Drain `targets` according to `mode`.

        none: none may be drained for a reason. update: the new ones are drained, reasons are kept. Both give a reason
        to those that are drained without one.
        overwrite: reasons replaced, timestamps kept. force-overwrite: both replaced.
        Raises InvalidValue (EINVAL) for targets that are unknown, lost or excluded, Refused (EEXIST) for drained ones.
        """
        mode = _checked_mode(mode)
        _check_reason(reason)
        self._refuse(targets, mode, excluded)
        fresh, overwrite = targets - self.drained, OVERWRITE[mode]
        if overwrite:
            self._overwrite(targets, Drain(now_s, reason, user), keep_time=overwrite == 1)
            self._post_drain(targets, reason, overwrite, user, now_s)
            return
        self._overwrite(fresh, Drain(now_s, reason, user), keep_time=False)
        self._post_drain(fresh, reason, 0, user, now_s)
        blank = targets - fresh - self._with_reason(targets - fresh) if reason else EMPTY
        self._overwrite(blank, Drain(now_s, reason, user), keep_time=True)
        self._post_drain(blank, reason, 1, user, now_s)

    def drain_for_move(self, targets: Idset, group: str, user: str | None, now_s: float) -> None:
        """Drain those that are not drained yet until they have moved to `group`."""
        fresh, reason = targets - self.drained, f"moving to group {group}"
        self._overwrite(fresh, Drain(now_s, reason, user, for_move=True), keep_time=False)
        self._post_drain(fresh, reason, 0, user, now_s)

    def undrain(self, targets: Idset, reason: str | None, mode: str | None, user: str | None, now_s: float) -> None:
        """Undrain `targets`. Without a mode all must be drained: Refused (EEXIST) names all that are not."""
        mode = _checked_mode(mode)
        _check_reason(reason)
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
            self._out.save("drain", self._targets.key(rank), None)
        self.drained -= lifted
        self._out.post(now_s, "undrain", self._context(lifted, reason, overwrite, user))

    def made_for_move(self, targets: Idset) -> Idset:
        """Return the targets among these whose drain a graceful move made."""
        return Idset.of([rank for rank in targets & self.drained if self._of[rank].for_move])

    def report(self, targets: Idset, held: Idset) -> dict[Idset, DrainStatus]:
        """The drained among `targets`, equal lines merged, by lowest rank; `held` by a job means draining."""
        merged: dict[DrainStatus, list[int]] = {}
        for rank in targets & self.drained:
            drain, state = self._of[rank], "draining" if rank in held else "drained"
            info = DrainStatus(drain.timestamp_s, drain.reason, drain.user, state)
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
            made = drain if before is None else replace(before, reason=drain.reason, for_move=False)
            self._of[rank] = made
            self._out.save("drain", self._targets.key(rank), made.to_row())
        self.drained |= targets

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


def _checked_mode(mode: str | None) -> str:
    if mode is None:
        return "none"
    if mode not in OVERWRITE:
        raise InvalidValue(f"drain mode {mode!r} is unknown: give one of {', '.join(OVERWRITE)}")
    return mode


def _check_reason(reason: str | None) -> None:
    if reason is not None and len(reason) > REASON_CHARS_MAX:
        raise LimitExceeded(f"reason of {len(reason)} characters is above the limit of {REASON_CHARS_MAX}: shorten it")


def _check_some(targets: Idset, purpose: str) -> None:
    if not targets:
        raise InvalidValue(f"cannot {purpose}: the set of targets is empty; name at least one")

"""Presence of targets: online or offline, lively or torpid (RFC 44).

Law: only a change is an event. Only online targets are torpid: one that goes offline stops being torpid, and one that
comes back is lively.
"""

from __future__ import annotations

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.resource.journal import Outbox


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

"""Health checks: one at a time on a host, none of which is online before its first has ended; what has failed, or has
run into its time limit three times in a row, is drained, and in use again once a check is good. No other drain is one
of theirs.

What ended while the instance, or the keeper, was away says nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from math import inf
from typing import Any, NamedTuple

from tests.chaos.checkers.base import HEALTH_USER, INSTANCE, Call, Checker, Site, Truth, reasons_of
from tests.chaos.observations import EPOCH_S, KeeperConnected, ProcessEnded, ProgramBegan, ProgramEnded
from tests.chaos.wire import idset

HEALTH = "health"
UNKNOWN = 75 << 8
TIMEOUTS = 3
EFFECTIVE_S = 30.0
"""How long the end of a check may be without effect (seconds)."""
MARGIN_S = 0.3
"""By how much a check may have been shorter than its time limit, and late for the instance (seconds)."""
TURN_S = 0.1
"""Events of one turn have one time: more than it lasts (seconds)."""


class Check(NamedTuple):
    """One that has ended; `is_bad`: so that its host may be drained for it, `is_late`: it may have been too late."""

    began_s: float
    ended_s: float
    status: int
    is_late: bool
    is_bad: bool


class Health(Checker):
    """Compares drains with how checks have ended."""

    name = "health"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._running: dict[int, ProgramBegan] = {}
        self._checks: dict[str, list[Check]] = defaultdict(list)
        self._late: dict[str, int] = defaultdict(int)
        """How often in a row each host has run into the time limit."""
        self._connected: dict[str, list[float]] = defaultdict(list)
        """When the keeper of each host has connected."""
        self._gone_s: dict[str, list[float]] = defaultdict(list)
        """When the instance (INSTANCE), or something on a host, has ended."""
        self._excluded: set[int] = set()

    def asked(self, call: Call) -> None:
        """What is excluded is not drained."""
        if call.topic == "resource.assign" and call.payload["group"] == "exclude":
            self._excluded |= idset(call.payload["targets"])

    # ---- checks

    def keeper_connected(self, connected: KeeperConnected) -> None:
        """What was asked of another one may end beside what is asked of this one."""
        self._connected[connected.host].append(connected.at_s)

    def process_ended(self, ended: ProcessEnded) -> None:
        """Ends that it was to report are lost."""
        self._gone_s[ended.process.rpartition("-")[2]].append(ended.at_s)

    def program_began(self, program: ProgramBegan) -> None:
        """Alone, but for one of an earlier connection."""
        if program.what != HEALTH:
            return
        for other in self._running.values():
            if other.host == program.host and not self._has_come_anew(other.host, other.at_s):
                raise self.broken(f"two checks run on {program.host}: since {other.at_s} s and now")
        self._running[program.number] = program

    def _has_come_anew(self, host: str, since_s: float, until_s: float = inf) -> bool:
        """Whether something has ended, or connected, that may have had to do with a check."""
        times_s = (*self._connected[host], *self._gone_s[host], *self._gone_s[INSTANCE])
        return any(since_s <= at_s <= until_s for at_s in times_s)

    def program_ended(self, program: ProgramEnded) -> None:
        """Well, or not."""
        began = self._running.pop(program.number, None)
        if began is None:
            return
        host, status = began.host, program.status
        is_late = self.site.is_slow or program.at_s - began.at_s > self.site.health_timeout_s - MARGIN_S
        self._late[host] = self._late[host] + 1 if is_late else 0
        is_bad = status not in (0, UNKNOWN) or self._late[host] >= TIMEOUTS
        self._checks[host].append(Check(began.at_s, program.at_s, status, is_late, is_bad))

    # ---- drains

    def answered(self, call: Call, payload: Any, errnum: int) -> None:
        """What a check has drained is what one has found bad, and none good for long."""
        if call.topic == "resource.status" and not errnum:
            for host in _drained(payload):
                checks = self._checks[f"node{host}"]
                bad = [one.ended_s for one in checks if one.is_bad]
                good = [one for one in checks if not (one.status or one.is_late) and bad and one.ended_s > bad[-1]]
                if not bad or len([one for one in good if one.ended_s < call.asked_s - EFFECTIVE_S]) > 1:
                    raise self.broken(f"node{host} is drained by a check; its last were {checks[-5:]}")

    # ---- in the end

    def settled(self, truth: Truth) -> None:
        """All hosts are good, and what was bad was drained."""
        if left := _drained(truth.status):
            raise self.broken(f"{sorted(left)} are drained by checks, and all of these are good")
        if truth.journal and truth.journal[0]["name"] == "truncate":
            return
        for host, checks in self._checks.items():
            rank = int(host.removeprefix("node"))
            for one in checks:
                until_s = one.ended_s + EFFECTIVE_S
                is_lost = rank in self._excluded or self._has_come_anew(host, one.began_s - TURN_S, until_s)
                is_known = one.status not in (0, UNKNOWN) and not one.is_late and not is_lost
                if is_known and not _is_drained(truth.journal, rank, one.ended_s):
                    raise self.broken(f"{host} was not drained, though a check has failed there at {one.ended_s} s")
            for event in truth.journal:
                at_s = event["timestamp"] - EPOCH_S
                if event["name"] == "online" and rank in idset(event["context"]["idset"]):
                    self._is_checked(host, at_s)

    def _is_checked(self, host: str, at_s: float) -> None:
        """The first check of this connection has ended when a host comes online, if any could be started."""
        if not self.site.is_checked_at_start or self.site.is_slow:
            return
        connected_s = max((one for one in self._connected[host] if one <= at_s), default=0.0)
        first = next((one for one in self._checks[host] if one.began_s >= connected_s), None)
        if first is not None and first.began_s < at_s + TURN_S < first.ended_s:
            raise self.broken(f"{host} was online at {at_s} s, and its first check ended at {first.ended_s} s")


def _drained(status: Mapping[str, Any]) -> set[int]:
    lines = [(ranks, each) for ranks, line in status["drain"].items() for each in reasons_of(line)]
    return {rank for ranks, each in lines if each.get("user") == HEALTH_USER for rank in idset(ranks)}


def _is_drained(journal: list[dict[str, Any]], rank: int, at_s: float) -> bool:
    """Whether it was drained then, or soon after."""
    is_drained = was_drained = False
    for event in journal:
        if event["timestamp"] - EPOCH_S > at_s + EFFECTIVE_S:
            break
        if event["name"] in ("drain", "undrain") and rank in idset(event["context"]["idset"]):
            is_drained = event["name"] == "drain"
            if is_drained and event["timestamp"] - EPOCH_S > at_s - TURN_S:
                return True
        if event["timestamp"] - EPOCH_S <= at_s:
            was_drained = is_drained
    return was_drained

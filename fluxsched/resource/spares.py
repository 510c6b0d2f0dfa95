"""Spare targets: those that stand by in the group `spares`, and what each that is in service replaces.

Laws: a target that is lost, goes offline or is drained is replaced by a spare in the same change, if one of its shape
is idle; one that waits is replaced as soon as one is. Of its shape means: the same cores, GPUs and amounts, and all of
its properties. A spare joins the group of the target that it replaces, so that it serves the same queues, and goes
home, gracefully, when that target is back, or it fails itself. Planned outages, moves, drained parts and silence call
for no spare, nor does a host that has not come up since the restart, or that the configuration does not name any more.

It is in service by a live assignment, whose row says what it replaces: hence it survives a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import NO_SPARES
from fluxsched.errors import InvalidValue
from fluxsched.resource.changes import Moves
from fluxsched.resource.drain import Drains, Monitor
from fluxsched.resource.effects import Outbox, Saved
from fluxsched.resource.inventory import EXCLUDE, SPARES, Groups, Targets
from fluxsched.resource.parts import PartDrains


class Replacement(NamedTuple):
    """A spare in service, or on its way home: the key of the target that it replaces, where, and since when."""

    replaces: str
    group: str
    since_s: float


class SpareInService(NamedTuple):
    """A spare in service, for people; `replaces` is None for a target that has not been seen since the restart."""

    target: int
    replaces: int | None
    replaces_key: str
    group: str
    since_s: float


class SpareTargets:
    """The spares in service, by their keys."""

    def __init__(
        self,
        targets: Targets,
        groups: Groups,
        drains: Drains,
        parts: PartDrains,
        monitor: Monitor,
        moves: Moves,
        saved: Iterable[Saved],
        out: Outbox,
    ) -> None:
        self._targets = targets
        self._groups = groups
        self._drains = drains
        self._parts = parts
        self._monitor = monitor
        self._moves = moves
        self._out = out
        self._is_stopped = False
        self._in_vain = EMPTY, EMPTY, EMPTY  # what was lacking, ready, and of that still on its way home
        self._of = {
            row.key: Replacement(row.value["replaces"], row.value["group"], float(row.value["since"]))
            for row in saved if row.table == "assign" and "replaces" in row.value
        }  # fmt: skip

    def __iter__(self) -> Iterator[SpareInService]:
        for key, row in self._of.items():
            if (rank := self._targets.rank(key)) is not None:
                yield SpareInService(rank, self._targets.rank(row.replaces), row.replaces, row.group, row.since_s)

    @property
    def value(self) -> Mapping[int, int]:
        """Return what acquirers are told: spares in service with what they replace, those on their way home with their
        own rank.
        """
        if not self._of and self._groups.nothing_moves:
            return NO_SPARES
        home = self._groups.waiting & self._groups.goals.get(SPARES, EMPTY)
        found = {each.target: each.replaces for each in self if each.replaces is not None}
        return found | {rank: rank for rank in home}

    @property
    def all(self) -> Idset:
        """Return all spares: those that stand by, are in service, or cannot be used."""
        return self._groups.configured.get(SPARES, EMPTY) & self._targets.present

    @property
    def idle(self) -> Idset:
        """Return the spares that stand by, or cannot be used."""
        return self._groups.members.get(SPARES, EMPTY)

    def stop(self) -> None:
        """Replace nothing more: the instance is being shut down, target by target."""
        self._is_stopped = True

    def check_assign(self, targets: Idset, group: str) -> None:
        """Raise InvalidValue if targets are assigned to the spares that the configuration does not name there."""
        others = targets - self._groups.configured.get(SPARES, EMPTY) if group == SPARES else EMPTY
        if others:
            text = f"cannot make a spare of {self._targets.describe(others)}: [resource] spares does not name"
            raise InvalidValue(f"{text} {'it' if len(others) == 1 else 'them'}; add it there and reload")

    def settle(self, now_s: float) -> Idset:
        """Send home the spares that are not needed any more and replace what has failed; return those that move."""
        if self._is_stopped or not (self._of or self._groups.goals.get(SPARES)):
            return EMPTY
        moved = [rank for key in list(self._of) if (rank := self._sent_home(key, now_s)) is not None]
        lacking = self._failed - Idset.of([each.replaces for each in self if each.replaces is not None])
        for name in (EXCLUDE, SPARES, *self._groups.mirrors):
            lacking -= self._groups.goals.get(name, EMPTY)
        return Idset.of([*moved, *self._replace(lacking, now_s)]) if moved or lacking else EMPTY

    def check(self) -> None:
        """Assert that each is where it is said to be, and none replaces what another one does."""
        there = list(self)
        for each in there:
            assert self._groups.assigned.get(each.target) == each.group, "a spare in service is elsewhere"
        known = [each.replaces for each in there if each.replaces is not None]
        assert len(known) == len(set(known)), "two spares replace one target"

    # ---- what is needed

    @property
    def _failed(self) -> Idset:
        """Return the targets that call for a spare, whether they have one or not."""
        gone = self._monitor.gone
        return self._drains.unplanned & (self._targets.present | gone) | gone

    def _sent_home(self, key: str, now_s: float) -> int | None:
        """Send the spare home if it is not needed; None if it stays or is not there, or is an administrator's now."""
        rank, use = self._targets.rank(key), self._of[key]
        if rank is None or (self._is_usable(rank, use) and self._is_missing(use)):
            return None
        del self._of[key]
        if self._groups.assigned.get(rank) != use.group:
            return None
        spare = Idset.one(rank)
        home = self._groups.configured_for(rank)
        self._assign(spare, home, None)
        self._post("spare-return", spare, self._targets.rank(use.replaces), use.group, now_s)
        if rank in self._targets.present:
            self._moves.to(home, spare, True, None, now_s)
        else:
            self._groups.aim(spare, home)
        return rank

    def _is_usable(self, rank: int, use: Replacement) -> bool:
        groups = self._groups
        is_ours = groups.assigned.get(rank) == use.group and rank in groups.configured.get(SPARES, EMPTY)
        return is_ours and rank not in self._failed

    def _is_missing(self, use: Replacement) -> bool:
        """Return whether this target is not back yet, and none was put in its place before."""
        rank = self._targets.rank(use.replaces)
        if rank is None:
            return self._targets.dynamic
        first = next(each for each in self._of.values() if each.replaces == use.replaces)
        if first is not use or self._groups.goal_of(rank) != use.group:
            return False
        return rank in self._failed or rank in self._targets.present - self._monitor.online

    # ---- replacing

    def _replace(self, lacking: Idset, now_s: float) -> list[int]:
        """Put a spare in service for each of those for which there is one; return these spares."""
        ready = self._ready()
        going = ready - self.idle  # fits in the group that it leaves alone, until it has arrived
        if not lacking or not ready or self._in_vain == (lacking, ready, going):
            return []
        used = list[int]()
        for rank in lacking:
            group = self._groups.goal_of(rank)
            spare = next((each for each in ready if self._fits(each, rank, group)), None)
            if spare is not None:
                ready -= Idset.one(spare)
                used.append(spare)
                self._put_in_service(spare, rank, group, now_s)
        lacking -= Idset.of([each.replaces for each in self if each.replaces is not None])
        self._in_vain = lacking, ready, ready & going
        return used

    def _ready(self) -> Idset:
        """Return the spares that stand by in working order, and those on their way home, which can stay."""
        groups, drains = self._groups, self._drains
        here = groups.members.get(SPARES, EMPTY) - drains.drained
        going = (groups.waiting & groups.goals.get(SPARES, EMPTY)) - drains.unplanned
        return (here | going) & self._monitor.available - Idset.of(self._parts.value.of)

    def _fits(self, spare: int, rank: int, group: str) -> bool:
        groups, resources = self._groups, self._targets.resources
        if spare not in groups.members[SPARES] and spare not in groups.members[group]:
            return False
        if resources.children(spare) != resources.children(rank):
            return False
        return all(spare in ranks for ranks in resources.properties.values() if rank in ranks)

    def _put_in_service(self, spare: int, rank: int, group: str, now_s: float) -> None:
        key, of = self._targets.key(rank), Idset.one(spare)
        self._of[self._targets.key(spare)] = Replacement(key, group, now_s)
        self._assign(of, group, {"replaces": key, "since": now_s})
        self._post("spare", of, rank, group, now_s)
        self._moves.to(group, of, False, None, now_s)

    def _assign(self, spare: Idset, group: str, more: dict[str, Any] | None) -> None:
        for rank, name in self._groups.assign(spare, group):
            row = None if name is None else {"group": name} | (more or {})
            self._out.save("assign", self._targets.key(rank), row)

    def _post(self, name: str, spare: Idset, replaces: int | None, group: str, now_s: float) -> None:
        context: dict[str, Any] = {"idset": str(spare), "nodelist": self._targets.nodelist(spare), "group": group}
        self._out.post(now_s, name, context if replaces is None else context | {"replaces": str(replaces)})

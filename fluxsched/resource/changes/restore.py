"""After a restart: stored rows find their targets again, by host, whatever rank these have now.

Law: a row whose host is not there yet stays in the store and applies when the host joins. After a restart no group is
acquired, so stored moves wait for jobs alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.resource.changes.moves import Moves
from fluxsched.resource.effects import Saved
from fluxsched.resource.journal import Outbox
from fluxsched.resource.state.drain import Drain, Drains
from fluxsched.resource.state.groups import Groups
from fluxsched.resource.state.inventory import Targets, key_host
from fluxsched.resource.state.properties import PropertyOverrides

StoredRow = Mapping[str, Any]


class Restorer:
    """The rows that have not found their target."""

    def __init__(
        self, targets: Targets, groups: Groups, drains: Drains, overrides: PropertyOverrides, moves: Moves, out: Outbox
    ) -> None:
        self._targets = targets
        self._groups = groups
        self._drains = drains
        self._overrides = overrides
        self._moves = moves
        self._out = out
        self._waiting: dict[str, dict[str, StoredRow]] = {}

    def load(self, saved: Iterable[Saved]) -> None:
        """Take up all rows at the start; the journal's own are not for us."""
        for table, key, value in saved:
            if table == "group":
                self._groups.make(key)
            elif table != "journal":
                self._waiting.setdefault(key, {})[table] = value
        self.apply_rows(self._targets.resources.ranks, moves=True)
        if not self._targets.dynamic:
            self._substitute_drains()

    def apply_rows(self, ranks: Idset, moves: bool = False) -> None:
        """Apply the rows of these targets, which are not acquired: assigned ones are settled there.

        `moves`: stored moves continue; those of a host that joins later are dropped, since nothing holds it.
        """
        found = [(rank, self._waiting.pop(key)) for rank in ranks if (key := self._targets.key(rank)) in self._waiting]
        assigned: dict[str, list[int]] = {}
        for rank, tables in found:
            if "drain" in tables:
                self._drains.restore(rank, Drain.from_row(tables["drain"]))
            if "property" in tables:
                self._overrides.restore(rank, tables["property"])
            if "assign" in tables:
                assigned.setdefault(tables["assign"]["group"], []).append(rank)
        for group, ranks_there in assigned.items():
            self._assign(group, Idset.of(ranks_there))
        for rank, tables in found:
            if "leaving" in tables:
                self._move(rank, tables["leaving"], moves)

    def _assign(self, group: str, targets: Idset) -> None:
        groups = self._groups
        groups.make(group)
        groups.assigned.update(dict.fromkeys(targets, group))
        groups.aim(targets, group)
        for name in groups.names:
            settled = groups.members[name] & targets
            groups.members[name] -= settled
            groups.members[group] |= settled

    def _move(self, rank: int, row: StoredRow, moves: bool) -> None:
        if moves:
            self._groups.make(row["from"])
            self._moves.restore(rank, row["from"], bool(row.get("graceful", False)))
        else:
            self._out.save("leaving", self._targets.key(rank), None)

    def _substitute_drains(self) -> None:
        """The drain of a target that its host no longer has becomes that of the host's first target (RFC 44, drain)."""
        for key, tables in list(self._waiting.items()):
            rank = self._targets.rank(key_host(key))
            if rank is None or "drain" not in tables:
                continue
            if self._drains.get(rank) is None:
                drain = Drain.from_row(tables["drain"])
                self._drains.restore(rank, drain)
                self._out.save("drain", self._targets.key(rank), drain.to_row())
            self._waiting[key] = {table: row for table, row in tables.items() if table != "drain"}
            self._out.save("drain", key, None)


def settled_leftovers(drains: Drains, groups: Groups) -> Idset:
    """Drains made for moves that have ended: nothing else would undo them."""
    return drains.made_for_move(drains.drained) - groups.moving if drains.drained else EMPTY

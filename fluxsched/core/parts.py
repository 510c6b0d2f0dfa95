"""Drained parts of targets: cores and GPUs that no new job gets, while the rest of their target is in use.

Law: a value, in text an R_lite (RFC 20) of just these parts. Targets that do not exist are no fault here, nor are ids
that they do not have: which there are is known to others, and changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fluxsched.core.idset import Idset
from fluxsched.core.rlite import Children, Entry, merge, parse_entries, print_entries


class PartsByRank:
    """The drained children of each target that has any."""

    __slots__ = ("of",)

    def __init__(self, of: Mapping[int, Children]) -> None:
        self.of = of

    def __bool__(self) -> bool:
        return bool(self.of)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartsByRank) and (self is other or self.of == other.of)

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.of)))

    def __repr__(self) -> str:
        return f"PartsByRank({self.to_json()!r})"

    def changed(self, other: PartsByRank) -> Idset:
        """Return the targets of which the two do not have the same parts."""
        ranks = self.of.keys() | other.of.keys()
        return Idset.of([rank for rank in ranks if self.of.get(rank) != other.of.get(rank)])

    def replaced(self, of: Mapping[int, Children]) -> PartsByRank:
        """Return the parts with these of some targets in the place of those before; empty ones for none."""
        found = dict(self.of)
        for rank, parts in of.items():
            if parts:
                found[rank] = parts
            else:
                found.pop(rank, None)
        return PartsByRank(found)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the parts as an R_lite."""
        return print_entries(self.entries())

    def entries(self) -> tuple[Entry, ...]:
        """Return the parts as entries of an R_lite."""
        alike: dict[int, tuple[list[int], Children]] = {}  # by identity: equal ones are mostly the same
        for rank, children in self.of.items():
            alike.setdefault(id(children), ([], children))[0].append(rank)
        return merge([(Idset.of(ranks), children) for ranks, children in alike.values()]).entries

    @classmethod
    def parse(cls, rlite: object) -> PartsByRank:
        """Return the parts that `to_json` gave. Raises InvalidValue naming the part that is wrong."""
        return cls({rank: entry.children for entry in parse_entries(rlite).entries for rank in entry.ranks})


NO_PARTS: Final = PartsByRank({})

"""The targets: R, the lost ones, and the rank of each host.

Law: a target is known by its host and its place among the targets of that host (`host`, `host,1`, ...). Its rank never
changes while the instance lives, not even while it is lost: a host that returns gets its old rank back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from fluxsched.core.idset import EMPTY, ID_MAX, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue, LimitExceeded

METHODS: Final = ("configuration", "dynamic-discovery", "job-info", "reload", "kvs")
"""Origins of R, in RFC 44's words (resource-define)."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """R and where it came from; `dynamic` if targets may be lost and come back (discovered ones)."""

    resources: ResourceSet
    method: str
    dynamic: bool = False

    def __post_init__(self) -> None:
        if len(self.resources.nodelist) != len(self.resources):
            raise InvalidValue("the inventory needs the host of each target: give R a nodelist (RFC 20)")
        if self.method not in METHODS:
            raise InvalidValue(f"inventory method {self.method!r} is not one of RFC 44's: {', '.join(METHODS)}")


class Admission(NamedTuple):
    """An R from outside in our ranks, and how its ranks became ours (only those that differ)."""

    resources: ResourceSet
    renumbered: Mapping[int, int]

    def ours(self, targets: Idset) -> Idset:
        """A set of the outside's ranks as ours."""
        if not self.renumbered:
            return targets
        return Idset.of([self.renumbered.get(rank, rank) for rank in targets])


class Targets:
    """Every target ever seen; the lost ones stay in `resources`, so that they keep host and rank."""

    def __init__(self, inventory: Inventory) -> None:
        self.resources = inventory.resources
        self.method = inventory.method
        self.dynamic = inventory.dynamic
        self.lost = EMPTY
        self._rank_of: dict[str, int] = {}
        self._key_of: dict[int, str] = {}
        self._per_host: dict[str, int] = {}
        self._learn(inventory.resources)

    @property
    def present(self) -> Idset:
        """All targets but the lost ones."""
        return self.resources.ranks - self.lost

    def key(self, rank: int) -> str:
        """Return the key of a target across restarts and renumbering: `host`, or `host,index` from the second on."""
        return self._key_of[rank]

    def rank(self, key: str) -> int | None:
        """The rank of the target with this key, lost or not; None if it has never been seen."""
        return self._rank_of.get(key)

    def nodelist(self, targets: Idset) -> str:
        """The hosts of these targets as RFC 29 text."""
        return str(self.resources.hosts(targets & self.resources.ranks))

    def describe(self, targets: Idset) -> str:
        """All of these targets for an error text: `ranks 0-1 (node[0-1])`."""
        return describe(self.resources, targets)

    def require(self, targets: Idset, purpose: str) -> None:
        """Raise InvalidValue naming all of `targets` that do not exist or are lost."""
        faults = self.faults(targets)
        if faults:
            raise InvalidValue(f"cannot {purpose}: {'; '.join(faults)}; the targets are {self.present}")

    def faults(self, targets: Idset) -> list[str]:
        """Return the faults for which `require` would raise, one text a kind of fault."""
        unknown, lost = targets - self.resources.ranks, targets & self.lost
        faults = [f"{self.describe(unknown)} {_verb(unknown)} not exist"] if unknown else []
        return [*faults, f"{self.describe(lost)} {are(lost)} lost"] if lost else faults

    def admit(self, resources: ResourceSet) -> Admission:
        """The R of an agent or of a reload in our ranks: known targets keep theirs, new ones get free ones.

        Changes nothing. Raises LimitExceeded when there are no ranks left.
        """
        taken = self.resources.ranks
        renumbered: dict[int, int] = {}
        fresh = [(rank, self._rank_of.get(key)) for rank, key in _keys(resources)]
        claimed = Idset.of([rank for rank, known in fresh if known is None and rank not in taken])
        following = max((ids.max() for ids in (taken, claimed) if ids), default=-1) + 1
        for rank, known in fresh:
            if known is None and rank in taken:
                known, following = following, following + 1
            if known is not None and known != rank:
                renumbered[rank] = known
        if following > ID_MAX + 1:
            raise LimitExceeded(f"no rank is left for {resources.nodelist}: the limit is {ID_MAX}; start anew")
        mapped = {rank: renumbered.get(rank, rank) for rank, _ in fresh}
        return Admission(resources.rerank_by(mapped) if renumbered else resources, renumbered)

    def changed(self, admitted: ResourceSet) -> Idset:
        """Return the targets of an admitted R that are known with other children."""
        known = self.resources.ranks & admitted.ranks
        ours, theirs = self.resources, admitted
        if not known or ours.restrict(known).entries == theirs.restrict(known).entries:
            return EMPTY
        return Idset.of([rank for rank in known if ours.children(rank) != theirs.children(rank)])

    def merged(self, admitted: ResourceSet) -> ResourceSet:
        """Return the known resources with an admitted R taken over: it replaces its ranks and leaves the others alone.
        """
        kept = self.resources.without(admitted.ranks)
        return admitted | kept if kept else admitted

    def take(self, admitted: ResourceSet) -> None:
        """Take over an admitted R of targets that join; times stay as they are."""
        before = self.resources
        merged = self.merged(admitted).with_shared(before.shared)
        self.replace(merged.with_expiration(before.starttime_s, before.expiration_s))

    def replace(self, resources: ResourceSet) -> None:
        """Another R that has at least the ranks we know."""
        known, self.resources = self.resources.ranks, resources
        if resources.ranks != known:
            self._learn(resources)

    def _learn(self, resources: ResourceSet) -> None:
        """Give keys to the ranks that have none; an index counts on from the targets that the host has already."""
        for rank, host in zip(resources.ranks, resources.nodelist, strict=True):
            if rank not in self._key_of:
                index = self._per_host.get(host, 0)
                self._per_host[host] = index + 1
                key = _key(host, index)
                self._rank_of[key], self._key_of[rank] = rank, key


def describe(resources: ResourceSet, targets: Idset) -> str:
    """All of these targets for an error text, with the hosts of those that are in R."""
    hosts = str(resources.hosts(targets & resources.ranks))
    ranks = f"{'rank' if len(targets) == 1 else 'ranks'} {targets}"
    return f"{ranks} ({hosts})" if hosts else ranks


def key_host(key: str) -> str:
    """The host of a target's key."""
    return key.partition(",")[0]


def _keys(resources: ResourceSet) -> Iterator[tuple[int, str]]:
    """Each rank with its key, ascending."""
    seen: dict[str, int] = {}
    for rank, host in zip(resources.ranks, resources.nodelist, strict=True):
        index = seen.get(host, 0)
        seen[host] = index + 1
        yield rank, _key(host, index)


def _key(host: str, index: int) -> str:
    return f"{host},{index}" if index else host


def are(targets: Idset) -> str:
    """Return `is` or `are`, as `describe` of these targets needs it."""
    return "is" if len(targets) == 1 else "are"


def _verb(targets: Idset) -> str:
    return "does" if len(targets) == 1 else "do"

"""Concrete resources: R (RFC 20) as a frozen value with the algebra of sets.

Law: a ResourceSet is a set of (rank, child) pairs, where a rank without children counts as one thing of its own; hosts,
properties and times ride along. `parse(print(x)) == x`, and no operation changes its operands. Cost follows the number
of *entries*, so 131,072 equal targets are as cheap as one, and `build`, which makes the R of every job, follows the
job's parts alone.

    >>> r = ResourceSet.parse({"version": 1, "execution": {
    ...     "R_lite": [{"rank": "0-1", "children": {"core": "0-3"}}], "nodelist": ["a[0-1]"]}})
    >>> (r - r.restrict(Idset.parse("0"))).summary()
    'rank1/core[0-3]'
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fluxsched.core import rfields, rscheduling
from fluxsched.core.amounts import Amounts, larger, less, smaller
from fluxsched.core.children import Children, Entry
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jsontext import load_object
from fluxsched.core.rlite import in_order, merge, overlay, parse_entries, print_entries, rank_list, rlite_ranks
from fluxsched.core.rlookup import Lookup
from fluxsched.core.topology import EMPTY_TOPOLOGY, Topology
from fluxsched.errors import InvalidValue

__all__ = ["EMPTY_R", "Children", "Entry", "ResourceSet", "rlite_ranks"]

NO_HOSTS: Final = Hostlist()
"""The nodelist of no ranks, or of ranks whose hosts are not known."""

SCAN_MAX = 8
"""Up to so many entries a rank is looked up by scanning them: cheaper than an index of all ranks."""


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class ResourceSet:
    """Resources described by an R.

    Times are seconds since the Unix epoch, 0.0 for unset. `nslots` is None where R is no allocation.

    `nodelist` has one host a rank, in ascending order of ranks, or is empty where hosts are not known. `scheduling`
    (`core.rscheduling`) and `attributes` are carried along. The bare constructor trusts its arguments. `shared` are
    amounts of what belongs to no target, `topology` are the switches of its hosts at least, in text in `scheduling`.
    """

    entries: tuple[Entry, ...] = ()
    nodelist: Hostlist = NO_HOSTS
    properties: Mapping[str, Idset] = dataclasses.field(default_factory=dict)
    starttime_s: float = 0.0
    expiration_s: float = 0.0
    nslots: int | None = None
    scheduling: object | None = None
    attributes: Mapping[str, Any] | None = None
    shared: Amounts = ()
    topology: Topology = EMPTY_TOPOLOGY
    ranks: Idset = dataclasses.field(init=False, compare=False)
    _lazy: Lookup | None = dataclasses.field(init=False, compare=False, default=None)

    def __post_init__(self) -> None:
        entries = self.entries
        if len(entries) == 1:
            ranks = entries[0].ranks
        else:
            mask = 0
            for entry in entries:
                mask |= entry.ranks.mask
            ranks = Idset(mask)
        object.__setattr__(self, "ranks", ranks)

    # ---- text and JSON

    @classmethod
    def parse(cls, obj: Mapping[str, Any] | str | bytes) -> ResourceSet:
        """R of RFC 20 as JSON text or object; the object form of R_lite and the absent nodelist of 2019 are read too.

        Raises InvalidValue naming the part that is wrong, LimitExceeded above a named limit.
        """
        obj = load_object(obj, "R")
        execution = rfields.parse_execution(obj)
        entries, ranks = parse_entries(execution["R_lite"])
        scheduling, topology = rscheduling.split(rfields.parse_opaque("scheduling", obj.get("scheduling")))
        return cls(
            entries,
            rfields.parse_nodelist(execution.get("nodelist"), ranks),
            rfields.parse_properties(execution.get("properties"), ranks),
            *rfields.parse_times(execution.get("starttime"), execution.get("expiration")),
            rfields.parse_nslots(execution.get("nslots")),
            scheduling,
            rfields.parse_opaque("attributes", obj.get("attributes")),
            rfields.parse_shared(execution.get("shared")),
            topology,
        )

    def to_json(self) -> dict[str, Any]:
        """R of RFC 20 as a JSON object; without ranks it is the empty R as Flux prints it (`nodelist` `[""]`)."""
        execution: dict[str, Any] = {
            "R_lite": print_entries(self.entries),
            "starttime": self.starttime_s,
            "expiration": self.expiration_s,
        }
        hosts = self.nodelist.hosts
        if hosts or not self.entries:
            execution["nodelist"] = [hosts[0] if len(hosts) == 1 else str(self.nodelist)]
        if self.properties:
            execution["properties"] = {name: str(ids) for name, ids in self.properties.items()}
        if self.nslots is not None:
            execution["nslots"] = self.nslots
        if self.shared:
            execution["shared"] = dict(self.shared)
        obj: dict[str, Any] = {"version": 1, "execution": execution}
        scheduling = self.scheduling
        if self.topology is not EMPTY_TOPOLOGY:
            scheduling = rscheduling.with_topology(scheduling, self.topology)
        if scheduling is not None:
            obj["scheduling"] = scheduling
        if self.attributes is not None:
            obj["attributes"] = self.attributes
        return obj

    def summary(self) -> str:
        """`rank[0-1]/core[0-3],gpu0`, entries joined by a space: the annotation `sched.resource_summary`."""
        shared = [f"{kind}:{amount}" for kind, amount in self.shared] if self.shared else []
        return " ".join([*[str(entry) for entry in self.entries], *shared])

    def __repr__(self) -> str:
        return f"<ResourceSet {self.summary() or 'empty'}>"

    # ---- looking up

    def __len__(self) -> int:
        """Return the number of ranks."""
        return len(self.ranks)

    def __bool__(self) -> bool:
        return bool(self.entries)

    def children(self, rank: int) -> Children:
        """Return the children of the target. Raise InvalidValue for an unknown rank."""
        return self._entry(rank).children

    def host(self, rank: int) -> str:
        """The host of a rank. Raises InvalidValue for a rank that is not here, or when hosts are not known."""
        if rank not in self.ranks:
            raise self._unknown(rank)
        if not self.nodelist.hosts:
            raise InvalidValue(f"the host of rank {rank} is not known: R has no nodelist")
        return self.hosts(Idset.one(rank)).hosts[0]

    def hosts(self, ranks: Idset) -> Hostlist:
        """The hosts of these ranks, one a rank, ascending; all of them empty where hosts are not known.

        Linear in the ranks asked for. Raises InvalidValue naming all ranks that are not here.
        """
        rfields.check_known(ranks, self.ranks, "hosts")
        hosts = self.nodelist.hosts
        if not hosts or ranks == self.ranks:
            return self.nodelist
        first = self._lookup.dense_from
        if first is None:
            host_of = self._lookup.host_of
            return Hostlist(tuple([host_of[rank] for rank in ranks]))
        only = ranks.single()
        if only is not None:
            return Hostlist((hosts[only - first],))
        return Hostlist(tuple([hosts[rank - first] for rank in ranks]))

    def ranks_of(self, host: str) -> Idset:
        """The ranks on a host, none if it is not here."""
        return self.ranks_on((host,))[0]

    def ranks_on(self, hosts: Iterable[str]) -> tuple[Idset, list[str]]:
        """The ranks on these hosts, and those hosts that are not here; the table for it is made once, on first use."""
        known = self._lookup.ranks_by_host
        ranks: list[int] = []
        unknown: list[str] = []
        for host in hosts:
            if host in known:
                ranks += known[host]
            else:
                unknown.append(host)
        return Idset.of(ranks), unknown

    def count(self, kind: str) -> int:
        """Return the number of cores, GPUs or others (`core`, `gpu`, ...); `node` counts the targets."""
        if kind == "node":
            return len(self.ranks)
        on_targets = sum([len(entry.ranks) * entry.children.count(kind) for entry in self.entries])
        return on_targets + dict(self.shared).get(kind, 0)

    def counted(self) -> Amounts:
        """All that is counted, on all targets and shared."""
        everywhere = (self.shared, *[entry.children.amounts for entry in self.entries])
        kinds = sorted({kind for amounts in everywhere for kind, _ in amounts})
        return tuple([(kind, self.count(kind)) for kind in kinds])

    # ---- algebra

    def __or__(self, other: ResourceSet) -> ResourceSet:
        """Everything of both; what is not a set (times, nslots, scheduling) is the left one's where it has it.

        Raises InvalidValue naming all ranks whose host differs.
        """
        if not other.entries:
            return self
        joined: list[tuple[Idset | int, Children]] = []
        for ranks, mine, theirs in overlay(self.entries, other.ranks, other._entry):
            joined.append((ranks, mine if theirs is None else mine | theirs))
        joined += [(entry.ranks - self.ranks, entry.children) for entry in other.entries]
        return ResourceSet(
            merge(joined).entries,
            _join_hosts(self, other),
            rfields.join_properties(self.properties, other.properties),
            self.starttime_s or other.starttime_s,
            self.expiration_s or other.expiration_s,
            other.nslots if self.nslots is None else self.nslots,
            rscheduling.joined(self.scheduling, other.scheduling),
            other.attributes if self.attributes is None else self.attributes,
            larger(self.shared, other.shared),
            self.topology | other.topology,
        )

    def __and__(self, other: ResourceSet) -> ResourceSet:
        """Per rank the children that both have; the rest is the left one's."""
        parts: list[tuple[Idset | int, Children]] = []
        for ranks, mine, theirs in overlay(self.entries, other.ranks, other._entry):
            if theirs is not None and ((common := mine & theirs) or mine == theirs):
                parts.append((ranks, common))
        return self._cut(*merge(parts), smaller(self.shared, other.shared))

    def __sub__(self, other: ResourceSet) -> ResourceSet:
        """Per rank the children that only this one has; the rest is the left one's."""
        parts: list[tuple[Idset | int, Children]] = []
        for ranks, mine, theirs in overlay(self.entries, other.ranks, other._entry):
            left = mine if theirs is None else mine - theirs
            if left or (not mine and mine != theirs):
                parts.append((ranks, left))
        return self._cut(*merge(parts), less(self.shared, other.shared))

    def restrict(self, ranks: Idset) -> ResourceSet:
        """Only these ranks, without what is shared; unknown ranks are ignored."""
        if self.ranks <= ranks:
            return dataclasses.replace(self, shared=()) if self.shared else self
        kept = in_order(Entry(entry.ranks & ranks, entry.children) for entry in self.entries)
        return self._cut(kept, self.ranks & ranks, ())

    def without(self, ranks: Idset) -> ResourceSet:
        """Return the resources without these ranks."""
        return self.restrict(self.ranks - ranks)

    # ---- variants

    def rerank(self, first: int = 0) -> ResourceSet:
        """Return the targets in the same order as ranks `first`, `first` + 1, ...

        Properties follow their targets. `scheduling` is dropped, since what is opaque cannot be renumbered (RFC 20).
        The topology stays, since it names hosts.
        """
        if self.entries and self._lookup.dense_from == first:
            return dataclasses.replace(self, scheduling=None)
        return self.rerank_by({rank: first + at for at, rank in enumerate(self.ranks)})

    def rerank_by(self, mapping: Mapping[int, int]) -> ResourceSet:
        """Each rank renumbered; hosts and properties follow, `scheduling` is dropped.

        Raises InvalidValue when a rank has no new number or two have the same one.
        """
        missing = [rank for rank in self.ranks if rank not in mapping]
        if missing:
            raise InvalidValue(f"rerank: {rank_list(Idset.of(missing))} without a new rank")
        new = {rank: mapping[rank] for rank in self.ranks}
        moved = Idset.of(new.values())
        if len(moved) != len(new):
            raise InvalidValue(f"rerank: {len(new)} ranks cannot become {len(moved)} ({moved}): one each")
        return dataclasses.replace(
            self,
            entries=in_order(Entry(rfields.renumbered(entry.ranks, new), entry.children) for entry in self.entries),
            nodelist=Hostlist(tuple([h for _, h in sorted(zip(new.values(), self.nodelist.hosts, strict=False))])),
            properties={name: rfields.renumbered(ids, new) for name, ids in self.properties.items()},
            scheduling=None,
        )

    def add_property(self, name: str, ranks: Idset) -> ResourceSet:
        """With a property on these ranks too. Raises InvalidValue for an illegal name or ranks that are not here."""
        rfields.check_known(ranks, self.ranks, f"property {rfields.check_property(name)!r}")
        return dataclasses.replace(self, properties=rfields.join_properties(self.properties, {name: ranks}))

    def remove_property(self, name: str, ranks: Idset) -> ResourceSet:
        """Without the property on these ranks. Raises InvalidValue naming all of them that do not have it."""
        having = self.properties.get(name, EMPTY)
        if not ranks <= having:
            raise InvalidValue(f"property {name!r}: {rank_list(ranks - having)} without it")
        left = {**self.properties, name: having - ranks}
        return dataclasses.replace(self, properties=rfields.cut_properties(left, self.ranks))

    def with_expiration(self, starttime_s: float, expiration_s: float) -> ResourceSet:
        """Return the resources with other times (seconds since the epoch, 0.0 for unset)."""
        start_s, end_s = rfields.parse_times(starttime_s, expiration_s)
        return dataclasses.replace(self, starttime_s=start_s, expiration_s=end_s)

    def with_shared(self, shared: Amounts) -> ResourceSet:
        """Return the resources with other amounts of the instance."""
        return dataclasses.replace(self, shared=shared) if shared != self.shared else self

    def with_topology(self, topology: Topology) -> ResourceSet:
        """Return the resources with other switches."""
        return dataclasses.replace(self, topology=topology) if topology is not self.topology else self

    @property
    def parts(self) -> dict[str, Idset]:
        """Return the ranks of each part of the job, by label; empty unless it has several. Raise InvalidValue."""
        return rscheduling.parts_of(self.scheduling, self.ranks)

    def job_view(self) -> ResourceSet:
        """Without the instance-local properties (`+NAME`), which no job's R may have (RFC 20)."""
        return dataclasses.replace(self, properties=rfields.for_jobs(self.properties, self.ranks))

    @classmethod
    def build(
        cls,
        parts: Iterable[tuple[Idset | int, Children]],
        source: ResourceSet,
        starttime_s: float,
        expiration_s: float,
        nslots: int | None,
        shared: Amounts = (),
    ) -> ResourceSet:
        """The R of a job out of placements in `source`, which gives hosts, properties and `scheduling` (RFC 27).

        Costs what the parts and the number of properties cost, whatever the size of `source`. Raises InvalidValue for
        ranks that `source` does not have and for a child given twice.
        """
        rfields.check_times(starttime_s, expiration_s)
        entries, ranks = merge(parts)
        hosts = source.hosts(ranks)
        properties = rfields.for_jobs(source.properties, ranks) if source.properties else {}
        start_s, end_s = float(starttime_s), float(expiration_s)
        topology = source.topology
        if topology is not EMPTY_TOPOLOGY:  # of one target it tells nothing
            topology = EMPTY_TOPOLOGY if ranks.single() is not None else topology.restrict(hosts.hosts)
        return cls(entries, hosts, properties, start_s, end_s, nslots, source.scheduling, None, shared, topology)

    # ---- within

    @property
    def _lookup(self) -> Lookup:
        if self._lazy is None:
            object.__setattr__(self, "_lazy", Lookup(self.entries, self.ranks, self.nodelist))
        assert self._lazy is not None
        return self._lazy

    def _entry(self, rank: int) -> Entry:
        entries = self.entries if len(self.entries) <= SCAN_MAX else ()
        found = next((entry for entry in entries if rank in entry.ranks), None)
        if found is None and not entries:
            found = self._lookup.entry_of.get(rank)
        if found is None:
            raise self._unknown(rank)
        return found

    def _unknown(self, rank: int) -> InvalidValue:
        return InvalidValue(f"rank {rank} is not among the resources ({rank_list(self.ranks)})")

    def _cut(self, entries: tuple[Entry, ...], ranks: Idset, shared: Amounts) -> ResourceSet:
        """These entries of these ranks, cut out of mine, with their hosts and properties."""
        if entries == self.entries:
            return self.with_shared(shared)
        return dataclasses.replace(
            self,
            entries=entries,
            nodelist=self.hosts(ranks),
            properties=rfields.cut_properties(self.properties, ranks),
            shared=shared,
        )


def _join_hosts(left: ResourceSet, right: ResourceSet) -> Hostlist:
    if not left.entries:
        return right.nodelist
    if bool(left.nodelist.hosts) != bool(right.nodelist.hosts):
        raise InvalidValue("union: one of the two has no nodelist, so the hosts of its ranks are not known")
    common = left.ranks & right.ranks
    both = zip(common, left.hosts(common), right.hosts(common), strict=False)
    differing = Idset.of([rank for rank, mine, theirs in both if mine != theirs])
    if differing:
        raise InvalidValue(
            f"union: the hosts of {rank_list(differing)} differ: "
            f"{left.hosts(differing)} on one side, {right.hosts(differing)} on the other"
        )
    if not left.nodelist.hosts or right.ranks <= left.ranks:
        return left.nodelist
    if left.ranks.max() < right.ranks.min():
        return left.nodelist + right.nodelist
    host_of = left._lookup.host_of | right._lookup.host_of
    return Hostlist(tuple([host_of[rank] for rank in sorted(host_of)]))


EMPTY_R: Final = ResourceSet()

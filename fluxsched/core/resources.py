"""Concrete resources: R (RFC 20) as a frozen value with the algebra of sets, and changes of it.

Laws: a ResourceSet is a set of (rank, child) pairs, where a rank without children counts as one thing of its own;
hosts, properties and times ride along. `parse(print(x)) == x`, and no operation changes its operands. Cost follows the
number of *entries*, so 131,072 equal targets are as cheap as one, and `build`, which makes the R of every job, follows
the job's parts alone.

The fields around R_lite (nodelist, properties, times, nslots) are checked each on its own: a function takes the JSON
value and gives the frozen one, or raises InvalidValue that begins with the field's name. `Lookup` has tables for what
is looked up again and again in a big R: made from a frozen ResourceSet on first use, never changed after, and nothing
is in them that R does not say. An R that grows by pieces of other ranks, one after the other, is joined when it is
read: adding a piece costs that piece; joining n of them costs about as much as making the whole, log n times.

`GroupChange` is a change of an acquired group of targets (RFC 28), whose parts apply in the order grow, shrink,
offline, online, update; `difference` is the only place that works one out from two states. The times of the R of a job
that grows or shrinks (rfc/allocation.md) are those of the R that the job had; what was given and taken back again
leaves nothing behind, nor do its switches. `nslots` is left out where it is not known which targets had how many.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeAlias

from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.outages import NO_OUTAGES, Outages
from fluxsched.core.quantities import Amounts, larger, less, parse_amounts, smaller
from fluxsched.core.rlite import (
    NO_PARTS,
    Children,
    Entry,
    PartsByRank,
    in_order,
    merge,
    overlay,
    parse_entries,
    print_entries,
    rank_list,
    rlite_ranks,
)
from fluxsched.core.text import check_shape, counted, kind_of, load_object, named, shown
from fluxsched.core.topology import (
    EMPTY_TOPOLOGY,
    Topology,
    join_scheduling,
    parts_of,
    put_parts,
    put_topology,
    split_topology,
)
from fluxsched.errors import InvalidValue, LimitExceeded

__all__ = [
    "EMPTY_R",
    "Children",
    "Entry",
    "ResourceSet",
    "rlite_ranks",
]

SECONDS_MAX = 1e11
"""The year 5138: a time stamp beyond it is in the wrong unit (milliseconds, nanoseconds)."""

NAMES_CHARS_MAX: Final = 400
"""Of the hosts in a text for people: most of a large machine is not read."""

PROPERTIES_MAX = 4096
"""Property names of one R: each costs one mask of ranks, and one operation per allocation."""

OPAQUE_DEPTH_MAX = 64
"""Nesting of what R only carries: Fluxion's graphs need some ten levels."""

OPAQUE_MEMBERS_MAX = 1 << 24
"""Members of what R only carries: a graph of a hundred vertices for each of 131,072 targets."""

PROPERTY_ILLEGAL: Final = frozenset("!&'\"^`|()")
"""Characters that RFC 20 forbids in property names, since RFC 31 and 35 give them a meaning."""

LOCAL_PREFIX: Final = "+"
"""Marks a property of the instance, not of the hardware; no job's R has it."""

ONE_PART: Final = LOCAL_PREFIX + ":one-part"
"""Marks targets on which no job of several parts can run, such as those of a real Flux, whose jobspecs have one."""


def check_property(name: object) -> str:
    """Return a property name as RFC 20 allows it."""
    if not isinstance(name, str) or not name:
        raise InvalidValue(f"property {shown(name)} must be a string that is not empty")
    illegal = PROPERTY_ILLEGAL.intersection(name)
    if illegal:
        raise InvalidValue(f"property {shown(name)} has {' '.join(sorted(illegal))}: not allowed in names (RFC 20)")
    return name


def parse_properties(obj: object, ranks: Idset) -> dict[str, Idset]:
    """Name -> ranks; a name without ranks is dropped, ranks that R does not have are an error."""
    if obj is None:
        return {}
    if not isinstance(obj, dict):
        raise InvalidValue(f"properties must be an object of name: idset, not {kind_of(obj)}")
    if len(obj) > PROPERTIES_MAX:
        raise LimitExceeded(f"properties has {len(obj)} names: the limit is {PROPERTIES_MAX}")
    found: dict[str, Idset] = {}
    for name, text in obj.items():
        try:
            ids = Idset.parse(text)
        except InvalidValue as fault:
            raise named(f"properties[{shown(check_property(name))}]", fault) from None
        check_known(ids, ranks, f"properties[{shown(check_property(name))}]")
        if ids:
            found[name] = ids
    return found


def check_known(ids: Idset, ranks: Idset, what: str) -> None:
    """Refuse ranks that R does not have, naming all of them."""
    if not ids <= ranks:
        raise InvalidValue(f"{what}: {rank_list(ids - ranks)} not among the resources ({rank_list(ranks)})")


def parse_nodelist(obj: object, ranks: Idset) -> Hostlist:
    """One host a rank, in ascending order of ranks; absent (None), as in R of 2019: the hosts are not known."""
    if obj is None:
        return Hostlist()
    if not isinstance(obj, list | tuple):
        raise InvalidValue(f"nodelist must be a list of hostlists, not {kind_of(obj)}")
    wanted = len(ranks)
    hosts: list[str] = []
    for at, text in enumerate(obj):
        try:
            hosts.extend(Hostlist.parse(text))
        except InvalidValue as fault:
            raise named(f"nodelist[{at}]", fault) from None
        if len(hosts) > wanted:
            break  # a list of many long hostlists is not expanded to its end
    if len(hosts) != wanted:
        found = f"more than {counted(wanted, 'host')}" if len(hosts) > wanted else counted(len(hosts), "host")
        raise InvalidValue(f"nodelist names {found} for {counted(wanted, 'rank')}: it needs one for each")
    return Hostlist(tuple(hosts))


def parse_times(starttime: object, expiration: object) -> tuple[float, float]:
    """Seconds since the Unix epoch, 0.0 for unset (RFC 20, starttime and expiration)."""
    start_s, end_s = _seconds("starttime", starttime), _seconds("expiration", expiration)
    check_times(start_s, end_s)
    return start_s, end_s


def check_times(start_s: float, end_s: float) -> None:
    """Check that an expiration comes after the start, where both are set."""
    if start_s and end_s and end_s <= start_s:
        raise InvalidValue(f"expiration {end_s!r} is not after starttime {start_s!r}")


def parse_nslots(obj: object) -> int | None:
    """Return the number of slots of an allocation, or None where R is not one."""
    if obj is None:
        return None
    if not isinstance(obj, int) or isinstance(obj, bool) or obj <= 0:
        raise InvalidValue(f"nslots must be an integer above 0, not {shown(obj)}")
    return obj


def parse_shared(obj: object) -> Amounts:
    """Amounts that the instance, or a job, has once (ours: rfc/amounts.md)."""
    try:
        return parse_amounts(obj)
    except InvalidValue as fault:
        raise named("shared", fault) from None


def parse_execution(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `execution` object of a version 1 R."""
    version = obj.get("version")
    if type(version) is not int or version != 1:
        raise InvalidValue(f"version must be 1 (RFC 20), not {shown(version)}")
    execution = obj.get("execution")
    if execution is None:
        raise InvalidValue("execution is missing, the object with the resources (RFC 20)")
    if not isinstance(execution, dict):
        raise InvalidValue(f"execution must be an object, not {kind_of(execution)}")
    if "R_lite" not in execution:
        raise InvalidValue("execution has no R_lite, where the resources are (RFC 20)")
    return execution


def parse_opaque(field: str, obj: object) -> dict[str, Any] | None:
    """Return an object that R carries for others, as it is, if it is one that can be written again."""
    if obj is None:
        return None
    if not isinstance(obj, dict):
        raise InvalidValue(f"{field} must be an object, not {kind_of(obj)}")
    check_shape(obj, field, depth_limit=OPAQUE_DEPTH_MAX, items_limit=OPAQUE_MEMBERS_MAX)
    return obj


def join_properties(left: Mapping[str, Idset], right: Mapping[str, Idset]) -> dict[str, Idset]:
    """Each name with the ranks that either side gives it."""
    return {name: left.get(name, EMPTY) | right.get(name, EMPTY) for name in {**left, **right}}


def cut_properties(properties: Mapping[str, Idset], ranks: Idset) -> dict[str, Idset]:
    """Return the properties restricted to these ranks, without those that have none left."""
    return {name: kept for name, ids in properties.items() if (kept := ids & ranks)}


def for_jobs(properties: Mapping[str, Idset], ranks: Idset) -> dict[str, Idset]:
    """Return the properties on these ranks that jobs see: without those of the instance alone."""
    given = [(name, ids & ranks) for name, ids in properties.items() if not name.startswith(LOCAL_PREFIX)]
    return {name: kept for name, kept in given if kept}


def renumbered(ranks: Idset, new: Mapping[int, int]) -> Idset:
    """Each rank by its new number."""
    return Idset.of([new[rank] for rank in ranks])


def _seconds(field: str, obj: object) -> float:
    if obj is None:
        return 0.0
    if isinstance(obj, bool) or not isinstance(obj, int | float):
        raise InvalidValue(f"{field} must be a number of seconds since the epoch, not {kind_of(obj)}")
    if not 0 <= obj <= SECONDS_MAX:  # false for NaN too
        raise InvalidValue(f"{field} must be within 0 and {SECONDS_MAX:.0f} seconds since the epoch")
    return float(obj)


# ---- tables of a big R


class Lookup:
    """Rank to host and entry, host to ranks; each table costs one pass over the ranks, once.

    Properties that keep their tables themselves: mypyc makes of a `cached_property` one that is worked out each time.
    """

    def __init__(self, entries: tuple[Entry, ...], ranks: Idset, nodelist: Hostlist) -> None:
        self._entries = entries
        self._ranks = ranks
        self._nodelist = nodelist
        self._host_of: dict[int, str] | None = None
        self._entry_of: dict[int, Entry] | None = None
        self._ranks_by_host: dict[str, list[int]] | None = None
        is_run = bool(ranks) and len(ranks) == ranks.max() - ranks.min() + 1
        self.dense_from = ranks.min() if is_run else None
        """The first rank, if the ranks are one run, so that a host is found by subtraction; else None."""

    @property
    def host_of(self) -> dict[int, str]:
        """Rank -> host, ascending; empty where hosts are not known."""
        if self._host_of is None:
            self._host_of = dict(zip(self._ranks, self._nodelist, strict=False))
        return self._host_of

    @property
    def entry_of(self) -> dict[int, Entry]:
        """Return the entry of each rank."""
        if self._entry_of is None:
            self._entry_of = {rank: entry for entry in self._entries for rank in entry.ranks}
        return self._entry_of

    @property
    def ranks_by_host(self) -> dict[str, list[int]]:
        """Host -> its ranks, ascending; numbers, for as masks those of 131,072 hosts would take a gigabyte."""
        if self._ranks_by_host is None:
            self._ranks_by_host = {}
            for rank, host in self.host_of.items():
                self._ranks_by_host.setdefault(host, []).append(rank)
        return self._ranks_by_host


# ---- resource sets

NO_HOSTS: Final = Hostlist()
"""The nodelist of no ranks, or of ranks whose hosts are not known."""

SCAN_MAX = 8
"""Up to so many entries a rank is looked up by scanning them: cheaper than an index of all ranks."""


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class ResourceSet:
    """Resources described by an R.

    Times are seconds since the Unix epoch, 0.0 for unset. `nslots` is None where R is no allocation.

    `nodelist` has one host a rank, in ascending order of ranks, or is empty where hosts are not known. `scheduling`
    (`core.topology`) and `attributes` are carried along. The bare constructor trusts its arguments. `shared` are
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
        execution = parse_execution(obj)
        entries, ranks = parse_entries(execution["R_lite"])
        scheduling, topology = split_topology(parse_opaque("scheduling", obj.get("scheduling")))
        return cls(
            entries,
            parse_nodelist(execution.get("nodelist"), ranks),
            parse_properties(execution.get("properties"), ranks),
            *parse_times(execution.get("starttime"), execution.get("expiration")),
            parse_nslots(execution.get("nslots")),
            scheduling,
            parse_opaque("attributes", obj.get("attributes")),
            parse_shared(execution.get("shared")),
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
            scheduling = put_topology(scheduling, self.topology)
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
        """Return the host of a rank. Raises InvalidValue for a rank that is not here, or when hosts are not known."""
        if rank not in self.ranks:
            raise self._unknown(rank)
        if not self.nodelist.hosts:
            raise InvalidValue(f"the host of rank {rank} is not known: R has no nodelist")
        return self.hosts(Idset.one(rank)).hosts[0]

    def hosts(self, ranks: Idset) -> Hostlist:
        """Return the hosts of these ranks, one a rank, ascending; all of them empty where hosts are not known.

        Linear in the ranks asked for. Raises InvalidValue naming all ranks that are not here.
        """
        check_known(ranks, self.ranks, "hosts")
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

    def named(self, ranks: Idset, chars_max: int = NAMES_CHARS_MAX) -> str:
        """Return these ranks as people name them: by their hosts, each once, where these are known, else by number.

        A longer text is cut, and ends with the number of targets.
        """
        known = ranks & self.ranks if self.nodelist.hosts else EMPTY
        hosts, others = str(self.hosts(known).unique()) if known else "", ranks - known
        numbers = f"{'rank' if len(others) == 1 else 'ranks'} {others}" if others else ""
        text = " and ".join([part for part in (hosts, numbers) if part])
        return text if len(text) <= chars_max else f"{text[:chars_max]}... ({len(ranks):,} targets)"

    def ranks_of(self, host: str) -> Idset:
        """Return the ranks on a host, none if it is not here."""
        return self.ranks_on((host,))[0]

    def ranks_on(self, hosts: Iterable[str]) -> tuple[Idset, list[str]]:
        """Return the ranks on these hosts, and those hosts that are not here; the table for it is made once, on first
        use.
        """
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
            join_properties(self.properties, other.properties),
            self.starttime_s or other.starttime_s,
            self.expiration_s or other.expiration_s,
            other.nslots if self.nslots is None else self.nslots,
            join_scheduling(self.scheduling, other.scheduling),
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
            entries=in_order(Entry(renumbered(entry.ranks, new), entry.children) for entry in self.entries),
            nodelist=Hostlist(tuple([h for _, h in sorted(zip(new.values(), self.nodelist.hosts, strict=False))])),
            properties={name: renumbered(ids, new) for name, ids in self.properties.items()},
            scheduling=None,
        )

    def add_property(self, name: str, ranks: Idset) -> ResourceSet:
        """With a property on these ranks too. Raises InvalidValue for an illegal name or ranks that are not here."""
        check_known(ranks, self.ranks, f"property {check_property(name)!r}")
        return dataclasses.replace(self, properties=join_properties(self.properties, {name: ranks}))

    def remove_property(self, name: str, ranks: Idset) -> ResourceSet:
        """Without the property on these ranks. Raises InvalidValue naming all of them that do not have it."""
        having = self.properties.get(name, EMPTY)
        if not ranks <= having:
            raise InvalidValue(f"property {name!r}: {rank_list(ranks - having)} without it")
        left = {**self.properties, name: having - ranks}
        return dataclasses.replace(self, properties=cut_properties(left, self.ranks))

    def with_expiration(self, starttime_s: float, expiration_s: float) -> ResourceSet:
        """Return the resources with other times (seconds since the epoch, 0.0 for unset)."""
        start_s, end_s = parse_times(starttime_s, expiration_s)
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
        return parts_of(self.scheduling, self.ranks)

    def job_view(self) -> ResourceSet:
        """Without the instance-local properties (`+NAME`), which no job's R may have (RFC 20)."""
        return dataclasses.replace(self, properties=for_jobs(self.properties, self.ranks))

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
        """Return the R of a job out of placements in `source`, which gives hosts, properties and `scheduling` (RFC 27).

        Costs what the parts and the number of properties cost, whatever the size of `source`. Raises InvalidValue for
        ranks that `source` does not have and for a child given twice.
        """
        check_times(starttime_s, expiration_s)
        entries, ranks = merge(parts)
        hosts = source.hosts(ranks)
        properties = for_jobs(source.properties, ranks) if source.properties else {}
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
        """Return these entries of these ranks, cut out of mine, with their hosts and properties."""
        if entries == self.entries:
            return self.with_shared(shared)
        return dataclasses.replace(
            self,
            entries=entries,
            nodelist=self.hosts(ranks),
            properties=cut_properties(self.properties, ranks),
            shared=shared,
        )


def parse_rlite(obj: object) -> ResourceSet:
    """Return the resources of an R_lite: without hosts, properties and times. Raises InvalidValue."""
    return ResourceSet(parse_entries(obj).entries)


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


# ---- an R that grows by pieces


class GrowingResources:
    """`whole` is the union of all pieces; `ranks` are those that it names."""

    __slots__ = ("_pieces", "ranks")

    def __init__(self) -> None:
        self._pieces: list[ResourceSet] = [EMPTY_R]
        self.ranks = EMPTY_R.ranks

    @property
    def whole(self) -> ResourceSet:
        """All pieces as one R."""
        pieces = self._pieces
        while len(pieces) > 1:
            pairs = [pieces[at] | pieces[at + 1] for at in range(0, len(pieces) - 1, 2)]
            pieces = pairs + pieces[2 * len(pairs) :]
        self._pieces = pieces
        return pieces[0]

    def replace(self, whole: ResourceSet) -> None:
        """Take this instead of all pieces."""
        self._pieces, self.ranks = [whole], whole.ranks

    def add(self, piece: ResourceSet, kept: Idset) -> None:
        """Add a piece of ranks that are not in `kept`; of the ranks before it only those in `kept` are valid."""
        if not piece.ranks.isdisjoint(self.ranks) or len(self.ranks) > 2 * len(kept):
            self.replace(self.whole.restrict(kept))
        if piece.entries:
            self._pieces.append(piece)
            self.ranks |= piece.ranks


# ---- changes of an acquired group (RFC 28)

Properties: TypeAlias = Mapping[str, Idset]
"""Mapping of property names to targets."""


NO_SPARES: Final[Mapping[int, int]] = {}


@dataclass(frozen=True, slots=True)
class GroupChange:
    """Change reported to an acquirer in one message; `online` and `offline` cover all targets of `grow`.

    `grow` is empty, not None, when a group without targets is acquired; with `incomplete` its targets are not known
    yet, so nothing may be concluded from what it lacks. `expiration_s` (seconds since the epoch, 0 for none), the
    properties and the topology are None or empty where R stays as it is. `outages` are all that are known from then on,
    of other targets, too; None where these stay. So are `parts`, the drained ones, and `spares`, the targets of the
    group that stand in for another one, each with that one's rank; one on its way home has its own.
    """

    grow: ResourceSet | None = None
    shrink: Idset = EMPTY
    online: Idset = EMPTY
    offline: Idset = EMPTY
    expiration_s: float | None = None
    property_add: Properties = field(default_factory=dict)
    property_remove: Properties = field(default_factory=dict)
    topology: Topology | None = None
    incomplete: bool = False
    outages: Outages | None = None
    parts: PartsByRank | None = None
    spares: Mapping[int, int] | None = None

    @property
    def joined(self) -> Idset:
        """Return the targets of `grow`."""
        return EMPTY if self.grow is None else self.grow.ranks

    @property
    def is_update(self) -> bool:
        """Return whether R changes on targets that stay."""
        properties = bool(self.property_add) or bool(self.property_remove)
        others = self.expiration_s, self.topology, self.outages, self.parts, self.spares
        return properties or any(other is not None for other in others)


class GroupState(NamedTuple):
    """A group as its acquirer knows it: its targets, those of them that are usable, the R that describes them, the
    outages, the drained parts, and the spares.
    """

    resources: ResourceSet
    targets: Idset
    online: Idset
    outages: Outages = NO_OUTAGES
    parts: PartsByRank = NO_PARTS
    spares: Mapping[int, int] = NO_SPARES


def difference(before: GroupState, after: GroupState) -> GroupChange | None:
    """Return the change from one state to the next; None if there is none."""
    joined = left = EMPTY
    if before.targets != after.targets:
        joined, left = after.targets - before.targets, before.targets - after.targets
    flipped = before.online ^ after.online
    online, offline = flipped & after.online, (flipped & before.online - left) | (joined - after.online)
    expiration_s, added, removed = None, dict[str, Idset](), dict[str, Idset]()
    topology: Topology | None = None
    one, other = before.resources, after.resources
    if one is not other:
        stay = before.targets & after.targets
        expiration_s = None if one.expiration_s == other.expiration_s else other.expiration_s
        added, removed = _gained(one, other, stay), _gained(other, one, stay)
        topology = _rewired(one, other, stay)
    outages = None if before.outages == after.outages else after.outages
    parts = None if before.parts == after.parts else after.parts
    spares = None if before.spares == after.spares else after.spares
    update = expiration_s, added, removed, topology
    change = GroupChange(None, left, online, offline, *update, outages=outages, parts=parts, spares=spares)
    if not (joined or left or online or offline or change.is_update):
        return None
    return replace(change, grow=with_own_topology(other.restrict(joined))) if joined else change


def with_own_topology(resources: ResourceSet) -> ResourceSet:
    """Return the resources with the switches of their hosts alone."""
    topology = resources.topology
    return resources.with_topology(topology.restrict(resources.nodelist.hosts)) if topology else resources


def _rewired(before: ResourceSet, after: ResourceSet, among: Idset) -> Topology | None:
    """Return the switches of targets `among`, if they are others than before."""
    if before.topology is after.topology:
        return None
    was, now = (source.topology.restrict(source.hosts(among).hosts) for source in (before, after))
    return None if was == now else now


def _gained(before: ResourceSet, after: ResourceSet, among: Idset) -> dict[str, Idset]:
    """Properties that targets `among` have after and did not have before."""
    pairs = ((name, (ids & among) - before.properties.get(name, EMPTY)) for name, ids in after.properties.items())
    return {name: ids for name, ids in pairs if ids}


# ---- the R of a job that grows and shrinks


def grown(before: ResourceSet, added: ResourceSet) -> ResourceSet:
    """With what was added, targets of which it has none. Raises InvalidValue if only one of the two has hosts."""
    nslots = None if before.nslots is None or added.nslots is None else before.nslots + added.nslots
    start_s, end_s = before.starttime_s, before.expiration_s
    return dataclasses.replace(before | added, nslots=nslots, starttime_s=start_s, expiration_s=end_s)


def shrunk(before: ResourceSet, ranks: Idset) -> ResourceSet:
    """Without these of its targets, where it has the same slots on each node; what it has once stays."""
    left = with_own_topology(before.without(ranks).with_shared(before.shared))
    if before.parts:
        return dataclasses.replace(left, nslots=None, scheduling=put_parts(left.scheduling, left.parts))
    nslots = None if before.nslots is None else before.nslots // len(before.ranks) * len(left.ranks)
    return dataclasses.replace(left, nslots=nslots or None)

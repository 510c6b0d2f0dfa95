"""Record of the cores and amounts that each job holds, kept by the job manager.

Law: a core, GPU or other child of a target belongs to at most one job, and of an amount no more
is granted than there is. It is asserted for what each grant touches, in time linear in the grant; `check` asserts the
whole. An amount is fungible, so only sums over all holders are kept, on each target and of those that the instance has
once; what is not held is not recorded. Amounts of the instance go back with the last target of their job
(rfc/amounts.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from sys import intern
from typing import Any, Final

import msgspec

from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.quantities import Amounts, amount_text, less, total
from fluxsched.core.resources import ResourceSet, parse_shared
from fluxsched.core.rlite import Children, Entry, parse_entries
from fluxsched.core.topology import part_texts, split_topology, switch_above
from fluxsched.errors import InvalidValue, LocalProtocolError, RemoteProtocolError

INSTANCE: Final = -1
"""In place of a rank, for what the instance has once."""


class CountableUsage:
    """Amounts by rank; equal when they are the same everywhere."""

    __slots__ = ("_on",)

    def __init__(self) -> None:
        self._on: dict[int, Amounts] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CountableUsage) and self._on == other._on

    __hash__ = None  # type: ignore[assignment]  # it changes

    def add(self, ranks: Iterable[int], amounts: Amounts) -> None:
        """Count amounts as held on each of these ranks."""
        for rank in ranks if amounts else ():
            self._on[rank] = total(self._on.get(rank, ()), amounts)

    def release(self, ranks: Iterable[int], amounts: Amounts) -> None:
        """Count amounts as released on each of these ranks."""
        for rank in ranks:
            left = less(self._on.pop(rank, ()), amounts)
            if left:
                self._on[rank] = left

    def on(self, rank: int) -> Amounts:
        """Return the amounts held on a rank."""
        return self._on.get(rank, ())

    def ranks(self) -> Iterator[int]:
        """Yield the ranks on which something is held."""
        return (rank for rank in self._on if rank != INSTANCE)

    def lacking(self, asked: Iterable[tuple[Iterable[int], Amounts]], shared: Amounts, there: ResourceSet) -> list[str]:
        """Return the amounts of a grant that exceed what is free of `there`, in words; nothing is free on an unknown
        rank.
        """
        found = []
        for ranks, amounts in asked:
            for rank in ranks:
                has = there.children(rank).amounts if rank in there.ranks else ()
                found += [f"{text} of rank {rank}" for text in _more(amounts, less(has, self.on(rank)))]
        return found + [f"{text} of the instance" for text in _more(shared, less(there.shared, self.on(INSTANCE)))]


def _more(asked: Amounts, free: Amounts) -> list[str]:
    left = dict(free)
    return [
        f"{amount_text(kind, amount)} where {amount_text(kind, left.get(kind, 0))} is free"
        for kind, amount in asked if amount > left.get(kind, 0)
    ]  # fmt: skip


# ---- grants

OFFENDERS_SHOWN: Final = 8
"""Conflicts that an error names; a scheduler gone wild may cause one on every target."""

TARGETS_CACHED_MAX = 4096
"""Grants of cores of one target that are remembered, and children of targets."""
RANKS_CACHED_MAX = 16_384
"""Ranks whose sets jobs share, 5 MiB at most."""
RANK_CHARS_MAX = 7
"""The longest text of one rank."""


class GrantPart(msgspec.Struct, frozen=True, gc=False):
    """Targets with equal children: `ids` iterates the ranks, `children` has (kind, bit mask of ids)."""

    ranks: Idset
    ids: tuple[int, ...] | Idset
    children: tuple[tuple[str, int], ...]
    amounts: Amounts = ()


class Grant(msgspec.Struct, frozen=True, gc=False):
    """Resources granted by an R (RFC 20).

    These are its parts, with disjoint ranks, their ranks together, cores and GPUs in all, amounts of the instance, the
    hosts' names as one text, from when until when (0: without end), properties that some of the ranks have, each in a
    line, the ranks of each of several parts of the job, and the lowest switch above all hosts.
    """

    parts: tuple[GrantPart, ...]
    ranks: Idset
    ncores: int
    ngpus: int
    shared: Amounts = ()
    nodelist: str = ""
    starttime_s: float = 0.0
    expiration_s: float = 0.0
    properties: str = ""
    by_part: Mapping[str, str] | None = None
    switch: str = ""


_Targets = tuple[tuple[GrantPart, ...], Idset, int, int]
"""The first four values of a grant, which are those of its R_lite."""


def parse_grant(jobid: int, R: Any) -> Grant:  # noqa: N803 - RFC 20's name
    """Return the grant that R makes. Raises RemoteProtocolError naming the job and what is wrong."""
    try:
        execution = R["execution"]
        parts, ranks, ncores, ngpus = _targets(execution["R_lite"])
        shared = parse_shared(execution["shared"]) if "shared" in execution else ()
        nodelist = intern(",".join(execution.get("nodelist") or ()))  # jobs on one host share its name
        starttime_s = float(execution.get("starttime") or 0.0)
        expiration_s = float(execution.get("expiration") or 0.0)
        properties = "\n".join(sorted(execution["properties"])) if "properties" in execution else ""
        scheduling = R.get("scheduling")
        by_part = None if scheduling is None else part_texts(scheduling, ranks)
        switch = "" if scheduling is None else switch_above(split_topology(scheduling)[1], Hostlist.parse(nodelist))
    except (KeyError, TypeError, ValueError, InvalidValue) as error:
        raise RemoteProtocolError(f"R for job {jobid} is not an RFC 20 R: {type(error).__name__}: {error}") from error
    if not parts:
        raise RemoteProtocolError(f"R for job {jobid} has no ranks: deny the request instead")
    times_s = starttime_s, expiration_s
    return Grant(parts, ranks, ncores, ngpus, shared, nodelist, *times_s, properties, by_part, switch)


def _targets(rlite: Any) -> _Targets:
    """Short jobs are given the same few cores of the same few targets again and again: these are parsed once."""
    if type(rlite) is list and len(rlite) == 1:
        try:
            rank, children = rlite[0]["rank"], rlite[0]["children"]
            if "amounts" not in rlite[0] and len(rank) <= RANK_CHARS_MAX and rank.isdigit():
                return _one_target(rank, *children.items())
        except (KeyError, TypeError, AttributeError, InvalidValue):
            pass  # found again, and named, below
    return _parse_targets(rlite)


@lru_cache(TARGETS_CACHED_MAX)
def _one_target(rank: str, *children: tuple[str, str]) -> _Targets:
    """Return one target of R; a restart reads one for each target, and with all the questions of `_parse_targets` each
    takes twice as long.
    """
    if not rank.isascii() or (rank[0] == "0" and rank != "0"):  # an error, or a way to write it that is not ours
        return _parse_targets([{"rank": rank, "children": dict(children)}])
    masks, ncores, ngpus = _masks(*children)
    ids, ranks = _rank(int(rank))
    return (GrantPart(ranks, ids, masks),), ranks, ncores, ngpus


@lru_cache(RANKS_CACHED_MAX)
def _rank(rank: int) -> tuple[tuple[int, ...], Idset]:
    """Return the set of one rank, and its ids: jobs on one target share them."""
    return (rank,), Idset.one(rank)


@lru_cache(TARGETS_CACHED_MAX)
def _masks(*children: tuple[str, str]) -> tuple[tuple[tuple[str, int], ...], int, int]:
    """Return what `GrantPart.children` has of a target's children, and how many cores and GPUs these are."""
    there = Children.parse(dict(children))
    return there.masks(), len(there.cores), len(there.gpus)


def _parse_targets(rlite: Any) -> _Targets:
    entries, ranks = parse_entries(rlite)
    ncores = sum([len(targets) * len(children.cores) for targets, children in entries])
    ngpus = sum([len(targets) * len(children.gpus) for targets, children in entries])
    return tuple([_part(entry) for entry in entries]), ranks, ncores, ngpus


def _part(entry: Entry) -> GrantPart:
    ranks, children = entry
    only = ranks.single()
    # most parts are one rank: a tuple of one is iterated and counted faster than a set
    return GrantPart(ranks, ranks if only is None else (only,), children.masks(), children.amounts)


class Grants:
    """The record: what each job holds, per kind and rank a mask of what is held, and amounts.

    `there` gives the resources whose amounts are granted, and is called for grants that have some; without it amounts
    are not checked.
    """

    def __init__(self, there: Callable[[], ResourceSet] | None = None) -> None:
        self._there = there
        self._parts: dict[int, tuple[GrantPart, ...]] = {}
        self._busy: dict[str, dict[int, int]] = {}
        self._usage = CountableUsage()
        self._shared: dict[int, Amounts] = {}

    def __contains__(self, jobid: int) -> bool:
        return jobid in self._parts

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, jobid: int, grant: Grant) -> None:
        """Record that the job holds the grant from now on.

        Raises RemoteProtocolError naming cores and jobs, or amounts, and then nothing has changed.
        """
        self._check_amounts(jobid, grant)
        self.adopt(jobid, grant)

    def extend(self, jobid: int, grant: Grant) -> None:
        """Record that the job holds this grant, too, on other targets than before, and nothing of the instance. Raises
        like `add`.
        """
        if jobid not in self._parts:
            raise LocalProtocolError(f"job {jobid} was granted more resources while it held none")
        self._check_amounts(jobid, grant)
        self._book(jobid, grant)

    def adopt(self, jobid: int, grant: Grant) -> None:
        """`add` of what was granted before a restart, since when there may have come to be less of an amount."""
        if jobid in self._parts:
            raise LocalProtocolError(f"job {jobid} was granted resources while it held some")
        self._book(jobid, grant)

    def _check_amounts(self, jobid: int, grant: Grant) -> None:
        if not grant.shared and len(grant.parts) == 1 and not grant.parts[0].amounts:
            return  # so are most
        asked = [(part.ids, part.amounts) for part in grant.parts if part.amounts]
        there = self._there() if (asked or grant.shared) and self._there is not None else None
        if there is not None and (lacking := self._usage.lacking(asked, grant.shared, there)):
            raise RemoteProtocolError(f"job {jobid} was granted {'; '.join(lacking[:OFFENDERS_SHOWN])}")

    def _book(self, jobid: int, grant: Grant) -> None:
        for part in grant.parts:
            for kind, mask in part.children:
                busy = self._busy.setdefault(kind, {})
                for rank in part.ids:
                    if busy.get(rank, 0) & mask:
                        raise RemoteProtocolError(self._conflicts(jobid, grant))
        for part in grant.parts:
            for kind, mask in part.children:
                busy = self._busy[kind]
                for rank in part.ids:
                    busy[rank] = busy.get(rank, 0) | mask
            if part.amounts:
                self._usage.add(part.ids, part.amounts)
        before = self._parts.get(jobid)
        self._parts[jobid] = grant.parts if before is None else before + grant.parts
        if grant.shared:
            self._usage.add((INSTANCE,), grant.shared)
            self._shared[jobid] = grant.shared

    def release(self, jobid: int, ranks: Idset | None = None) -> None:
        """Free what the job holds on these ranks; None: everything."""
        parts = self._parts.pop(jobid)
        if ranks is not None:
            left = tuple([_restricted(part, part.ranks - ranks) for part in parts if part.ranks - ranks])
            if left:
                self._parts[jobid] = left
            parts = tuple([_restricted(part, part.ranks & ranks) for part in parts])
        for part in parts:
            for kind, mask in part.children:
                busy = self._busy[kind]
                for rank in part.ids:
                    kept = busy[rank] ^ mask
                    if kept:
                        busy[rank] = kept
                    else:
                        del busy[rank]
            if part.amounts:
                self._usage.release(part.ids, part.amounts)
        if jobid in self._shared and jobid not in self._parts:
            self._usage.release((INSTANCE,), self._shared.pop(jobid))

    def jobids(self) -> list[int]:
        """Return the jobs that hold something now."""
        return list(self._parts)

    def ranks(self, jobid: int) -> Idset:
        """Return the ranks on which the job holds something."""
        held = EMPTY
        for part in self._parts.get(jobid, ()):
            held |= part.ranks
        return held

    def busy(self, kind: str) -> dict[int, int]:
        """By rank a mask of the cores, GPUs or other children that jobs hold; to be read only."""
        return self._busy.get(kind, {})

    def entries(self) -> list[tuple[int, Children]]:
        """All that jobs hold, by rank: what `resource.sched-status` calls allocated."""
        found: dict[int, dict[str, Idset]] = {}
        for kind, busy in self._busy.items():
            for rank, mask in busy.items():
                found.setdefault(rank, {})[kind] = Idset(mask)
        for rank in self._usage.ranks():
            found.setdefault(rank, {})
        return [(rank, self._children(rank, kinds)) for rank, kinds in sorted(found.items())]

    def _children(self, rank: int, kinds: dict[str, Idset]) -> Children:
        cores, gpus = kinds.pop("core", EMPTY), kinds.pop("gpu", EMPTY)
        return Children(cores, gpus, tuple(sorted(kinds.items())), self._usage.on(rank))

    @property
    def shared(self) -> Amounts:
        """Return the amounts of the instance that jobs hold."""
        return self._usage.on(INSTANCE)

    def check(self) -> None:
        """Assert that nothing is held twice and that masks and amounts are the sum of what the jobs hold."""
        seen: dict[str, dict[int, int]] = {kind: {} for kind in self._busy}
        spent = CountableUsage()
        for shared in self._shared.values():
            spent.add((INSTANCE,), shared)
        for jobid, parts in self._parts.items():
            for part in parts:
                spent.add(part.ids, part.amounts)
                for kind, mask in part.children:
                    for rank in part.ranks:
                        before = seen[kind].get(rank, 0)
                        assert not before & mask, f"job {jobid} holds {kind} of rank {rank} that another job holds"
                        seen[kind][rank] = before | mask
        assert seen == self._busy, "the record of busy cores is not the sum of what the jobs hold"
        assert spent == self._usage, "the record of amounts is not the sum of what the jobs hold"
        assert self._shared.keys() <= self._parts.keys(), "a job that is over holds amounts of the instance"

    def _conflicts(self, jobid: int, grant: Grant) -> str:
        """Name what is granted twice, and to whom."""
        found: list[str] = []
        for holder, parts in self._parts.items():
            for held in parts:
                for given in grant.parts:
                    found += [f"{what} held by job {holder}" for what in _shared(held, given)]
                    if len(found) >= OFFENDERS_SHOWN:
                        return f"job {jobid} was granted {'; '.join(found)}; and more"
        return f"job {jobid} was granted {'; '.join(found)}"


def _restricted(part: GrantPart, ranks: Idset) -> GrantPart:
    return part if ranks == part.ranks else GrantPart(ranks, ranks, part.children, part.amounts)


def _shared(one: GrantPart, other: GrantPart) -> list[str]:
    ranks = one.ranks & other.ranks
    if not ranks:
        return []
    theirs = dict(other.children)
    both = [(kind, mask & theirs.get(kind, 0)) for kind, mask in one.children]
    return [f"rank{ranks}/{kind}{Idset(mask)}" for kind, mask in both if mask]

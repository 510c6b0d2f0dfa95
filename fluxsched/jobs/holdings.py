"""Which job holds which core: the job manager's record.

Law (law 5 of the design): a core, GPU or other child of a target belongs to at most one job. It is asserted for what
each grant touches, in time linear in the grant; `check` asserts the whole.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fluxsched.core.children import Children, Entry
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.rlite import one_target, parse_entries
from fluxsched.errors import InvalidValue, LocalProtocolError, RemoteProtocolError

OFFENDERS_SHOWN = 8
"""Conflicts that an error names; a scheduler gone wild may cause one on every target."""


class Part(NamedTuple):
    """Targets with equal children: `ids` iterates the ranks, `children` has (kind, bit mask of ids)."""

    ranks: Idset
    ids: tuple[int, ...] | Idset
    children: tuple[tuple[str, int], ...]


class Grant(NamedTuple):
    """What an R (RFC 20) gives: its parts, with disjoint ranks, and their ranks together."""

    parts: tuple[Part, ...]
    ranks: Idset

    def count(self, kind: str) -> int:
        """How many children of a kind (`core`, `gpu`, ...) it has on all its targets."""
        found = 0
        for part in self.parts:
            for name, mask in part.children:
                if name == kind:
                    found += mask.bit_count() * len(part.ids)
        return found


def parse_grant(jobid: int, R: Any) -> Grant:  # noqa: N803 - RFC 20's name
    """The grant that R makes. Raises RemoteProtocolError naming the job and what is wrong."""
    try:
        rlite = R["execution"]["R_lite"]
        if (target := one_target(rlite)) is not None:  # half the time for most jobs
            ranks = Idset(1 << target[0])
            return Grant((Part(ranks, (target[0],), target[1].masks()),), ranks)
        entries, ranks = parse_entries(rlite)
    except (KeyError, TypeError, InvalidValue) as error:
        raise RemoteProtocolError(f"R for job {jobid} is not an RFC 20 R: {type(error).__name__}: {error}") from error
    if not ranks:
        raise RemoteProtocolError(f"R for job {jobid} has no ranks: deny the request instead of granting nothing")
    return Grant(tuple([_part(entry) for entry in entries]), ranks)


def _part(entry: Entry) -> Part:
    ranks, children = entry
    only = ranks.single()
    # most parts are one rank: a tuple of one is iterated and counted faster than a set
    return Part(ranks, ranks if only is None else (only,), children.masks())


class Holdings:
    """The record: what each job holds, and per kind and rank a mask of what is held."""

    def __init__(self) -> None:
        self._parts: dict[int, tuple[Part, ...]] = {}
        self._busy: dict[str, dict[int, int]] = {}

    def __contains__(self, jobid: int) -> bool:
        return jobid in self._parts

    def __len__(self) -> int:
        return len(self._parts)

    def take(self, jobid: int, grant: Grant) -> None:
        """The job holds the grant from now on. Raises RemoteProtocolError naming cores and jobs, changing nothing."""
        if jobid in self._parts:
            raise LocalProtocolError(f"job {jobid} was granted resources while it held some")
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
        self._parts[jobid] = grant.parts

    def give(self, jobid: int, ranks: Idset | None = None) -> None:
        """The job gives back what it holds on these ranks; None stands for everything."""
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

    def holders(self, ranks: Idset) -> list[int]:
        """The jobs that hold anything on these ranks, in the order of their grants."""
        return [
            jobid for jobid, parts in self._parts.items() if any(not part.ranks.isdisjoint(ranks) for part in parts)
        ]

    def ranks(self, jobid: int) -> Idset:
        """The ranks on which the job holds something."""
        held = EMPTY
        for part in self._parts.get(jobid, ()):
            held |= part.ranks
        return held

    def entries(self) -> list[tuple[int, Children]]:
        """All that jobs hold, by rank: what `resource.sched-status` calls allocated."""
        found: dict[int, dict[str, Idset]] = {}
        for kind, busy in self._busy.items():
            for rank, mask in busy.items():
                found.setdefault(rank, {})[kind] = Idset(mask)
        return [
            (rank, Children(kinds.pop("core", EMPTY), kinds.pop("gpu", EMPTY), tuple(sorted(kinds.items()))))
            for rank, kinds in sorted(found.items())
        ]

    def check(self) -> None:
        """Assert that nothing is held twice and that the masks are the sum of what the jobs hold."""
        seen: dict[str, dict[int, int]] = {kind: {} for kind in self._busy}
        for jobid, parts in self._parts.items():
            for part in parts:
                for kind, mask in part.children:
                    for rank in part.ranks:
                        before = seen[kind].get(rank, 0)
                        assert not before & mask, f"job {jobid} holds {kind} of rank {rank} that another job holds"
                        seen[kind][rank] = before | mask
        assert seen == self._busy, "the record of busy cores is not the sum of what the jobs hold"

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


def _restricted(part: Part, ranks: Idset) -> Part:
    return part if ranks == part.ranks else Part(ranks, ranks, part.children)


def _shared(one: Part, other: Part) -> list[str]:
    ranks = one.ranks & other.ranks
    if not ranks:
        return []
    theirs = dict(other.children)
    both = [(kind, mask & theirs.get(kind, 0)) for kind, mask in one.children]
    return [f"rank{ranks}/{kind}{Idset(mask)}" for kind, mask in both if mask]

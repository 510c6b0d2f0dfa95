"""The machine as `resource.watch` says it: which target is in which state, how much of each is in use.

Law: no object a target. States and cores in use are partitions of the ranks, one idset a value; an answer costs what it
names. `whole` is what a new viewer gets, `apply` returns the change for those who have it; the rule is in `changes.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import EMPTY_R, ResourceSet

SECTIONS_MAX = 256
"""Parts of one arrangement; targets beyond are in one part, `others`."""
ARRANGEMENTS = ("group", "property", "host", "switch")
_DIGITS_AT_END = re.compile(r"[0-9]+$")


class MapSection(NamedTuple):
    """Targets that are shown together, under a title."""

    title: str
    ranks: Idset


class TargetParts:
    """Targets by a value, each in one part: its state, or its cores in use."""

    def __init__(self) -> None:
        self.parts: dict[str, Idset] = {}

    def take(self, moved: Mapping[str, str]) -> None:
        """These targets have these values now."""
        to = {value: Idset.parse(text) for value, text in moved.items()}
        targets = EMPTY
        for ranks in to.values():
            targets |= ranks
        for value, ranks in [*self.parts.items()]:
            if not ranks.isdisjoint(targets):
                self.parts[value] = ranks - targets
        for value, ranks in to.items():
            self.parts[value] = self.parts.get(value, EMPTY) | ranks
        self.parts = {value: ranks for value, ranks in self.parts.items() if ranks}

    def texts(self) -> dict[str, str]:
        """As JSON has it."""
        return {value: str(ranks) for value, ranks in self.parts.items()}

    def counts(self) -> dict[str, int]:
        """How many targets have each value."""
        return {value: len(ranks) for value, ranks in self.parts.items()}

    def total(self) -> int:
        """The sum over all targets, of numbers."""
        return sum([int(value) * len(ranks) for value, ranks in self.parts.items()])


class LiveMachine:
    """The picture, empty before the first answer."""

    def __init__(self) -> None:
        self.resources = EMPTY_R
        self.states = TargetParts()
        self.busy = TargetParts()
        """Targets by cores in use; a target that has none in use is in none, or in "0"."""
        self.busy_gpus = TargetParts()
        self.groups: Sequence[Mapping[str, Any]] = ()
        self.drains: Any = ()
        self.made_up = EMPTY
        self._r: Mapping[str, Any] = {}
        self._by_place: dict[str, list[MapSection]] = {}

    def apply(self, answer: Mapping[str, Any]) -> dict[str, Any] | None:
        """Take an answer; the change for viewers, or None if they need the whole anew, as when R has changed."""
        is_new = "R" in answer
        if is_new:
            self._define(answer["R"])
        for name in ("states", "busy", "busy_gpus"):
            if name in answer:
                getattr(self, name).take(answer[name])
        self.groups = answer.get("groups", self.groups)
        self.drains = answer.get("drains", self.drains)
        if "made_up" in answer:
            self.made_up = Idset.parse(answer["made_up"])
        return None if is_new else {**answer, **self._sums(answer)}

    def _define(self, described: Mapping[str, Any]) -> None:
        self._r = described
        self.resources = ResourceSet.parse(described)
        for partition in (self.states, self.busy, self.busy_gpus):
            kept = {value: ranks & self.resources.ranks for value, ranks in partition.parts.items()}
            partition.parts = {value: ranks for value, ranks in kept.items() if ranks}
        self._by_place = {}

    def only(self, ranks: Idset) -> LiveMachine:
        """A picture of these targets alone."""
        found = LiveMachine()
        found.apply(self.whole())
        found._define(self.resources.restrict(ranks).to_json())
        found.made_up &= ranks
        return found

    def whole(self) -> dict[str, Any]:
        """What a new viewer gets."""
        return {
            "R": self._r,
            "states": self.states.texts(),
            "busy": self.busy.texts(),
            "busy_gpus": self.busy_gpus.texts(),
            "drains": self.drains,
            "groups": list(self.groups),
            "made_up": str(self.made_up),
            "counts": self.states.counts(),
            "cores": {"total": self.resources.count("core"), "in_use": self.busy.total()},
            "gpus": {"total": self.resources.count("gpu"), "in_use": self.busy_gpus.total()},
            "sections": self._sections(),
        }

    def _sums(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """What follows from what an answer says."""
        found: dict[str, Any] = {}
        if "states" in answer:
            found["counts"] = self.states.counts()
        if "busy" in answer:
            found["cores"] = {"total": self.resources.count("core"), "in_use": self.busy.total()}
        if "busy_gpus" in answer:
            found["gpus"] = {"total": self.resources.count("gpu"), "in_use": self.busy_gpus.total()}
        if "groups" in answer:
            found["sections"] = self._sections()
        return found

    def _sections(self) -> dict[str, list[list[str]]]:
        return {by: [[one.title, str(one.ranks)] for one in self.arranged(by)] for by in ARRANGEMENTS}

    def arranged(self, by: str) -> list[MapSection]:
        """All targets in parts: by `group`, by what `property` they have, by `host` name without its last number, by
        `switch` of the lowest level that has no more switches than there can be parts.
        """
        if by == "group":
            return bounded(self._by_group())
        if by not in self._by_place:  # made when it is wanted: of 131,072 hosts it takes a tenth of a second
            self._by_place[by] = bounded(_BY_PLACE[by](self.resources))
        return self._by_place[by]

    def _by_group(self) -> Iterator[MapSection]:
        left = self.resources.ranks
        for group in self.groups:
            if ranks := left & Idset.parse(group["targets"]):
                left -= ranks
                yield MapSection(group["name"], ranks)
        if left:
            yield MapSection("no group", left)


def bounded(sections: Iterator[MapSection]) -> list[MapSection]:
    """At most SECTIONS_MAX: what is beyond is one section."""
    found = list(sections)
    if len(found) <= SECTIONS_MAX:
        return found
    others = EMPTY
    for one in found[SECTIONS_MAX - 1 :]:
        others |= one.ranks
    return [*found[: SECTIONS_MAX - 1], MapSection("others", others)]


def _by_property(resources: ResourceSet) -> Iterator[MapSection]:
    """A section for each combination of properties that some targets have, in order of their ranks."""
    parts: list[tuple[tuple[str, ...], Idset]] = [((), resources.ranks)]
    for name, ranks in sorted(resources.properties.items()):
        if len(parts) > SECTIONS_MAX:
            break  # each host has a property of its own: that is no arrangement
        parts = [
            (names, piece)
            for had, whole in parts
            for names, piece in (((*had, name), whole & ranks), (had, whole - ranks))
            if piece
        ]
    known = [part for part in parts if part[1]]  # there is none before the instance has answered
    for names, ranks in sorted(known, key=lambda part: part[1].min()):
        yield MapSection(", ".join(names) or "no property", ranks)


def _by_host(resources: ResourceSet) -> Iterator[MapSection]:
    """A section for each name that hosts have before their last number, in order of ranks; all in one without names."""
    if not resources.nodelist.hosts:
        if resources.ranks:
            yield MapSection("targets", resources.ranks)
        return
    found: dict[str, list[int]] = {}
    for rank, host in zip(resources.ranks, resources.nodelist.hosts, strict=False):
        found.setdefault(_DIGITS_AT_END.sub("", host) or host, []).append(rank)
    for ranks in found.values():
        yield MapSection(_title(resources, Idset.of(ranks)), Idset.of(ranks))


def _by_switch(resources: ResourceSet) -> Iterator[MapSection]:
    """A section for each switch of one level, in order of ranks; those under no switch are the last one."""
    topology = resources.topology
    if not topology or not resources.nodelist.hosts:
        if resources.ranks:
            yield MapSection("no switch", resources.ranks)
        return
    chains: dict[tuple[str, ...], list[int]] = {}
    for rank, host in zip(resources.ranks, resources.nodelist.hosts, strict=False):
        leaf = topology.leaf_of.get(host)
        chains.setdefault(() if leaf is None else topology.chain(leaf), []).append(rank)
    alone = chains.pop((), [])
    found: dict[str, list[int]] = {}
    for level in range(max(map(len, chains), default=0)):
        found = {}
        for chain, ranks in chains.items():
            found.setdefault(chain[min(level, len(chain) - 1)], []).extend(ranks)
        if len(found) < SECTIONS_MAX:
            break
    for name, ranks in found.items():
        yield MapSection(name, Idset.of(ranks))
    if alone:
        yield MapSection("no switch", Idset.of(alone))


_BY_PLACE: Final[Mapping[str, Callable[[ResourceSet], Iterator[MapSection]]]] = {
    "property": _by_property, "host": _by_host, "switch": _by_switch,
}  # fmt: skip


def _title(resources: ResourceSet, ranks: Idset) -> str:
    """`node[0-63]`: a few characters for any number of hosts, holes or not."""
    first, last = resources.host(ranks.min()), resources.host(ranks.max())
    stem, low, high = (_DIGITS_AT_END.sub("", first), *(_DIGITS_AT_END.search(host) for host in (first, last)))
    return first if first == last or not low or not high else f"{stem}[{low[0]}-{high[0]}]"

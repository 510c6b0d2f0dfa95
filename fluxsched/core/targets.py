"""TARGETS, as administrators and users write them: a list of ranks (RFC 22), hosts (RFC 29) and named sets.

A named set is `all`, `property:NAME`, `group:NAME` or `queue:NAME`. Properties are those of the resource set; groups
and queues are known to an instance alone, which passes a lookup for them.

Law: all offenders are named at once, so that mistakes in a long list are fixed in one go; nothing is accepted in part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

from fluxsched.core.constraint import targets_with
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import LOCAL_PREFIX, ResourceSet
from fluxsched.core.text import some_of
from fluxsched.errors import FluxschedError, InvalidValue

ALL: Final = "all"
"""The named set of all targets, also where a host is called so."""
PROPERTY, GROUP, QUEUE = "property", "group", "queue"
SET_KINDS: Final = (PROPERTY, GROUP, QUEUE)
"""Prefixes of named sets: no cluster is called so, since its name is the prefix of its hosts."""

LookUp: TypeAlias = Callable[[str, str], Idset]
"""Return the targets of a `group` or `queue`, by kind and name. Raises FluxschedError naming those that there are."""

_IDSET_CHARS: Final = frozenset("0123456789,-[]")


class NamedSet(NamedTuple):
    """One of SET_KINDS, or `all`, and a name, which `all` has not."""

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind


class TargetList(NamedTuple):
    """TARGETS as they were written, whether there are such or not."""

    ranks: Idset
    hosts: Hostlist
    sets: tuple[NamedSet, ...]


def parse_targets(
    text: object, resources: ResourceSet, look_up: LookUp | None = None, among: Idset | None = None
) -> Idset:
    """Return the ranks that `text` names: those of idsets, all on each host of hostlists, and the members of sets.

    `among` limits sets to those targets to which a request can apply, such as what is drained; ranks and hosts are
    taken at their word. Raises InvalidValue naming all that `resources` and `look_up` do not know.
    """
    wanted, hosts, sets = split_targets(text)
    on_hosts, unknown = resources.ranks_on(hosts) if hosts else (EMPTY, [])
    members, faults = EMPTY, _unknown(wanted - resources.ranks, unknown, resources.ranks)
    for each in sets:
        try:
            members |= _members(each, resources, look_up)
        except FluxschedError as fault:
            faults.append(str(fault))
    if faults:
        raise InvalidValue("; ".join(faults))
    return wanted | on_hosts | (members if among is None else members & among)


def split_targets(text: object) -> TargetList:
    """Return the ranks, hosts and sets that `text` names. Raises InvalidValue.

    A part of digits, commas, hyphens and brackets alone is an idset, even where hosts have such names.
    """
    if not isinstance(text, str) or _IDSET_CHARS.issuperset(text):
        return TargetList(Idset.parse(text), Hostlist(), ())
    wanted, hosts, sets = EMPTY, list[str](), list[NamedSet]()
    for part in _parts(text):
        kind, colon, name = part.partition(":")
        if part == ALL or (colon and kind in SET_KINDS):
            if part != ALL and not name:
                raise InvalidValue(f"targets {part!r}: the name is missing, as in {kind}:NAME")
            sets.append(NamedSet(kind, name))
        elif part and _IDSET_CHARS.issuperset(part):
            wanted |= Idset.parse(part)
        else:
            hosts.append(part)
    return TargetList(wanted, Hostlist.parse(",".join(hosts)).unique() if hosts else Hostlist(), tuple(sets))


def _members(named: NamedSet, resources: ResourceSet, look_up: LookUp | None) -> Idset:
    if named.kind == ALL:
        return resources.ranks
    if named.kind == PROPERTY:
        found = targets_with(named.name, resources.properties) & resources.ranks
        if not found and named.name not in resources.properties:
            known = sorted(name for name in resources.properties if not name.startswith(LOCAL_PREFIX))
            remedy = f"the properties are {some_of(known)}" if known else "no target has any"
            raise InvalidValue(f"no target has property {named.name!r}: {remedy}")
        return found
    if look_up is None:
        raise InvalidValue(f"{named}: only an instance knows its {named.kind}s; give ranks, hosts or property:NAME")
    return look_up(named.kind, named.name)


def _parts(text: str) -> Iterator[str]:
    """Cut the text at the commas that are outside of brackets."""
    whole, depth = [], 0
    for piece in text.split(","):
        whole.append(piece)
        depth += piece.count("[") - piece.count("]")
        if depth <= 0:
            yield ",".join(whole)
            whole, depth = [], 0
    if whole:
        yield ",".join(whole)


def _unknown(ranks: Idset, hosts: list[str], known: Idset) -> list[str]:
    """Return the error about unknown ranks and hosts, if there are any."""
    named = [f"ranks {ranks}"] if ranks else []
    named += [f"hosts {Hostlist.of(hosts)}"] if hosts else []
    if not named:
        return []
    remedy = f"the ranks here are {known or 'none'}" if ranks else "give hosts of this instance, or ranks"
    return [f"unknown {' and '.join(named)}: {remedy}"]

"""What an administrator means by TARGETS: an idset of ranks (RFC 22), a hostlist (RFC 29), or a list of both.

Law: all offenders are named at once, so that mistakes in a long list are fixed in one go; nothing is accepted in part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import InvalidValue

RanksOn: TypeAlias = Callable[[Iterable[str]], tuple[Idset, list[str]]]
"""The ranks on some hosts, and those hosts that are not known."""

_IDSET_CHARS: Final = frozenset("0123456789,-[]")


def parse_targets(text: object, ranks_on: RanksOn, ranks: Idset) -> Idset:
    """The ranks that `text` names: every rank of an idset, every rank on each host of a hostlist.

    `ranks_on` is `ResourceSet.ranks_on`, `ranks` is all that there are. Raises InvalidValue naming all unknown ones.
    """
    wanted, hosts = split_targets(text)
    if not hosts:
        _refuse(wanted - ranks, None, ranks)
        return wanted
    on_hosts, unknown = ranks_on(hosts)
    _refuse(wanted - ranks, Hostlist.of(unknown) if unknown else None, ranks)
    return wanted | on_hosts


def split_targets(text: object) -> tuple[Idset, Hostlist]:
    """The ranks and the hosts that `text` names, whether they exist or not. Raises InvalidValue.

    A part of digits, commas, hyphens and brackets alone is an idset, even where hosts have such names.
    """
    if not isinstance(text, str) or _IDSET_CHARS.issuperset(text):
        return Idset.parse(text), Hostlist()
    parts = list(_parts(text))
    named = [part for part in parts if not part or not _IDSET_CHARS.issuperset(part)]
    wanted = EMPTY
    for part in parts if len(named) < len(parts) else ():
        if part and _IDSET_CHARS.issuperset(part):
            wanted |= Idset.parse(part)
    return wanted, Hostlist.parse(",".join(named)).unique()


def _parts(text: str) -> Iterator[str]:
    """The text cut at the commas that are outside of brackets."""
    whole, depth = [], 0
    for piece in text.split(","):
        whole.append(piece)
        depth += piece.count("[") - piece.count("]")
        if depth <= 0:
            yield ",".join(whole)
            whole, depth = [], 0
    if whole:
        yield ",".join(whole)


def _refuse(ranks: Idset, hosts: Hostlist | None, known: Idset) -> None:
    """Raise InvalidValue if any of these is left."""
    faults = [f"ranks {ranks}"] if ranks else []
    if hosts is not None:
        faults.append(f"hosts {hosts}")
    if faults:
        remedy = f"the ranks here are {known or 'none'}" if ranks else "give hosts of this instance, or ranks"
        raise InvalidValue(f"unknown {' and '.join(faults)}: {remedy}")

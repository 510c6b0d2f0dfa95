"""What an administrator means by TARGETS: an idset of ranks (RFC 22) or a hostlist (RFC 29), one or the other.

Law: all offenders are named at once, so that a mistake in a long list is mended in one go; nothing is half accepted.
"""

from __future__ import annotations

from collections.abc import Mapping

from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import InvalidValue

_IDSET_CHARS = frozenset("0123456789,-[]")


def parse_targets(text: str, nodelist: Mapping[str, Idset], ranks: Idset) -> Idset:
    """The ranks that `text` names: every rank of an idset, or every rank on each host of a hostlist.

    `nodelist` maps each known host to its ranks, `ranks` is all that there are. A text of digits, commas, hyphens and
    brackets alone is an idset, even where hosts have such names. Raises InvalidValue naming all unknown ranks or hosts.
    """
    if isinstance(text, str) and not _IDSET_CHARS.issuperset(text):
        return _of_hosts(Hostlist.parse(text).unique(), nodelist)
    wanted = Idset.parse(text)
    if not wanted <= ranks:
        raise InvalidValue(f"unknown ranks {wanted - ranks}: the ranks here are {ranks or 'none'}")
    return wanted


def _of_hosts(hosts: Hostlist, nodelist: Mapping[str, Idset]) -> Idset:
    unknown = [host for host in hosts if host not in nodelist]
    if unknown:
        raise InvalidValue(f"unknown hosts {Hostlist.of(unknown)}: give hosts of this instance, or ranks")
    found = EMPTY
    for host in hosts:
        found |= nodelist[host]
    return found

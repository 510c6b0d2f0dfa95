"""The fields of R around R_lite (RFC 20), each checked on its own: nodelist, properties, times, nslots.

Law: a function takes the JSON value and gives the frozen one, or raises InvalidValue that begins with the field's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fluxsched.core.amounts import Amounts, parse_amounts
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jsontext import check_shape, named, shown
from fluxsched.core.rlite import rank_list
from fluxsched.core.text import kind_of
from fluxsched.errors import InvalidValue, LimitExceeded

SECONDS_MAX = 1e11
"""The year 5138: a time stamp beyond it is in the wrong unit (milliseconds, nanoseconds)."""

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
    """A property name as RFC 20 allows it."""
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
        found = f"more than {wanted}" if len(hosts) > wanted else str(len(hosts))
        raise InvalidValue(f"nodelist names {found} hosts for {wanted} ranks: it needs one for each")
    return Hostlist(tuple(hosts))


def parse_times(starttime: object, expiration: object) -> tuple[float, float]:
    """Seconds since the Unix epoch, 0.0 for unset (RFC 20, starttime and expiration)."""
    start_s, end_s = _seconds("starttime", starttime), _seconds("expiration", expiration)
    check_times(start_s, end_s)
    return start_s, end_s


def check_times(start_s: float, end_s: float) -> None:
    """An expiration comes after the start, where both are set."""
    if start_s and end_s and end_s <= start_s:
        raise InvalidValue(f"expiration {end_s!r} is not after starttime {start_s!r}")


def parse_nslots(obj: object) -> int | None:
    """The number of slots of an allocation, or None where R is not one."""
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
    """The `execution` object of a version 1 R."""
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
    """An object that R carries for others, as it is, if it is one that can be written again."""
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

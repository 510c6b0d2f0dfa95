"""Values of settings, of the journal and of processes as rows have them: read, and checked for what their kind needs.

Law: a value that is returned can be restored; one that cannot be is named. A kind that is not known here is only JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from fluxsched.core.resources import ResourceSet
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.resource.state.drain import Drain


def _check_property(row: Any) -> None:
    for names in (row.get("add", ()), row.get("remove", ())):
        if not all(isinstance(name, str) for name in names):
            raise TypeError("a name of a property is no text")


def _check_event(row: Any) -> None:
    float(row["timestamp"])
    str.lower(row["name"])


def _check_cluster(row: Any) -> None:
    if isinstance(row, dict):
        ResourceSet.parse(row)


def _check_source(row: Any) -> None:
    str.lower(row["source"])
    float(row["timestamp"])
    if "expiration" in row:
        float(row["expiration"])
    else:
        ResourceSet.parse(row["R"])


_CHECKS: Final[Mapping[str, Callable[[Any], object]]] = {
    "drain": Drain.from_row,
    "assign": lambda row: str.lower(row["group"]),
    "leaving": lambda row: str.lower(row["from"]),
    "group": lambda row: row.keys(),
    "queue": lambda row: row.keys(),
    "property": _check_property,
    "journal": _check_event,
    "process": lambda row: row.keys(),
    "cluster": _check_cluster,
    "source": _check_source,
}
_NUMBERS: Final = frozenset({("instance", "epoch_ms"), ("instance", "counted"), ("instance", "commit")})


def decode_saved(kind: str, key: object, value: Any) -> Any:
    """Return what a row has. Raises InvalidValue naming it if that is not what its kind needs."""
    try:
        found = json.loads(value)
        if (kind, key) in _NUMBERS:
            int(found)
        elif kind in _CHECKS:
            _CHECKS[kind](found)
    except (FluxschedError, ValueError, LookupError, TypeError, AttributeError) as fault:
        raise InvalidValue(f"{kind} {key} cannot be read: {type(fault).__name__}: {fault}") from fault
    return found

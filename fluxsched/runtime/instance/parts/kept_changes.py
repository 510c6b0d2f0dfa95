"""R and its expiration as requests have changed them: kept over restarts until the source of R gives another one.

Law: what `resource.reload` was given, and an expiration that was set, are stored before they are answered, with a
digest of the R that its source (options, configuration, enclosing job, machine) gave then. A start whose source gives
the same R takes them up again; one whose source gives another R drops them. The log says which of the two it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import msgspec

from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue
from fluxsched.resource.state.inventory import Inventory
from fluxsched.runtime.inventory.discovery import MachineTopology
from fluxsched.runtime.inventory.sources import Sources, described
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.storage.salvage import is_filled, open_read_only
from fluxsched.runtime.storage.saved import decode_saved
from fluxsched.runtime.system.clock import local_moment
from fluxsched.runtime.system.log import logger
from fluxsched.runtime.system.paths import DATABASE_NAME

log = logger("resource")

KIND: Final = "source"
"""Of the rows of `saved`, which are called `R` and `expiration`."""
DIGEST_BYTES: Final = 16

ChangeRow = Mapping[str, Any]


def stored_changes(statedir: Path | None) -> Mapping[str, ChangeRow]:
    """Return the rows in a state directory that an instance is about to use; none where they cannot be read, since a
    start judges such a state later.
    """
    if statedir is None or not is_filled(statedir / DATABASE_NAME):
        return {}
    try:
        with closing(open_read_only(statedir / DATABASE_NAME)) as connection:
            rows = connection.execute("SELECT key, value FROM saved WHERE kind = ?", (KIND,)).fetchall()
        return {key: decode_saved(KIND, key, value) for key, value in rows}
    except (sqlite3.Error, InvalidValue):
        return {}


def with_changes(
    found: Sources, rows: Mapping[str, ChangeRow], now_s: float, here: MachineTopology | None
) -> Sources:
    """Return what a source has found, with those rows that belong to it; `here` is needed for an R."""
    current = {key: row for key, row in rows.items() if why_dropped(row, found.source, now_s) is None}
    if (row := current.get("R")) is not None:
        assert here is not None, "an R is looked up on a machine"
        loaded = described(ResourceSet.parse(row["R"]), here)
        found = replace(loaded, inventory=Inventory(loaded.inventory.resources, "reload"), source=found.source)
    if (row := current.get("expiration")) is not None:
        resources = found.inventory.resources
        resources = resources.with_expiration(resources.starttime_s, float(row["expiration"]))
        found = replace(found, inventory=replace(found.inventory, resources=resources))
    return found


def why_dropped(row: ChangeRow, source: ResourceSet, now_s: float) -> str | None:
    """Return why a row no longer applies; None if it does."""
    expiration_s = row["expiration"] if "expiration" in row else row["R"]["execution"].get("expiration", 0.0)
    if row["source"] != digest(source):
        return "what this start names has changed since"
    return f"it expired at {local_moment(expiration_s)}" if 0 < expiration_s <= now_s else None


class KeptChanges:
    """The rows about R in the store, and the R of the source that they belong to."""

    def __init__(self, store: Store, source: ResourceSet, rows: Mapping[str, ChangeRow], now_s: float) -> None:
        """`rows` are those of the start, which has applied them (`with_changes`); it drops the others."""
        self._store = store
        self._source = source
        for key, row in rows.items():
            why = why_dropped(row, source, now_s)
            if why is not None:
                log.warning("%s is dropped: %s; what this start names is in force", request_of(row), why)
                self._drop(key)
            elif "R" in row:
                log.warning(
                    "R is that of %s, for what this start names is as it was then; `fluxsched resource reload` returns "
                    "to it",
                    request_of(row),
                )
            else:
                log.warning("R expires at %s, because of %s", local_moment(row["expiration"]), request_of(row))

    def keep_resources(self, resources: ResourceSet, path: str | None, now_s: float) -> None:
        """Store the R that a reload was given, in the ranks that its targets have here, and the path of its file."""
        self._save("R", {"R": resources.to_json(), "path": path, "timestamp": now_s})
        self._drop("expiration")

    def keep_expiration(self, expiration_s: float, now_s: float) -> None:
        """Store an expiration that was set."""
        self._save("expiration", {"expiration": expiration_s, "timestamp": now_s})

    def return_to(self, source: ResourceSet) -> None:
        """Note that R is that of its source again, which may have changed."""
        self._source = source
        self._drop("R")
        self._drop("expiration")

    def _save(self, key: str, row: dict[str, Any]) -> None:
        self._store.add("saved", (KIND, key, msgspec.json.encode({"source": digest(self._source), **row})))

    def _drop(self, key: str) -> None:
        self._store.remove("saved", (KIND, key))


def digest(source: ResourceSet) -> str:
    """Return what identifies the R of a source."""
    text = msgspec.json.encode(source.to_json(), order="sorted")
    return blake2b(text, digest_size=DIGEST_BYTES).hexdigest()


def request_of(row: ChangeRow) -> str:
    """Name the request that a row is from."""
    name = "resource.expiration-update" if "expiration" in row else "resource.reload"
    path = row.get("path")
    return f"the {name}{f' of {path}' if path else ''} at {local_moment(row['timestamp'])}"

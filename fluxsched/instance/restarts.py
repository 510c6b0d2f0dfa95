"""State that outlives a restart: changes of R, in the store, and what a restart in place hands over to its successor.

Law: a change of R holds until the source of R gives another one than it gave when the change was made. A restart in
place hands over what the next process cannot find in one variable of the environment, which that removes at once, so
that no job sees it.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from fluxsched.client.blocking import Handle
from fluxsched.client.find import find_uri
from fluxsched.config.discovery import MachineTopology
from fluxsched.config.inventory import Sources, described
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.resource.inventory import Inventory, Targets
from fluxsched.store.integrity import is_written
from fluxsched.store.repair import decode_saved, is_filled, open_read_only
from fluxsched.store.store import Store
from fluxsched.system.clock import SystemClock, local_moment
from fluxsched.system.files import DATABASE_NAME
from fluxsched.system.log import logger
from fluxsched.system.processes import stat_of

log = logger("resource")

KIND: Final = "source"
"""Kind of the rows of `saved` with the keys `R`, `expiration` and RANKS."""
RANKS: Final = "ranks"
"""Key of the row with R in the ranks that its targets had last."""
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
            rows = connection.execute("SELECT * FROM saved WHERE kind = ?", (KIND,)).fetchall()
        return {row[1]: decode_saved(KIND, row[1], row[2], is_written("saved", row)) for row in rows}
    except (sqlite3.Error, InvalidValue):
        return {}


def with_changes(found: Sources, rows: Mapping[str, ChangeRow], now_s: float, here: MachineTopology | None) -> Sources:
    """Return what a source has found, with those rows that belong to it; `here` is needed for an R."""
    current = {key: row for key, row in rows.items() if key != RANKS and why_dropped(row, found.source, now_s) is None}
    if (row := current.get("R")) is not None:
        assert here is not None, "an R is looked up on a machine"
        loaded = described(ResourceSet.parse(row["R"]), here)
        if found.remote:
            loaded = loaded.held_by_keepers()
        found = replace(loaded, inventory=Inventory(loaded.inventory.resources, "reload"), source=found.source)
    if (row := current.get("expiration")) is not None:
        resources = found.inventory.resources
        resources = resources.with_expiration(resources.starttime_s, float(row["expiration"]))
        found = replace(found, inventory=replace(found.inventory, resources=resources))
    return found


def has_running_jobs(statedir: Path) -> bool:
    """Return whether jobs of a state directory that an instance is about to use hold resources."""
    ended = "SELECT jobid FROM job_log WHERE ended"
    try:
        with closing(open_read_only(statedir / DATABASE_NAME)) as connection:
            query = f"SELECT 1 FROM job_log WHERE R IS NOT NULL AND jobid NOT IN ({ended}) LIMIT 1"
            return connection.execute(query).fetchone() is not None
    except sqlite3.Error:
        return False


def with_ranks(found: Sources, row: ChangeRow | None, is_held: Callable[[], bool]) -> Sources:
    """Return what a start has found; if jobs hold targets, in the ranks of the last session, by which they hold them.

    `row` is the one with the key RANKS.
    """
    if row is None:
        return found
    targets = Targets(Inventory(ResourceSet.parse(row["R"]), found.inventory.method))
    admission = targets.admit(found.inventory.resources)
    if not admission.renumbered or not is_held():
        return found
    groups = {name: admission.ours(ranks) for name, ranks in found.groups.items()}
    outages = tuple([each._replace(targets=admission.ours(each.targets)) for each in found.outages])
    withheld = found.inventory.withheld.renumbered(admission.renumbered)
    inventory = replace(found.inventory, resources=admission.resources, withheld=withheld)
    return replace(found, inventory=inventory, groups=groups, outages=outages)


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
        self._ranks = rows.get(RANKS)
        self._is_reloaded = False
        for key, row in rows.items():
            why = None if key == RANKS else why_dropped(row, source, now_s)
            if why is not None:
                log.warning("%s is dropped: %s; what this start names is in force", request_of(row), why)
                self._drop(key)
            elif key == RANKS:
                continue
            elif "R" in row:
                self._is_reloaded = True
                log.warning(
                    "R is that of %s, for what this start names is as it was then; `fluxsched resource reload` returns "
                    "to it",
                    request_of(row),
                )
            else:
                log.warning("R expires at %s, because of %s", local_moment(row["expiration"]), request_of(row))

    def keep_resources(self, resources: ResourceSet, path: str | None, now_s: float) -> None:
        """Store the R of a reload, in the ranks that its targets have in this instance, and the path of its file."""
        self._save("R", {"R": resources.to_json(), "path": path, "timestamp": now_s})
        self._drop("expiration")

    def note_ranks(self, ours: ResourceSet, now_s: float) -> None:
        """Keep the ranks of a start, and log if they are not those of its source (`with_ranks`)."""
        if not self._is_reloaded and (ours.ranks, ours.nodelist) != (self._source.ranks, self._source.nodelist):
            log.warning(
                "targets keep the ranks that they had, since jobs hold some; without jobs a start numbers them by "
                "their source"
            )
        self.keep_ranks(ours, now_s)

    def keep_ranks(self, ours: ResourceSet, now_s: float) -> None:
        """Store the source with the ranks that its targets have in this instance, unless it is stored."""
        row = {"R": ours.with_expiration(0.0, 0.0).to_json(), "timestamp": now_s}
        if self._ranks is None or self._ranks["R"] != row["R"]:
            self._ranks = row
            self._save(RANKS, row)

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


# ---- restarts

VARIABLE = "_FLUXSCHED_RESTART"
RESTART_S = 60.0
"""Time for which keepers wait for the next instance (seconds) before they end jobs that do not outlive it."""
LOOK_S = 0.02
"""Interval in which a client checks whether the next instance is up (seconds)."""


class HandedOver(msgspec.Struct, frozen=True):
    """State that an instance hands over to itself."""

    pid: int
    run_directory: str
    owner: int
    """The descriptor that holds the lock on it."""
    program: int | None
    """Process id of the initial program, if one runs."""
    state_lock: int | None = None
    """The descriptor that holds the lock on its state: no other instance may take that meanwhile."""

    @classmethod
    def take(cls) -> HandedOver | None:
        """Return the state that was handed over to this process; None if it was not started so."""
        text = os.environ.pop(VARIABLE, None)
        found = None if text is None else msgspec.json.decode(text, type=cls)
        if found is None or found.pid != os.getpid():
            return None
        for fd in found._locks:
            os.set_inheritable(fd, False)
        return found

    @property
    def _locks(self) -> list[int]:
        return [fd for fd in (self.owner, self.state_lock) if fd is not None]

    @property
    def directory(self) -> tuple[Path, int]:
        """Return the run directory and its lock as `make_run_directory` does."""
        return Path(self.run_directory), self.owner

    def execute(self) -> NoReturn:
        """Execute this program again, with the same arguments."""
        for fd in self._locks:
            os.set_inheritable(fd, True)
        os.environ[VARIABLE] = msgspec.json.encode(self).decode()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def restart(uri: str | None, timeout_s: float) -> str:
    """Restart the instance at `uri`, else the only one of this user, wait until it is ready again, and return its URI.

    Raises Refused naming all, if there are several.
    """
    uri = find_uri(uri, only=True)
    with Handle(uri) as handle:
        before = handle.rpc("instance.info")
        handle.rpc("instance.restart")
    until_s = SystemClock.monotonic_s() + timeout_s
    while True:
        with suppress(FluxschedError), Handle(uri) as handle:
            if handle.rpc("instance.info")["starttime"] != before["starttime"]:
                handle.rpc("instance.ready")
                return uri
        stat = stat_of(before["pid"])
        if stat is None or not stat.alive:
            raise FluxschedError(f"instance {uri} has ended while it restarted: see its log; its jobs continue, if it "
                                 "has a state directory, and the next start goes on with them")  # fmt: skip
        if SystemClock.monotonic_s() > until_s:
            raise FluxschedError(f"instance {uri} was not ready again within {timeout_s:g} s", errno.ETIMEDOUT)
        SystemClock.sleep(LOOK_S)

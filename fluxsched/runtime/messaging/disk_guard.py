"""Where the state is kept: whether there is room for it, which faults pass, and what is refused until they have.

Law: a full disk ends nothing that runs. Requests that need storage are refused while little space is left, so that the
rest is enough for the ends of running jobs; what is in progress when a write fails waits in memory, in order, until it
can be written. Nothing is answered before.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from fluxsched.errors import Refused
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.messaging.peers import RpcRequest
from fluxsched.runtime.messaging.services import Handler

ROOM_BYTES = 4 << 20
"""With less space than this nothing new is accepted: the events of an ending job take a kilobyte."""
MIB = 1 << 20

NEW = frozenset(
    {
        "job-manager.submit", "job-ingest.submit", "job-manager.urgency", "job-manager.update",
        "job-manager.queue-enable", "job-manager.queue-start", "job-manager.sched-save",
        "resource.drain", "resource.undrain", "resource.assign", "resource.include", "resource.reload",
        "resource.property-add", "resource.property-remove", "resource.expiration-update",
    }
)  # fmt: skip
"""Topics whose success promises something that is on disk, and that can wait."""
ENDING = frozenset({"job-manager.raise", "job-manager.raiseall", "job-manager.cancel"})
"""Those that make room, too: refused only when nothing can be written. `job-manager.kill` stores nothing."""


class DiskGuard:
    """Refuses requests while their effects could not be stored."""

    def __init__(self, store: Store, turns: Turns, shortage: Callable[[], str | None]) -> None:
        self._store = store
        self._turns = turns
        self._find_shortage = shortage
        self._turn = -1
        self._shortage: str | None = None

    def check_new(self) -> None:
        """Raises Refused with the reason (ENOSPC, or the errno of the system)."""
        self.check_ending()
        if self._turn != self._turns.count:  # once a turn: thousands may arrive in one
            self._turn, self._shortage = self._turns.count, self._find_shortage()
        if self._shortage is not None:
            raise Refused(self._shortage, errno.ENOSPC)

    def check_ending(self) -> None:
        """Raises Refused if nothing can be written."""
        if self._store.fault is not None:
            raise Refused(
                f"{self._store.fault}: nothing new is accepted until it can be written again; running jobs continue "
                "(`fluxsched kill` ends one)",
                errno.ENOSPC if self._store.is_full else errno.EIO,
            )

    def guards(self) -> dict[str, Callable[[Handler], Handler]]:
        """For `Router.guard`: what is asked before a topic is handled."""
        return dict.fromkeys(NEW, _after(self.check_new)) | dict.fromkeys(ENDING, _after(self.check_ending))


def _after(check: Callable[[], None]) -> Callable[[Handler], Handler]:
    def guarded(handler: Handler) -> Handler:
        def checked(request: RpcRequest) -> None:
            check()
            handler(request)

        return checked

    return guarded


def free_bytes(directory: Path) -> int | None:
    """Free space for this user on the file system of a directory; None if that does not say. Raises OSError."""
    found = os.statvfs(directory)
    if found.f_blocks == 0:
        return None
    return found.f_frsize * (found.f_bfree if os.getuid() == 0 else found.f_bavail)


def shortage(directory: Path) -> str | None:
    """Why nothing new can be stored there, and what to do; None if it can."""
    try:
        free = free_bytes(directory)
    except OSError as fault:
        return f"the state directory {directory} cannot be used: {fault.strerror}"
    if free is None or free >= ROOM_BYTES:
        return None
    return (
        f"only {free / MIB:.1f} MiB are free on the file system of {directory}, where the state is kept, and the last "
        f"{ROOM_BYTES // MIB} MiB are for jobs that run: make room there"
    )


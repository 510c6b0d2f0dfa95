"""Sockets of an instance (ZeroMQ, the local one for Flux's clients, those of `--bind`), and the room left on its disk.

Law: other users come in only where the configuration says so, and only at a socket that was bound for them. The run
directory is its owner's alone (mode 0700), and so are the sockets in it. A tcp port is for holders of authorized keys;
one without keys is open to every account of the machine, which it takes for the owner: it is bound only on request, on
loopback, with a warning. A full disk ends nothing that runs: requests that need storage are refused while little space
is left, so that the rest is enough for the ends of running jobs, and what is in progress when a write fails waits in
memory, in order, until it can be written. Nothing is answered before.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fluxsched.errors import Refused
from fluxsched.messaging.peers import Access, RpcRequest
from fluxsched.messaging.router import Handler
from fluxsched.protocol.topics import IF_ROOM, IF_WRITABLE, answered
from fluxsched.store.store import Store
from fluxsched.system.files import LOCAL_NAME, SOCKET_NAME
from fluxsched.system.loop import Turns
from fluxsched.transport.base import Server
from fluxsched.transport.endpoints import KeyPair, ServerKeys
from fluxsched.transport.local import LocalServer
from fluxsched.transport.zeromq import ZmqServer

LOCAL_SCHEME, TCP_SCHEME = "local://", "tcp://"
OWNER_MODE, GUESTS_MODE = 0o600, 0o666
"""Modes of a socket's file: Linux requires write permission to connect."""


def local_uri(run_directory: Path) -> str:
    """Return the URI at which stock Flux clients find the instance, in the form of FLUX_URI."""
    return f"{LOCAL_SCHEME}{run_directory / LOCAL_NAME}"


def wants_keys(bind: Iterable[str], *, insecure_tcp: bool) -> bool:
    """Return whether an endpoint is to be bound that requires keys."""
    return not insecure_tcp and any(endpoint.startswith(TCP_SCHEME) for endpoint in bind)


def listen(
    run_directory: Path, bind: Iterable[str], access: Access, own: KeyPair | None, *, insecure_tcp: bool
) -> Iterator[Server]:
    """Bind all of them, our own clients' first; `own` are the keys of tcp ports.

    Raises Refused or InvalidValue at the first that cannot be.
    """
    yield ZmqServer(f"ipc://{run_directory / SOCKET_NAME}")
    yield LocalServer(local_uri(run_directory))
    is_shared = access.rules.allow_guests or access.rules.admin_users or access.rules.allow_root_owner
    mode = GUESTS_MODE if is_shared else OWNER_MODE
    keys = None if own is None else ServerKeys(own, access.admit_key)
    for endpoint in bind:
        is_local = endpoint.startswith(LOCAL_SCHEME)
        yield (
            LocalServer(endpoint, admit=access.admit_user, mode=mode)
            if is_local
            else ZmqServer(endpoint, insecure_tcp=insecure_tcp, keys=keys)
        )


def open_to_all(endpoints: Iterable[str], user: str) -> str | None:
    """Return the warning about tcp ports without keys among the endpoints of a user's instance; None without such."""
    ports = [endpoint for endpoint in endpoints if endpoint.startswith(TCP_SCHEME) and "@" not in endpoint]
    if not ports:
        return None
    return (
        f"{' and '.join(ports)}: without keys, so every account of this machine can do there all that {user} can: "
        f"run commands as {user}, read and end all jobs, stop the instance"
    )


# ---- guard of a full disk

ROOM_BYTES = 4 << 20
"""Free space below which nothing new is accepted: the events of an ending job take a kilobyte."""
MIB = 1 << 20


class DiskGuard:
    """Refuses requests while their effects could not be stored."""

    def __init__(self, store: Store, turns: Turns, shortage: Callable[[], str | None]) -> None:
        self._store = store
        self._turns = turns
        self._find_shortage = shortage
        self._turn = -1
        self._shortage: str | None = None

    def check_new(self) -> None:
        """Raise Refused with the reason (ENOSPC, or the errno of the system)."""
        self.check_ending()
        if self._turn != self._turns.count:  # once a turn: thousands may arrive in one
            self._turn, self._shortage = self._turns.count, self._find_shortage()
        if self._shortage is not None:
            raise Refused(self._shortage, errno.ENOSPC)

    def check_ending(self) -> None:
        """Raise Refused if nothing can be written."""
        if self._store.fault is not None:
            raise Refused(
                f"{self._store.fault}: nothing new is accepted until it can be written again; running jobs continue "
                "(`fluxsched kill` ends one)",
                errno.ENOSPC if self._store.is_full else errno.EIO,
            )

    def guards(self) -> dict[str, Callable[[Handler], Handler]]:
        """Return the checks before topics are handled, for `Router.guard`."""
        new, ending = _after(self.check_new), _after(self.check_ending)
        return dict.fromkeys(answered(IF_ROOM), new) | dict.fromkeys(answered(IF_WRITABLE), ending)


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


def shortage(directory: Path, room_bytes: int = ROOM_BYTES) -> str | None:
    """Return the reason why nothing new can be stored there, with the remedy; None if it can."""
    try:
        free = free_bytes(directory)
    except OSError as fault:
        return f"the state directory {directory} cannot be used: {fault.strerror}"
    if free is None or free >= room_bytes:
        return None
    return (
        f"only {free / MIB:.1f} MiB are free on the file system of {directory}, where the state is kept, and the last "
        f"{room_bytes // MIB} MiB are for jobs that run: make room there"
    )

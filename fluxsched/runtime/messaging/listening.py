"""Where an instance listens: ZeroMQ for its own clients, a local socket for Flux's, and what `--bind` adds.

Law: other users come in only where the configuration says so, and only at a socket that was bound for them. The run
directory is its owner's alone (mode 0700), and so are the sockets in it. A tcp port is for holders of authorized keys;
one without keys is open to every account of the machine, which it takes for the owner: it is bound only on request,
on loopback, with a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from fluxsched.runtime.access.access import Access
from fluxsched.runtime.system.paths import LOCAL_NAME, SOCKET_NAME
from fluxsched.transport.base import Server
from fluxsched.transport.curve import KeyPair, ServerKeys
from fluxsched.transport.local import LocalServer
from fluxsched.transport.zeromq import ZmqServer

LOCAL_SCHEME, TCP_SCHEME = "local://", "tcp://"
OWNER_MODE, GUESTS_MODE = 0o600, 0o666
"""Of a socket's file: Linux requires write permission to connect."""


def local_uri(run_directory: Path) -> str:
    """Where stock Flux clients find the instance, as FLUX_URI wants it."""
    return f"{LOCAL_SCHEME}{run_directory / LOCAL_NAME}"


def wants_keys(bind: Iterable[str], *, insecure_tcp: bool) -> bool:
    """Whether an endpoint is to be bound that only keys open."""
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
    """The warning about tcp ports without keys among the endpoints of a user's instance; None without such."""
    ports = [endpoint for endpoint in endpoints if endpoint.startswith(TCP_SCHEME) and "@" not in endpoint]
    if not ports:
        return None
    return (
        f"{' and '.join(ports)}: without keys, so every account of this machine can do there all that {user} can: "
        f"run commands as {user}, read and end all jobs, stop the instance"
    )

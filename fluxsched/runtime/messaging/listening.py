"""Where an instance listens: ZeroMQ for its own clients, a local socket for Flux's, and what `--bind` adds.

Law: other users come in only where the configuration says so, and only at a socket that was bound for them. The run
directory is its owner's alone (mode 0700), and so are the sockets in it. A tcp port is open to every account of the
machine, which it takes for the owner: it is bound only on request, with a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from fluxsched.runtime.system.paths import LOCAL_NAME, SOCKET_NAME
from fluxsched.transport.base import Server
from fluxsched.transport.local import LocalServer, any_user, owner_only
from fluxsched.transport.zeromq import ZmqServer

LOCAL_SCHEME, TCP_SCHEME = "local://", "tcp://"
OWNER_MODE, GUESTS_MODE = 0o600, 0o666
"""Of a socket's file: Linux requires write permission to connect."""


def local_uri(run_directory: Path) -> str:
    """Where stock Flux clients find the instance, as FLUX_URI wants it."""
    return f"{LOCAL_SCHEME}{run_directory / LOCAL_NAME}"


def listen(run_directory: Path, bind: Iterable[str], *, guests: bool, insecure_tcp: bool) -> Iterator[Server]:
    """Bind all of them, our own clients' first. Raises Refused or InvalidValue at the first that cannot be."""
    yield ZmqServer(f"ipc://{run_directory / SOCKET_NAME}")
    yield LocalServer(local_uri(run_directory))
    admit, mode = (any_user, GUESTS_MODE) if guests else (owner_only, OWNER_MODE)
    for endpoint in bind:
        is_local = endpoint.startswith(LOCAL_SCHEME)
        yield (
            LocalServer(endpoint, admit=admit, mode=mode)
            if is_local
            else ZmqServer(endpoint, insecure_tcp=insecure_tcp)
        )


def open_to_all(endpoints: Iterable[str], user: str) -> str | None:
    """The warning about tcp ports among the endpoints of a user's instance; None without such."""
    ports = [endpoint for endpoint in endpoints if endpoint.startswith(TCP_SCHEME)]
    if not ports:
        return None
    return (
        f"{' and '.join(ports)}: without keys, so every account of this machine can do there all that {user} can: "
        f"run commands as {user}, read and end all jobs, stop the instance"
    )

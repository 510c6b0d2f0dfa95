"""Behaviour of every transport, with its limits (bytes and parts of a message, bytes that are unsent), held to by one
conformance suite; addresses that are bound or reached, ownership of a socket's path, and keys of CURVE.

A message is a list of parts (RFC 3: route stack, delimiter, topic, payload, header). A send never waits, a receive
never waits, and a peer that ends is reported once, after everything that it had sent.

A key of CURVE, ZeroMQ's encryption, has 32 bytes, written as 64 hexadecimal digits, and not in ZeroMQ's Z85, which is
full of characters that shells and URIs take for their own. A secret is never shown.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import re
import socket
import stat
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fluxsched.errors import Disconnected, InvalidValue, LimitExceeded, LocalProtocolError, Refused

if TYPE_CHECKING:  # commands start 15 ms sooner without asyncio
    import asyncio

MESSAGE_BYTES_MAX = 64 << 20
"""Largest part of a message that is taken in: room for R of 131,072 different targets, not for a flood."""

PARTS_MAX = 64
"""Most parts of a message: a route of 60 hops is far beyond any tree, a million empty parts is an attack."""

UNSENT_BYTES_MAX = 64 << 20
"""Most bytes kept for a peer that does not read; beyond it the peer is cut off so that others live on."""

NO_PARTS = "a message without parts cannot be sent: it has at least its header"


class Arrived(NamedTuple):
    """A message from a peer; `frames` come without the peer's identity: `[b"", topic, payload?, header]`.

    `userid` or `key` (the public key that the peer has proved to have) is who the transport knows it to be; both are
    None where its access rules let in the owner only.
    """

    peer: bytes
    frames: list[bytes]
    userid: int | None = None
    key: bytes | None = None


class Lost(NamedTuple):
    """The peer's connection ended; exactly once a peer, after its last message. `reason` is for people."""

    peer: bytes
    reason: str


class Server(Protocol):
    """One bound endpoint with many peers. A peer is known from its first message until its `Lost`."""

    endpoint: str
    dropped: int
    """Messages that were not delivered because their peer was unknown or lost."""
    json: bool
    """True if payloads are JSON here (rfc/local.md), not msgpack (rfc/wire.md)."""

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """Call `wake()` on `loop` whenever `receive` may have something; it may also be called in vain."""

    def receive(self, limit: int) -> list[Arrived | Lost]:
        """Up to `limit` messages and as many losses, without waiting; `wake()` is called again if more remains."""
        ...

    def send(self, peer: bytes, frames: Sequence[bytes]) -> None:
        """Send now or keep it for the peer, in order; drops the peer when too much is kept (UNSENT_BYTES_MAX)."""

    def drop(self, peer: bytes, reason: str) -> None:
        """Cut the peer off; its `Lost` carries `reason`. Nothing happens if it is unknown or already ending."""

    def unsent_bytes(self, peer: bytes) -> int:
        """Bytes kept for the peer because it does not read."""
        ...

    def peers(self) -> int:
        """Return the number of peers that have sent a message and are not lost."""
        ...

    def close(self) -> None:
        """End all connections; what was sent last gets a short time to leave."""


class Client(Protocol):
    """One connection to a server. It does not come back by itself: a lost session needs a new hello."""

    lost: str | None
    """Why the connection ended, once everything that came before has been received."""

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """Call `wake()` on `loop` whenever `receive` may have something or `lost` may have changed."""

    def receive(self, limit: int) -> list[list[bytes]]:
        """Up to `limit` messages, without waiting; if there may be more, `wake()` is called again."""
        ...

    def send(self, frames: Sequence[bytes]) -> None:
        """Send without waiting; once the connection is lost this does nothing."""

    def close(self) -> None:
        """End the connection; what was sent last gets a short time to leave."""


def size_bytes(frames: Sequence[bytes]) -> int:
    """Bytes of a message, all parts together."""
    return sum(map(len, frames))


def check_outgoing(frames: Sequence[bytes], limit_bytes: int) -> None:
    """Refuse here what the other side would cut the connection for: LimitExceeded."""
    if not frames:
        raise LocalProtocolError(NO_PARTS)
    if len(frames) > PARTS_MAX:
        raise LimitExceeded(f"message of {len(frames)} parts, limit {PARTS_MAX}: shorten its route")
    largest = max(map(len, frames))
    if largest > limit_bytes:
        raise LimitExceeded(f"message part of {largest} bytes, limit {limit_bytes}: send it in smaller pieces")


def slow_reader(unsent_bytes: int, limit_bytes: int) -> str:
    """Return the reason that a peer which does not read is given."""
    return f"slow reader: {unsent_bytes} bytes unsent, limit {limit_bytes}"


class Waker:
    """Calls one function on a loop: many requests within a turn become one call."""

    __slots__ = ("_callback", "_loop", "_soon", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """Call in the loop's next turn."""
        if self._soon is None:
            self._soon = self._loop.call_soon(self._fire)

    def now(self) -> None:
        """Call at once, unless a call is due; for callbacks of the loop itself, which are in no turn."""
        if self._soon is None:
            self._callback()

    def later(self, delay_s: float) -> None:
        """Call after `delay_s`, or earlier if that was already asked for."""
        if self._timer is None:
            self._timer = self._loop.call_later(delay_s, self._fire_timer)

    def stop(self) -> None:
        """Forget what was asked for."""
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        self._soon = self._timer = None

    def _fire(self) -> None:
        self._soon = None
        self._callback()

    def _fire_timer(self) -> None:
        self._timer = None
        self._callback()


# ---- endpoints

_HEX = re.compile(r"[0-9a-f]{64}")


class KeyPair:
    """A public key with its secret, which no text of this object shows."""

    __slots__ = ("public", "secret")

    def __init__(self, public: bytes, secret: bytes) -> None:
        self.public = public
        self.secret = secret

    def __repr__(self) -> str:
        return f"KeyPair({self.public.hex()}, ...)"


class ServerKeys(NamedTuple):
    """Keys of a server on CURVE: its own pair, and whether a public key from an address may connect."""

    own: KeyPair
    admits: Callable[[bytes, str], bool]


def parse_key(text: str) -> bytes:
    """Return the bytes of a key. Raises InvalidValue, without repeating what may be a secret."""
    if not _HEX.fullmatch(text):
        raise InvalidValue(f"a key has 64 hexadecimal digits in lower case; these are {len(text)} characters")
    return bytes.fromhex(text)


# ---- endpoints

SOCKET_PATH_BYTES_MAX = 107
"""sun_path of a UNIX socket holds 108 bytes, one of them the closing NUL."""

ANY_HOST = "*"
"""A server binds it to listen at all of the machine's addresses."""

FOR_FLUX = (
    "local sockets are for Flux's own commands, which find it in FLUX_URI; fluxsched's use ipc://, which is the "
    "owner's alone, or tcp:// with a key (`fluxsched uri`, `fluxsched keygen`)"
)

_RUN_DIRECTORY = re.compile(r"fluxsched-([0-9]{1,10})-.+")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")

PROBE_TIMEOUT_S = 2.0
"""A local listener accepts at once; one whose backlog stays full this long is as good as dead."""


class TcpAddress(NamedTuple):
    """Parts of an endpoint `tcp://[KEY@]HOST:PORT`; `server_key` is the public key that the server must prove to
    have.
    """

    host: str
    port: str
    server_key: bytes | None

    def bare(self) -> str:
        """Return the endpoint as ZeroMQ knows it, without the key."""
        return f"tcp://{self.host}:{self.port}"

    def with_key(self, server_key: bytes) -> str:
        """Return the endpoint for clients of the server that has this key."""
        return f"tcp://{server_key.hex()}@{self.host}:{self.port}"

    def is_loopback(self) -> bool:
        """Return whether only this machine reaches the address."""
        loopback = self.host == "localhost"
        with contextlib.suppress(ValueError):
            loopback = loopback or ipaddress.IPv4Address(self.host).is_loopback
        return loopback


def ipc_path(endpoint: str) -> Path | None:
    """Return the file of an `ipc://` endpoint, None for tcp. Every other endpoint is refused: InvalidValue."""
    scheme, separator, rest = endpoint.partition("://")
    if scheme == "ipc" and separator:
        return _checked_path(endpoint, rest)
    if scheme == "tcp" and separator:
        return None
    if scheme == "local" and separator:
        raise InvalidValue(f"endpoint {endpoint!r}: {FOR_FLUX}")
    raise InvalidValue(f"endpoint {endpoint!r}: expected ipc:///PATH or tcp://[KEY@]HOST:PORT")


def tcp_address(endpoint: str) -> TcpAddress:
    """Return the parts of a tcp endpoint.

    Raises InvalidValue for one that is malformed, or that lacks the key it needs: only on loopback may both sides do
    without.
    """
    address = _tcp_parts(endpoint)
    if address.server_key is None and not address.is_loopback():
        text = "tcp beyond loopback needs the server's key, as in tcp://KEY@HOST:PORT (`fluxsched uri --tcp` prints it)"
        raise InvalidValue(f"endpoint {endpoint!r}: {text}")
    return address


def bound_address(endpoint: str) -> TcpAddress:
    """Return the parts of an endpoint to bind, which names no key: the server has one, or is not asked for any."""
    address = _tcp_parts(endpoint)
    if address.server_key is not None:
        raise InvalidValue(f"endpoint {endpoint!r}: a server's key is in its certificate: leave out what is before @")
    return address


def reachable(bound: str) -> TcpAddress:
    """Return a bound endpoint as clients find it: the machine's name in place of "all of its addresses"."""
    address = _tcp_parts(bound)
    return address._replace(host=socket.gethostname()) if address.host in (ANY_HOST, "0.0.0.0") else address


def _tcp_parts(endpoint: str) -> TcpAddress:
    key, separator, address = endpoint.removeprefix("tcp://").rpartition("@")
    try:
        server_key = parse_key(key) if separator else None
    except InvalidValue as fault:
        raise InvalidValue(f"endpoint {endpoint!r}: {fault}") from None
    host, separator, port = address.rpartition(":")
    if not separator or not (port == "*" or (port.isdecimal() and len(port) <= 5 and int(port) <= 65535)):
        raise InvalidValue(f"endpoint {endpoint!r}: expected tcp://127.0.0.1:PORT, PORT 0-65535 or *")
    if not (host == ANY_HOST or _HOST.fullmatch(host)):
        raise InvalidValue(f"endpoint {endpoint!r}: the host is an IPv4 address or a name, as in tcp://127.0.0.1:PORT")
    return TcpAddress(host, port, server_key)


def local_path(endpoint: str) -> Path:
    """Return the file of a `local://` endpoint; every other endpoint is refused: InvalidValue."""
    scheme, separator, rest = endpoint.partition("://")
    if scheme != "local" or not separator:
        raise InvalidValue(f"endpoint {endpoint!r}: expected local:///PATH")
    return _checked_path(endpoint, rest)


def _checked_path(endpoint: str, path: str) -> Path:
    if not path.startswith("/") or "\0" in path:
        scheme = endpoint.partition(":")[0]
        raise InvalidValue(f"endpoint {endpoint!r}: it needs an absolute path, as in {scheme}:///run/x/uri")
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise InvalidValue(f"endpoint {endpoint!r}: path is longer than {SOCKET_PATH_BYTES_MAX} bytes: shorten it")
    return Path(path)


class PathClaim:
    """Ownership of a socket's path from construction to `release`."""

    __slots__ = ("_lock_fd", "path")

    def __init__(self, path: Path) -> None:
        """Refused (EADDRINUSE) while another server owns the path; its directory is made, mode 0700, if missing."""
        self.path = path
        lock_path = f"{path}.lock"
        if path.exists() and not path.is_socket():  # bind would delete it
            raise Refused(f"socket path {path} exists and is not a socket: choose another one", errno.EEXIST)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            while True:
                self._lock_fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                self._lock()
                if _is_at(self._lock_fd, lock_path):
                    break
                os.close(self._lock_fd)  # it was removed by who had it, between our two calls
        except OSError as error:
            why = str(error.strerror)
            if error.errno == errno.ELOOP:
                why = f"{lock_path} is a symbolic link, perhaps of another user: remove it, or choose another path"
            raise Refused(f"cannot claim socket path {path}: {why}", error.errno) from error

    def _lock(self) -> None:
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock_fd)
            text = f"socket path {self.path} is in use by another server: choose another one"
            raise Refused(text, errno.EADDRINUSE) from error

    def set_mode(self, mode: int) -> None:
        """Set the permissions of the socket that was bound here; Refused if it was replaced by anything else.

        By a descriptor: chmod would follow a link that the owner of the directory puts there after the bind.
        """
        fd = os.open(self.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                raise Refused(f"socket path {self.path} was replaced by another user: choose another one", errno.EPERM)
            os.chmod(f"/proc/self/fd/{fd}", mode)
        finally:
            os.close(fd)

    def unlink(self) -> None:
        """Remove the path, so that no client finds a dead socket. Only while the claim is held."""
        self.path.unlink(missing_ok=True)

    def release(self) -> None:
        """Give up the claim and remove the lock file: a process that waits for the lock finds it gone."""
        with contextlib.suppress(OSError):
            os.unlink(f"{self.path}.lock")
        os.close(self._lock_fd)


def _is_at(fd: int, path: str) -> bool:
    """Return whether the open file is the one that `path` names now."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def check_server(path: Path, connection: socket.socket) -> None:
    """Disconnected (EACCES) if another user listens in a run directory, which has the number of its user in its name.

    Where all users may make directories, such as /tmp, somebody could take the name of an instance that is down.
    """
    owner = _RUN_DIRECTORY.fullmatch(path.parent.name)
    _, userid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if owner is not None and userid != int(owner[1]):
        text = f"{path} is a socket of user {userid}, and no instance of user {owner[1]}, whose number is in its name"
        raise Disconnected(text, errno.EACCES)


def check_listening(endpoint: str) -> None:
    """Disconnected (ECONNREFUSED) if nothing listens: ZeroMQ itself would wait for ever."""
    path = ipc_path(endpoint)
    target: str | tuple[str, int]
    if path is not None:
        family, target = socket.AF_UNIX, str(path)
    else:
        address = tcp_address(endpoint)
        for part, wild in (("port", address.port), ("host", address.host)):
            if wild == "*":
                raise InvalidValue(f"endpoint {endpoint!r}: name the {part} to connect to")
        family, target = socket.AF_INET, (address.host, int(address.port))
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(target)
            if path is not None:
                check_server(path, probe)
        except PermissionError as error:
            text = f"you may not connect to {endpoint} ({error.strerror}): it is for another user"
            raise Disconnected(text, errno.EACCES) from error
        except OSError as error:
            text = f"nothing listens at {endpoint} ({error.strerror or error}): is the instance running?"
            raise Disconnected(text, errno.ECONNREFUSED) from error

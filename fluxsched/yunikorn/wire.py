"""Wire of the interface: addresses, certificates, the RPCs of both services, and the client's side of them.

An address is `unix:PATH` or `HOST:PORT`. The RPCs are a table made from the descriptors: no generated stubs. `RMClient`
is a resource manager over gRPC: it registers, opens three streams, sends and is answered.

Law: what is sent on one stream is written in its order and never waited for by the sender; the first stream that ends,
for whatever reason, is the end of the connection, and says why.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc

from fluxsched.core.text import shown
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.system.files import base_directory
from fluxsched.yunikorn import messages
from fluxsched.yunikorn.messages import KINDS, UPDATES

SOCKET_PATH_BYTES_MAX: Final = 107
"""Maximum length of the path of a socket on Linux (sun_path, less the final NUL)."""

PORT_MAX: Final = 65535
_UNIX: Final = "unix:"
_HOST_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:/\s\0]+):([0-9]{1,5})")


class Address(NamedTuple):
    """A socket's path, or a host and a port; port 0 lets the system choose one."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        """As people write it, and as gRPC reads it."""
        return f"{self.host}:{self.port}" if self.path is None else f"{_UNIX}{self.path}"

    @property
    def is_loopback(self) -> bool:
        """Return whether only processes of this machine can reach the address over TCP."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False


def default_address() -> Address:
    """Return a socket in a directory of this user's own."""
    return Address(path=base_directory() / f"fluxsched_si_{os.getuid()}" / "socket")


def parse_address(text: str | None) -> Address:
    """Return the address that `text` is, or the default one. Raises InvalidValue."""
    if text is None:
        return default_address()
    if text.startswith(_UNIX):
        return Address(path=_socket_path(text.removeprefix(_UNIX)))
    found = _HOST_PORT.fullmatch(text)
    if found is None:
        raise InvalidValue(f"{shown(text)} is not an address: write unix:PATH or HOST:PORT")
    if int(found[2]) > PORT_MAX:
        raise LimitExceeded(f"port {found[2]} is above the limit of {PORT_MAX}")
    return Address(host=found[1], port=int(found[2]))


def _socket_path(text: str) -> Path:
    if not text or "\0" in text:
        raise InvalidValue(f"unix:{shown(text)} has no file path: write unix:PATH")
    path = Path(os.path.abspath(text))
    size = len(bytes(path))
    if size > SOCKET_PATH_BYTES_MAX:
        raise LimitExceeded(
            f"the socket's path {path} has {size} bytes, the limit of the system is {SOCKET_PATH_BYTES_MAX}: "
            "name a shorter one"
        )
    return path


# ---- certificates of a service and of its clients


class ServerCertificates(NamedTuple):
    """Ours with its key, and those that clients' are checked against; all PEM."""

    cert: bytes
    key: bytes
    client_ca: bytes

    def credentials(self) -> grpc.ServerCredentials:
        """Return the certificates as credentials of gRPC."""
        pair = (self.key, self.cert)
        return grpc.ssl_server_credentials([pair], self.client_ca, require_client_auth=True)


def certificates_of(
    address: Address, is_insecure: bool, cert: Path | None, key: Path | None, client_ca: Path | None
) -> ServerCertificates | None:
    """Return the certificates that protect an address; None for a local socket, and for loopback if that is wanted.

    Raises InvalidValue.
    """
    given = [path for path in (cert, key, client_ca) if path is not None]
    if address.path is not None:
        if given or is_insecure:
            raise InvalidValue(f"{address} is a local socket: it takes neither certificates nor --insecure")
        return None
    if is_insecure:
        if given:
            raise InvalidValue("--insecure takes no certificates: leave one or the other out")
        if not address.is_loopback:
            raise InvalidValue(f"--insecure is for loopback alone, and {address.host} is not: name certificates")
        return None
    if len(given) < len(ServerCertificates._fields):
        raise InvalidValue(
            f"{address} needs --cert, --key and --client-ca"
            + (", or --insecure to admit every process of this machine" if address.is_loopback else "")
        )
    _check(*given)
    return ServerCertificates(*(path.read_bytes() for path in given))


def _check(cert: Path, key: Path, ca: Path) -> None:
    """Raise InvalidValue for files that are no certificates, or do not belong together: gRPC would not say which."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
    except ssl.SSLError as fault:
        why = fault.reason or fault
        raise InvalidValue(f"{cert} and {key} are not a certificate (PEM) and its key: {why}") from None
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as fault:
        raise InvalidValue(f"{ca} has no certificates (PEM): {fault.reason or fault}") from None


class ClientCertificates(NamedTuple):
    """Ours with its key, and those that the service's is checked against; all PEM."""

    cert: bytes
    key: bytes
    ca: bytes

    @classmethod
    def of(cls, address: Address, cert: Path | None, key: Path | None, ca: Path | None) -> ClientCertificates | None:
        """Read from files; None if none is named. Raises InvalidValue for a part of them, or with a local socket."""
        given = [path for path in (cert, key, ca) if path is not None]
        if not given:
            return None
        if address.path is not None:
            raise InvalidValue(f"{address} is a local socket and takes no certificates")
        if len(given) < len(cls._fields):
            raise InvalidValue("--cert, --key and --ca belong together: name all three")
        _check(*given)
        return cls(*(path.read_bytes() for path in given))

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the certificates as credentials of gRPC."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.cert)


# ---- RPCs


class Method(NamedTuple):
    """Method of a service: one RPC."""

    service: str
    name: str
    request: Any
    response: Any
    streams_requests: bool
    streams_responses: bool

    @property
    def path(self) -> str:
        """Return the path of the RPC in HTTP/2."""
        return f"/{self.service}/{self.name}"


def _methods(name: str, package: str) -> dict[str, Method]:
    service = messages.service(name, package)
    return {
        each.name: Method(
            service.full_name,
            each.name,
            messages.class_of(each.input_type),
            messages.class_of(each.output_type),
            each.client_streaming,
            each.server_streaming,
        )
        for each in service.methods
    }


SCHEDULER: Final = _methods("Scheduler", messages.PACKAGE)
"""Methods of the interface's own service."""
EXTRA: Final = _methods("Extra", messages.EXTRA_PACKAGE)
"""Methods of the service `Extra`."""


# ---- channels and single calls

CALL_S: Final = 10.0
"""Time that a single call may take (seconds)."""

OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),  # a service is called directly, whatever the environment says
    ("grpc.max_receive_message_length", -1),  # the state of a large service is one message
)


def open_channel(address: Address, certificates: ClientCertificates | None = None) -> grpc.Channel:
    """Return a channel for blocking calls."""
    if certificates is None:
        return grpc.insecure_channel(str(address), OPTIONS)
    return grpc.secure_channel(str(address), certificates.credentials(), OPTIONS)


def call(channel: grpc.Channel, address: Address, method: Method, request: Any) -> Any:
    """One unary call. Raises Refused with what the service said, or that there is none."""
    stub = channel.unary_unary(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )
    try:
        return stub(request, timeout=CALL_S)
    except grpc.RpcError as fault:
        raise Refused(refusal(address, fault), errno.ECONNREFUSED) from None


def refusal(address: Address, fault: Any) -> str:
    """Return the meaning of an RpcError, as text for people."""
    match fault.code():
        case grpc.StatusCode.UNAVAILABLE:
            if address.path is None:
                return (
                    f"no scheduler service answers at {address}, or not with these certificates (--cert, --key, --ca): "
                    "start one with fluxsched si serve"
                )
            return f"no scheduler service answers at {address}: start one with fluxsched si serve"
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"the scheduler service at {address} has not answered within {CALL_S:g} s"
        case grpc.StatusCode.UNIMPLEMENTED:
            return f"the service at {address} is not fluxsched's: it has no such call"
        case _:
            return str(fault.details())


def state_dump(address: Address, certificates: ClientCertificates | None, rm_id: str) -> str:
    """Return the state of one resource manager, or of all, as JSON. Raises Refused."""
    with open_channel(address, certificates) as channel:
        return str(call(channel, address, EXTRA["StateDump"], messages.StateDumpRequest(rmID=rm_id)).json)


# ---- a resource manager's streams

LEAVE_S: Final = 5.0
"""Time within which the service has to end streams that we have half-closed (seconds)."""

Take = Callable[[str, Any], None]
"""Function that is called for each response, with its kind."""


class RMClient:
    """One resource manager at one service. After `register`, `open` begins the streams; `ended` says how they ended."""

    def __init__(self, address: Address, certificates: ClientCertificates | None = None) -> None:
        self._address = address
        credentials = None if certificates is None else certificates.credentials()
        self._channel: Any = (
            grpc.aio.insecure_channel(str(address), OPTIONS)
            if credentials is None
            else grpc.aio.secure_channel(str(address), credentials, OPTIONS)
        )
        self._outboxes: dict[str, asyncio.Queue[Any]] = {}
        """Messages to be written, in order, by kind; None is the end."""
        self._tasks: list[asyncio.Task[None]] = []
        self._calls: list[Any] = []
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def register(self, request: Any) -> None:
        """Raise Refused with what the service said, or that there is none."""
        method = SCHEDULER["RegisterResourceManager"]
        stub = self._channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        try:
            await stub(request, timeout=CALL_S)
        except grpc.RpcError as fault:
            raise Refused(refusal(self._address, fault), errno.ECONNREFUSED) from None

    def open(self, take: Take) -> None:
        """Open all three streams; a service binds each to us with the first message on it."""
        for kind in KINDS:
            method = SCHEDULER[UPDATES[kind]]
            call = self._channel.stream_stream(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )()
            self._calls.append(call)
            outbox = self._outboxes[kind] = asyncio.Queue()
            self._tasks += [
                asyncio.create_task(self._write(call, outbox)),
                asyncio.create_task(self._read(call, kind, take)),
            ]

    def send(self, kind: str, request: Any) -> None:
        """Send a message on the stream of its kind; without a stream it is forgotten."""
        outbox = self._outboxes.get(kind)
        if outbox is not None:
            outbox.put_nowait(request)

    async def leave(self) -> None:
        """Half-close all streams, which ends our registration in order, and close the channel."""
        for outbox in self._outboxes.values():
            outbox.put_nowait(None)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LEAVE_S)
        await self.close()

    async def close(self) -> None:
        """Drop all without a word: to the service it is the loss of the connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self._channel.close()

    async def _write(self, call: Any, outbox: asyncio.Queue[Any]) -> None:
        try:
            while (request := await outbox.get()) is not None:
                await call.write(request)
            await call.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError):
            return  # the reader of the stream says why

    async def _read(self, call: Any, kind: str, take: Take) -> None:
        try:
            async for response in call:
                take(kind, response)
            self._end(f"the service has ended the stream of {kind}")
        except grpc.RpcError as fault:
            self._end(refusal(self._address, fault))

    def _end(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_result(why)

"""Router of RFC 3 messages between peers and services: one outbox a peer, flushed once a turn; the sockets at which
peers arrive (ZeroMQ, the local one for Flux's clients, those of `--bind`), and the guard of the room left on the disk.

A peer that has sent a bundle gets bundles; to all others messages go one by one (wire.md, Bundles). Payloads are
msgpack in here: the JSON of a local peer is turned right before it is handled, and back right before it is sent. Such a
peer meets the handlers of `serve_local` first, which answer as Flux does. Handlers never wait: they answer at once,
later (`RpcRequest.respond` after a commit), step by step in later turns (`incremental`), or not at all. A handler's
`FluxschedError` is the sender's error response; an unexpected exception ends that call, too.

Law: userid and rolemask of a request are what the transport verified, not what the message claims. The callback of a
request of ours runs exactly once; one that was asked on behalf of another peer may be given up, and a call that changes
our own state never is.

Other users come in only where the configuration says so, and only at a socket that was bound for them. The run
directory is its owner's alone (mode 0700), and so are the sockets in it. A tcp port is for holders of authorized keys;
one without keys is open to every account of the machine, which it takes for the owner: it is bound only on request, on
loopback, with a warning. A full disk ends nothing that runs: requests that need storage are refused while little space
is left, so that the rest is enough for the ends of running jobs, and what is in progress when a write fails waits in
memory, in order, until it can be written. Nothing is answered before.

Messages as text, as they pass: for `fluxsched start --trace`, the tour of `make run` and `instance.trace`.

Law: a trace is looked at, printed and pasted elsewhere, so what users keep in environments, and what their tasks read
and write, is left out.
"""

from __future__ import annotations

import errno
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from logging import DEBUG, INFO
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO, TypeVar

from fluxsched.errors import FluxschedError, Refused, RemoteProtocolError
from fluxsched.messaging.peers import (
    NO_USER,
    Access,
    OwnerOf,
    Peer,
    PeerLimits,
    Permissions,
    RpcRequest,
    owns_none,
)
from fluxsched.protocol import framing
from fluxsched.protocol.framing import (
    CONTROL,
    NORESPONSE,
    REQUEST,
    RESPONSE,
    ROLE_LOCAL,
    ROLE_NONE,
    ROLE_OWNER,
    ROLE_USER,
    USERID_UNKNOWN,
    Message,
    decode,
    encode,
    make_request,
    pack_bundles,
    relayed,
    unpack_bundle,
)
from fluxsched.protocol.messages.common import CancelRequest
from fluxsched.protocol.topics import IF_ROOM, IF_WRITABLE, answered, each_jobs
from fluxsched.store.store import Store
from fluxsched.system.files import LOCAL_NAME, SOCKET_NAME
from fluxsched.system.log import logger, message_fields, request_id
from fluxsched.system.loop import Turns, error_answer, is_expected
from fluxsched.transport.base import Arrived, KeyPair, Lost, Server, ServerKeys
from fluxsched.transport.local import LocalServer
from fluxsched.transport.zeromq import ZmqServer

trace_log = logger("messages")

Tracer = Callable[[str, Message], None]
"""Takes a direction, `<- PEER` or `-> PEER`, and a message."""

LINE_CHARS_MAX = 280
"""A line where no terminal says how wide it is; an R of a large machine would fill the file."""
HIDDEN = "(hidden)"
"""Text in place of the environment of a job, which may have secrets."""
_TASK_DATA = ("job-manager.input", "job-manager.output", "job-info.lookup", "job-info.eventlog-watch", "shell-")
"""Topics of what tasks read and write, and of records as text, in which nothing can be hidden: their size is shown."""


def printer(out: TextIO, beginnings: tuple[str, ...] = ("",)) -> Tracer:
    """Return a tracer that prints one line a message whose topic has one of these prefixes: direction, peer, kind,
    topic, payload.
    """

    def trace(direction: str, message: Message) -> None:
        if message.topic.startswith(beginnings) and not is_sign_of_life(message):
            out.write(cut(describe(direction, message), width(out)) + "\n")
            out.flush()

    return trace


def with_log(trace: Tracer | None) -> Tracer | None:
    """Return `trace`, and if lines for debugging are wanted, one that logs each message with the request's id."""
    if not trace_log.isEnabledFor(DEBUG):
        return trace

    def logged(direction: str, message: Message) -> None:
        if not is_sign_of_life(message):
            kind = kind_of(message)
            known = f" {request_id(message.matchtag)}" if message.matchtag else ""
            extra = message_fields(message.matchtag, message.topic, direction.split(" ", 1)[1])
            trace_log.debug("%s %s%s: %s", direction, kind, known, message.topic, extra=extra)
        if trace is not None:
            trace(direction, message)

    return logged


def is_sign_of_life(message: Message) -> bool:
    """Return whether the message is an instance's ping of a module, or its response: that is every second, and no
    news.
    """
    return message.topic.endswith(".ping") and message.payload is None


def width(out: TextIO) -> int:
    """Return the number of columns that a line may take: the terminal's, as it is now, else LINE_CHARS_MAX."""
    if not out.isatty():
        return LINE_CHARS_MAX
    try:
        return os.get_terminal_size(out.fileno()).columns or LINE_CHARS_MAX
    except OSError:
        return LINE_CHARS_MAX


def cut(text: str, width: int) -> str:
    """Return a text of at most `width` characters; an ellipsis marks omitted text."""
    return text if len(text) <= width else text[: width - 1] + "…"


def describe(direction: str, message: Message) -> str:
    """Return one line for one message."""
    return f"{direction:<16} {kind_of(message):<8} {message.topic:<24} {content(message)}".rstrip(" ")


def kind_of(message: Message) -> Literal["request", "response"]:
    """Return the kind of a message, except of control messages, which are as rare as they are small."""
    return "request" if message.type == REQUEST else "response"


def content(message: Message) -> str:
    """Return the content of a message as text."""
    if message.type != REQUEST and message.errnum == errno.ENODATA:
        return "(end of stream)"
    if message.type != REQUEST and message.errnum:
        return f"error {message.errnum}: {(message.payload or b'').decode(errors='replace')}".rstrip()
    if message.payload is not None and message.topic.startswith(_TASK_DATA):
        return f"{len(message.payload)} bytes"
    return payload_text(message.payload)


def payload_text(payload: bytes | None) -> str:
    """Return a payload as JSON, without the environments in it."""
    if payload is None:
        return ""
    try:
        value: Any = framing.unpack(framing.from_local(payload) if payload.startswith(b"{") else payload, dict)
    except FluxschedError:
        return f"{len(payload)} bytes"
    return json.dumps(_without_environments(value), separators=(",", ":"), default=repr, ensure_ascii=False)


def _without_environments(value: Any) -> Any:
    """Return a value in which environments, and jobspecs that are texts, are replaced."""
    if isinstance(value, dict):
        return {key: HIDDEN if _is_secret(key, one) else _without_environments(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_environments(one) for one in value]
    return value


def _is_secret(key: object, value: object) -> bool:
    name = str(key)
    return "environment" in name or (name in ("J", "jobspec") and isinstance(value, str))


# ---- router

T = TypeVar("T")

GOODBYE = "said goodbye"
"""Why a client that leaves in good order is dropped; not logged."""
MALFORMED_TOPIC = "malformed"
"""Topic of the error response to a message whose own topic could not be read."""
RECEIVE_MAX = 2
"""Frames taken from a socket at a time; each may be a bundle of hundreds of messages."""
READ_AHEAD_MESSAGES = 256
"""Number of unhandled messages above which no more are read: transports serve peers in turns, frame by frame, and a
single request must not wait until a burst has been handled.
"""
SLICE_MESSAGES = 64
"""Messages of one peer that are handled before the next peer has its turn: 3 ms.

With 16 each costs 5 % more, since like follows like less often.
"""

log = logger("router")


class Router:
    """Peers on one side, services on the other."""

    def __init__(
        self,
        turns: Turns,
        servers: list[Server],
        trace: Callable[[str, Message], None] | None = None,
        access: Access | None = None,
        owner_of: OwnerOf = owns_none,
        limits: PeerLimits | None = None,
    ) -> None:
        self.turns = turns
        self._limits = limits or PeerLimits()
        self.permissions = Permissions(access or Access(), owner_of)
        self.peers: dict[tuple[Server, bytes], Peer] = {}
        self._servers = servers
        self.services = Services(self._cancel)
        self._unread: deque[Peer] = deque()
        """Peers whose messages were read and are not handled yet, each once."""
        self._unhandled = 0
        self.calls = OutgoingCalls()
        self._dirty: dict[Peer, None] = {}
        self._on_lost: list[Callable[[Peer], None]] = []
        self._on_response: dict[str, Callable[[Peer, Message], None]] = {}
        self._trace = self._own_trace = trace
        self.received = self.sent = 0

    # -- set-up -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take part in the turns: drain the servers at the start, flush the outboxes at the end."""
        self.turns.source(self._take)

    def add_server(self, server: Server) -> None:
        """Serve the peers of this server, too, from now on; the turns must have been started."""
        self._servers = [*self._servers, server]
        self.turns.attach(server.start)

    def serve(self, handlers: Mapping[str, Handler]) -> None:
        """Register handlers by topic, `SERVICE.METHOD`."""
        self.services.serve(handlers)

    def serve_local(self, handlers: Mapping[str, Handler]) -> None:
        """Register handlers that only peers of a local socket meet, before those of `serve`: they answer as Flux does.

        In a topic that each job has of its own an asterisk replaces the job's id: `shell-*.stdin`.
        """
        self.services.serve_local(handlers)

    def absent_local(self, services: Mapping[str, str]) -> None:
        """Register the replacements of services that nobody serves, by name, for errors to peers of a local socket."""
        self.services.absent_local(services)

    def guard(self, guards: Mapping[str, Callable[[Handler], Handler]]) -> None:
        """Put another handler before that of a topic that is served by now."""
        self.services.guard(guards)

    def check_peers(self) -> int:
        """Cut off each peer that the rules of access now know as another, or not at all; their number."""
        cut = 0
        for peer in list(self.peers.values()):
            known = self.permissions.identify(peer.server, peer.userid, peer.key)
            if known != (peer.userid, peer.rolemask, peer.key_name):
                self.drop_peer(peer, "its access was changed")
                cut += 1
        return cut

    def on_lost(self, call: Callable[[Peer], None]) -> None:
        """Call once for every lost peer, after all that it had sent was handled and its streams were ended."""
        self._on_lost.append(call)

    def on_response(self, topic: str, call: Callable[[Peer, Message], None]) -> None:
        """Take the responses to requests that we send under `topic` without a matchtag (RFC 27)."""
        self._on_response[topic] = call

    def register(self, service: str, peer: Peer) -> None:
        """Let `peer` serve `service` until it is lost or unregisters (service.add)."""
        self.services.register(service, peer)

    def unregister(self, service: str, peer: Peer) -> None:
        """Remove a service that `register` added."""
        self.services.unregister(service, peer)

    def trace_to(self, trace: Callable[[str, Message], None] | None) -> None:
        """Show messages to `trace`, too, until it is None."""
        own = self._own_trace

        def both(direction: str, message: Message) -> None:
            for show in (own, trace):
                if show is not None:
                    show(direction, message)

        self._trace = own if trace is None else trace if own is None else both

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, peer: Peer, message: Message) -> None:
        """Put a message into the peer's outbox; it leaves at the end of the turn."""
        if not peer.gone:
            if not peer.outbox:
                self._dirty[peer] = None
                self.turns.wake()
            peer.outbox.append(message)

    def request(self, peer: Peer, topic: str, payload: object) -> None:
        """Send a request without a matchtag (`sched.alloc` and its like)."""
        self.send(peer, make_request(topic, framing.pack(payload)))

    def call(
        self, peer: Peer, topic: str, payload: bytes | None, answered: Answered, *, is_question: bool = False
    ) -> None:
        """Send `peer` a request of the instance's own; `answered` runs once. A question may be given up (`calls`)."""
        if peer.gone:  # its loss has been told to those who waited then
            self.turns.post(partial(answered, None))
            return
        tag = self.calls.begin_call(peer, topic, answered, is_question=is_question)
        request = make_request(topic, payload, matchtag=tag)
        self.send(peer, relayed(request) if is_question else request)

    def forward(self, request: RpcRequest, peer: Peer, payload: bytes | None = None) -> None:
        """Have `peer` answer `request`, with its own payload or another; the response is sent to the requester."""
        original = request.message
        payload = original.payload if payload is None else payload
        if original.flags & NORESPONSE:
            self.send(peer, relayed(make_request(original.topic, payload, flags=NORESPONSE)))
            return

        def answered(answer: Message | None) -> None:
            if answer is None:
                request.error(errno.ENOSYS, f"{request.topic}: its service went away before it answered")
                return
            request.relay(answer)

        self.call(peer, original.topic, payload, answered, is_question=True)

    def unsent_bytes(self, peer: Peer) -> int:
        """Return the number of bytes that the peer has not received yet; streams wait and merge while there are any."""
        return peer.server.unsent_bytes(peer.identity)

    def flush(self) -> None:
        """End-of-turn hook: each outbox leaves as few frames as its peer accepts."""
        dirty, self._dirty = self._dirty, {}
        for peer in dirty:
            messages, peer.outbox = peer.outbox, []
            self.sent += len(messages)
            if self._trace is not None:
                for message in messages:
                    self._trace(f"-> {peer.name}", message)
            if peer.bundles and len(messages) > 1:
                for frames in pack_bundles(messages):
                    peer.server.send(peer.identity, frames)
            else:
                for message in messages:
                    convert_outgoing(peer, message)
                    peer.server.send(peer.identity, encode(message))

    # -- receiving ----------------------------------------------------------------------------------------------

    def _take(self, until_s: float) -> bool:
        """Handle messages that have arrived, some of each peer by turns, until the turn's time is up."""
        heard, monotonic_s = self._unread, self.turns.clock.monotonic_s
        while True:
            if self._unhandled < READ_AHEAD_MESSAGES:
                self._read()
            if not heard:
                return False
            peer = heard.popleft()
            inbox = peer.inbox
            count = min(SLICE_MESSAGES, len(inbox))
            for _ in range(count):
                message = inbox.popleft()
                if isinstance(message, Lost):
                    self._lost(peer, message)
                else:
                    self._dispatch(peer, message)
            self._unhandled -= count
            if inbox:
                heard.append(peer)
            if monotonic_s() >= until_s:
                return True

    @property
    def dropped(self) -> int:
        """Return the number of messages dropped since their peers had disconnected."""
        return sum([server.dropped for server in self._servers])

    def _read(self) -> None:
        for server in self._servers:
            for arrival in server.receive(RECEIVE_MAX):
                if isinstance(arrival, Arrived):
                    self._arrived(server, arrival)
                elif (peer := self.peers.pop((server, arrival.peer), None)) is not None:
                    peer.gone = True  # from here on its identity may be another peer's
                    self._enqueue(peer, (arrival,))

    def _enqueue(self, peer: Peer, messages: Sequence[Message | Lost]) -> None:
        if not peer.inbox:
            self._unread.append(peer)
        peer.inbox.extend(messages)
        self._unhandled += len(messages)

    def _peer(self, server: Server, arrival: Arrived) -> Peer | None:
        identity = arrival.peer
        peer = self.peers.get((server, identity))
        if peer is None:
            known = self.permissions.identify(server, arrival.userid, arrival.key)
            if known is None:  # its key was removed while its first message was under way
                server.drop(identity, "not authorized")
                return None
            userid, rolemask, key_name = known
            refusal = self._limits.too_many_peers(len(self.peers))
            peer = self.peers[server, identity] = Peer(server, identity, userid, rolemask, self._limits, refusal)
            peer.key, peer.key_name = arrival.key, key_name
        return peer

    def _arrived(self, server: Server, arrival: Arrived) -> None:
        peer = self._peer(server, arrival)
        if peer is None:
            return
        try:
            message = decode(arrival.frames)
            messages = unpack_bundle(message)
        except RemoteProtocolError as exc:
            if not peer.rates.may_err(self.turns.clock.monotonic_s()):
                self.drop_peer(peer, self._limits.flooding())
                return
            log.warning("peer %s sent a malformed message: %s", peer.name, exc)
            self.send(peer, Message(type=RESPONSE, topic=MALFORMED_TOPIC, payload=str(exc).encode(), aux1=exc.errnum))
            return
        if len(messages) != 1 or messages[0] is not message:
            peer.bundles = True
        self.received += len(messages)
        self._enqueue(peer, messages)

    def _dispatch(self, peer: Peer, message: Message) -> None:
        if self._trace is not None:
            self._trace(f"<- {peer.name}", message)
        request = self.turns.handling = RpcRequest(self.send, peer, message) if message.type == REQUEST else None
        if request is not None:
            try:
                convert_request(peer, message)
                self._handle(request)
            except Exception as exc:
                self._failed(request, exc)
        elif peer.is_nobody or not peer.rolemask & ROLE_OWNER:
            self.drop_peer(peer, "only the owner may send anything but requests")
        elif message.type == RESPONSE:
            self._answer(peer, message)
        elif message.type != CONTROL:
            log.warning("peer %s sent a message of type %d, which only the instance sends", peer.name, message.type)

    def _failed(self, request: RpcRequest, exc: Exception) -> None:
        """Respond with the error of a handler's exception. A stream that it had opened ends at both sides."""
        if not is_expected(exc):
            self.turns.report_bug(request.topic, exc)
            if request.on_end is not None:
                self.turns.run_isolated(request.on_end, request.topic)
                request.on_end = None
        request.error(*error_answer(request.topic, exc))

    def _handle(self, request: RpcRequest) -> None:
        message = request.message
        request.peer.rates.check_request(request.peer.in_flight, self.turns.clock.monotonic_s)
        if message.nodeid not in (0, 0xFFFFFFFF):
            raise FluxschedError(f"no such rank: {message.nodeid}; this instance has rank 0", errno.EHOSTUNREACH)
        if not message.rolemask & ROLE_OWNER:
            self.permissions.check(request)
        found = self.services.find(message.topic, json=request.peer.json)
        if isinstance(found, Peer):
            self.forward(request, found)
        else:
            found(request)

    def _cancel(self, request: RpcRequest) -> None:
        stream = request.peer.streams.get(request.payload(CancelRequest).matchtag)
        request.respond()  # if a response is wanted; RFC 6 sends a cancel with NORESPONSE
        if stream is not None and stream.topic == request.topic.removesuffix("-cancel"):
            self.end_stream(stream)

    def end_stream(self, stream: RpcRequest) -> None:
        """End a stream at its peer's request: `on_end` runs, the peer gets ENODATA."""
        on_end, stream.on_end = stream.on_end, None
        stream.finish()
        if on_end is not None:
            on_end()

    def _answer(self, peer: Peer, message: Message) -> None:
        if message.matchtag:
            answered = self.calls.end_call(peer, message.matchtag)
            if answered is not None and not self._accept(peer, message, answered, message):
                answered(None)
            return
        call = self._on_response.get(message.topic)
        if call is None:
            log.warning("peer %s answered %r, without a request", peer.name, message.topic)
            return
        self._accept(peer, message, call, peer, message)

    def _accept(self, peer: Peer, message: Message, take: Callable[..., None], *args: Any) -> bool:
        """Return whether a response was accepted; a peer that sends an invalid one is disconnected: its state is
        unknown.
        """
        try:
            take(*args)
        except Exception as exc:
            if not is_expected(exc):
                self.turns.report_bug(message.topic, exc)
            log.error("peer %s: %s: %s; it is disconnected", peer.name, message.topic, exc)
            self.drop_peer(peer, str(exc))
            return False
        return True

    def drop_peer(self, peer: Peer, reason: str) -> None:
        """Cut a peer off; its loss is handled like any other."""
        peer.dropped = reason
        peer.server.drop(peer.identity, reason)
        self.turns.wake()

    def when_lost(self, peer: Peer, call: Callable[[], None]) -> None:
        """Call it when the loss of the peer has been handled: now, if that was before."""
        if peer.on_lost is None:
            call()
        else:
            peer.on_lost.append(call)

    def _lost(self, peer: Peer, lost: Lost) -> None:
        log.log(DEBUG if peer.dropped == GOODBYE else INFO, "peer %s is gone: %s", peer.name, lost.reason)
        self._dirty.pop(peer, None)
        self.services.lost(peer)
        streams, peer.streams, run_isolated = peer.streams, {}, self.turns.run_isolated
        for stream in streams.values():
            stream.is_open = False  # a handler that waits for the store must not begin it now
            on_end, stream.on_end = stream.on_end, None
            if on_end is not None:
                run_isolated(on_end, stream.topic)
        for answer in self.calls.lost(peer):
            run_isolated(partial(answer, None), "a call of a lost peer")
        for call in self._on_lost:
            run_isolated(partial(call, peer), "a lost peer")
        waiting, peer.on_lost = peer.on_lost or [], None
        for then in waiting:
            run_isolated(then, "what waited for a lost peer")


def forget(table: MutableMapping[Any, Any], key: object) -> None:
    """Drop `key` from a table of streams, if it is still there."""
    table.pop(key, None)


# ---- services by topic

Handler = Callable[[RpcRequest], None]


class Services:
    """Table of handlers behind the methods of `Router` of the same names.

    `cancel` answers the cancel topic of a stream that has none of its own.
    """

    def __init__(self, cancel: Handler) -> None:
        self.handlers: dict[str, Handler] = {}
        self._cancel = cancel
        self._names: set[str] = set()
        self._local_handlers: dict[str, Handler] = {}
        self._local_names: set[str] = set()
        self._absent_local: dict[str, str] = {}
        self._tables = {False: (self.handlers,), True: (self._local_handlers, self.handlers)}
        """Tables in which a handler is searched, by whether the peer speaks JSON."""
        self._remote: dict[str, Peer] = {}

    def serve(self, handlers: Mapping[str, Handler]) -> None:
        for topic, handler in handlers.items():
            self.handlers[topic] = handler
            self._names.add(topic.split(".", 1)[0])

    def serve_local(self, handlers: Mapping[str, Handler]) -> None:
        for topic, handler in handlers.items():
            self._local_handlers[topic] = handler
            self._local_names.add(topic.split(".", 1)[0])

    def absent_local(self, services: Mapping[str, str]) -> None:
        self._absent_local.update(services)

    def guard(self, guards: Mapping[str, Callable[[Handler], Handler]]) -> None:
        for handlers in (self.handlers, self._local_handlers):
            for topic in guards.keys() & handlers.keys():
                handlers[topic] = guards[topic](handlers[topic])

    def register(self, service: str, peer: Peer) -> None:
        if service in self._names or service in self._remote:
            raise FluxschedError(f"service {service!r} is already registered", errno.EEXIST)
        peer.limits.check_services(len(peer.services))
        self._remote[service] = peer
        peer.services.add(service)

    def unregister(self, service: str, peer: Peer) -> None:
        if self._remote.get(service) is not peer:
            raise FluxschedError(f"service {service!r} is not registered by this peer", errno.ENOENT)
        del self._remote[service]
        peer.services.discard(service)

    def lost(self, peer: Peer) -> None:
        """Remove the services of a lost peer."""
        for service in peer.services:
            self._remote.pop(service, None)

    def find(self, topic: str, *, json: bool) -> Handler | Peer:
        """Return the handler or the peer that serves a topic.

        Raises FluxschedError (ENOSYS), worded as by Flux's broker.
        """
        for handlers in self._tables[json]:
            handler = handlers.get(topic)
            if handler is not None:
                return handler
            if topic.endswith("-cancel") and topic.removesuffix("-cancel") in handlers:
                return self._cancel
        if json and (handler := self._local_handlers.get(each_jobs(topic))) is not None:
            return handler
        service = topic.split(".", 1)[0]
        if service in self._remote:
            return self._remote[service]
        if service in self._names or (json and service in self._local_names):
            raise FluxschedError(f"Unknown service method '{topic}'", errno.ENOSYS)
        remedy = self._absent_local.get(service) if json else None
        text = f"No service matching {topic} is registered"
        raise FluxschedError(f"{text}: {remedy}" if remedy else text, errno.ENOSYS)


# ---- outgoing calls

Answered = Callable[[Message | None], None]
"""Takes the response to a call of the instance; None when the peer was lost before it answered."""

TAG_MAX = 0x7FFFFFFF


class _Call(NamedTuple):
    peer: Peer
    topic: str
    answered: Answered
    is_question: bool


class OutgoingCalls:
    """Table of the open calls, by matchtag."""

    def __init__(self, tag_max: int = TAG_MAX) -> None:
        self._open: dict[int, _Call] = {}
        self._tag = 0
        self._tag_max = tag_max

    def begin_call(self, peer: Peer, topic: str, answered: Answered, *, is_question: bool) -> int:
        """Register a new call; return its matchtag."""
        self._tag = self._tag % self._tag_max + 1
        self._open[self._tag] = _Call(peer, topic, answered, is_question)
        return self._tag

    def end_call(self, peer: Peer, tag: int) -> Answered | None:
        """End a call; return the callback for the response of `peer`; None for a call that is over, or another
        peer's.
        """
        call = self._open.get(tag)
        if call is None or call.peer is not peer:
            return None
        del self._open[tag]
        return call.answered

    def lost(self, peer: Peer) -> list[Answered]:
        """End the calls to a lost peer; return their callbacks, each to be called with None."""
        return [call.answered for call in self._taken(lambda call: call.peer is peer)]

    def give_up(self, peer: Peer, errnum: int, text: str) -> None:
        """Answer all questions to `peer` that are open with an error of the instance."""
        for call in self._taken(lambda call: call.peer is peer and call.is_question):
            call.answered(Message(RESPONSE, call.topic, text.encode(), aux1=errnum))

    def _taken(self, which: Callable[[_Call], bool]) -> list[_Call]:
        return [self._open.pop(tag) for tag in [tag for tag, call in self._open.items() if which(call)]]


# ---- conversion of payloads


def convert_request(peer: Peer, message: Message) -> None:
    """Set the credentials, and convert a local peer's JSON. Raises RemoteProtocolError if it is not JSON.

    A local owner may act as another user (RFC 12), and Flux's tests do; a peer that has given up its rights is nobody.
    """
    if peer.is_nobody:
        message.userid, message.rolemask = NO_USER, ROLE_USER | (peer.rolemask & ROLE_LOCAL)
    may_pretend = peer.is_nobody or (peer.json and peer.rolemask & ROLE_OWNER)
    if not may_pretend or message.userid == USERID_UNKNOWN:
        message.userid = peer.userid
    if not may_pretend or message.rolemask == ROLE_NONE:
        message.rolemask = peer.rolemask
    if peer.json and message.payload is not None:
        message.payload = framing.from_local(message.payload)


def convert_outgoing(peer: Peer, message: Message) -> None:
    """Convert a message to a local peer into JSON.

    The payload of an error is plain text in every dialect. A response of another peer may have no form in JSON: it is
    then replaced by an error with that text.
    """
    if not peer.json or message.payload is None:
        return
    if not (message.type == RESPONSE and message.errnum):
        try:
            message.payload = framing.to_local(message.payload)
            return
        except RemoteProtocolError as exc:
            message.aux1, message.payload = exc.errnum, f"{message.topic}: its service answered: {exc}".encode()
    message.payload += b"\0"


# ---- answers in steps


def in_steps(turns: Turns, request: RpcRequest, looking: Iterator[T | None], then: Callable[[T], None]) -> None:
    """Look until something is found, then call; a fault on the way ends the request."""

    def step() -> None:
        found = next(looking)
        if found is not None:
            then(found)
        elif request.is_open:
            turns.post(lambda: in_steps(turns, request, looking, then))

    turns.run_isolated(step, request.topic, request.failed)


# ---- listening

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
            else ZmqServer(endpoint, insecure_tcp=insecure_tcp, keys=keys, for_users=access.rules.run_as_user)
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
        if self._store.fault is not None:
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

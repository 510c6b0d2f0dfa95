"""Peers and their requests: who each is, what it may do, and how much it may have open.

Law: who a peer is was verified by its transport, and is never taken from what a message says; it may give up its rights
(`Peer.renounce`), and gets them back by no message. A request is answered
exactly once; a response to a peer that is gone is dropped and never reaches another one that has taken over its
identity. Permission is asked here alone, by the table `protocol.topics`: a guest learns nothing of what it may not see,
so a job of another user and one that does not exist answer alike. Reaching a limit is answered with the value, the
limit and what to do, and hurts no other peer; what is no message at all is answered a few times, and then ends the
connection. The owner's requests have no rate: a client that submits 20,000 jobs in a second and a half is what an
instance is for, and peers are handled by turns. Bytes are limited by the transports (`MESSAGE_BYTES_MAX` and their
like).
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from fluxsched.core.jobid import format_f58, parse_jobid
from fluxsched.core.role import Role
from fluxsched.errors import InvalidValue, LimitExceeded, Refused, RemoteProtocolError
from fluxsched.messaging.keys import AccessRules, AuthorizedKey
from fluxsched.protocol import framing
from fluxsched.protocol.framing import (
    NORESPONSE,
    ROLE_ADMIN,
    ROLE_KEEPER,
    ROLE_LOCAL,
    ROLE_OWNER,
    ROLE_USER,
    STREAMING,
    Message,
    make_error,
    make_response,
    relayed,
)
from fluxsched.protocol.messages.jobs import URGENCY_DEFAULT
from fluxsched.protocol.topics import RIGHTS, Scope, is_of_keepers, least_of
from fluxsched.system.files import user_name
from fluxsched.system.log import logger, message_fields
from fluxsched.system.loop import error_answer
from fluxsched.transport.base import Lost, Server

T = TypeVar("T")

USER_NAMES_KEPT = 64
"""Users whose names are kept: the system reads files for each, and few people drain."""


class Peer:
    """One connection: its user, its outbox and what it has open."""

    __slots__ = (
        "bundles",
        "dropped",
        "gone",
        "identity",
        "in_flight",
        "inbox",
        "is_nobody",
        "json",
        "key",
        "key_name",
        "limits",
        "name",
        "on_lost",
        "outbox",
        "rates",
        "rolemask",
        "server",
        "services",
        "streams",
        "userid",
    )

    def __init__(
        self, server: Server, identity: bytes, userid: int, rolemask: int, limits: PeerLimits,
        refusal: str | None = None,
    ) -> None:  # fmt: skip
        self.server = server
        self.json = server.json
        self.identity = identity
        self.userid = userid
        self.rolemask = rolemask
        self.key: bytes | None = None
        """The public key that the peer has proved to have, where its transport asks for one."""
        self.key_name: str | None = None
        self.name = identity.hex()
        self.inbox: deque[Message | Lost] = deque()
        """Read and not handled yet."""
        self.outbox: list[Message] = []
        self.bundles = False
        self.is_nobody = False
        """True once the peer has given up its rights: its requests are those of a guest without an account."""
        self.dropped: str | None = None
        self.gone = False
        self.on_lost: list[Callable[[], None]] | None = []
        """Functions to be called once everything that the peer had is free; None when it is."""
        self.in_flight = 0
        self.limits = limits
        self.rates = PeerRates(limits, is_guest=role_of(rolemask) is Role.GUEST, refusal=refusal)
        self.streams: dict[int, RpcRequest] = {}
        self.services: set[str] = set()

    def renounce(self) -> None:
        """Have all further requests judged as those of a guest without an account, for good."""
        self.is_nobody = True
        self.rates.restrict()


Post = Callable[[Peer, Message], None]

_name_of = lru_cache(USER_NAMES_KEPT)(user_name)


class RpcRequest:
    """A request on its way; answer it exactly once, or stream and end it."""

    __slots__ = ("_is_stream", "_post", "is_open", "message", "on_end", "peer")

    def __init__(self, post: Post, peer: Peer, message: Message) -> None:
        self.peer = peer
        self.message = message
        self.on_end: Callable[[], None] | None = None
        self.is_open = not message.flags & NORESPONSE
        self._is_stream = False
        self._post = post
        if self.is_open:
            peer.in_flight += 1

    @property
    def topic(self) -> str:
        """Return the topic of the request."""
        return self.message.topic

    def __str__(self) -> str:
        return f"a client of {self.who} (connection {self.peer.name})"

    def log_fields(self) -> dict[str, str]:
        """Return the fields of log lines that are written while the request is handled."""
        return message_fields(self.message.matchtag, self.message.topic, self.peer.name)

    @property
    def userid(self) -> int:
        """Return the authenticated user of the requester."""
        return self.message.userid

    @property
    def who(self) -> str:
        """Return the name of the requester's key, else of its user: for people to read."""
        return self.peer.key_name or _name_of(self.userid)

    @property
    def streaming(self) -> bool:
        """Return whether the requester asked for a stream."""
        return bool(self.message.flags & STREAMING)

    def payload(self, kind: type[T]) -> T:
        """Return the payload decoded and validated as `kind`; EPROTO names the part that is wrong."""
        return framing.unpack(self.message.payload, kind)

    def respond(self, payload: object = None) -> None:
        """Send one response: the only one, or the next of a stream."""
        if self.is_open:
            answer = make_response(self.message, None if payload is None else framing.pack(payload))
            if not self._is_stream:
                self._close(answer)
            self._post(self.peer, answer)

    def error(self, errnum: int, text: str = "") -> None:
        """End the request with an error response (ENODATA ends a stream that went well)."""
        if self.is_open:
            answer = make_error(self.message, errnum, text)
            self._close(answer)
            self._post(self.peer, answer)

    def failed(self, exc: Exception) -> None:
        """End the request with the error of an exception raised while it was handled."""
        self.error(*error_answer(self.topic, exc))

    def relay(self, answer: Message) -> None:
        """Send another service's answer as the answer to this request."""
        if self.is_open:
            back = make_response(self.message, answer.payload, answer.errnum)
            self._close(back)
            self._post(self.peer, relayed(back))

    def open_stream(self, on_end: Callable[[], None]) -> None:
        """Keep the request open; `on_end` runs once when the peer cancels it or is lost."""
        if not self.streaming or not self.is_open:
            raise RemoteProtocolError(f"{self.topic}: the request needs the streaming flag, without noresponse")
        if self.message.matchtag in self.peer.streams:
            raise RemoteProtocolError(f"{self.topic}: matchtag {self.message.matchtag} is in use by another stream")
        self.peer.limits.check_streams(len(self.peer.streams))
        self.on_end = on_end
        self._is_stream = True
        self.peer.streams[self.message.matchtag] = self

    def finish(self) -> None:
        """End a stream that went well."""
        self.error(errno.ENODATA)

    def _close(self, last: Message) -> None:
        """Mark this response as the last one.

        Only a stream's has the streaming flag: without it the matchtag is free (RFC 6).
        """
        self.is_open = False
        self.peer.in_flight -= 1
        if not self._is_stream:
            last.flags &= ~STREAMING
        elif self.peer.streams.get(self.message.matchtag) is self:
            del self.peer.streams[self.message.matchtag]


def ping_answer(request: RpcRequest) -> dict[str, Any]:
    """Return the response of every service to `NAME.ping`: the request's payload with route, user and rank."""
    answer = dict(request.payload(dict))
    answer.update(route=request.peer.name, userid=request.userid, rolemask=request.message.rolemask, rank=0)
    return answer


# ---- limits of peers


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Limits of the peers of an instance."""

    in_flight_max: int = 200_000
    """Unanswered requests of one peer: a client may have 20,000 submits and as many waits open, five times over."""
    streams_max: int = 65_536
    """Open streams of one peer: Flux's clients follow each of their jobs by a stream of its own."""
    services_max: int = 64
    """Services one peer may register: module processes need two or three."""
    peers_max: int = 32_768
    """Peers of one instance: an agent for each host of a large machine, and people's commands beside them."""
    guest_rate_per_s: int = 500
    """Requests of a guest, each counted, also in a bundle: his script may list, submit and wait all day."""
    guest_burst: int = 20_000
    """Requests that a guest may send at once: as many as one command submits."""
    malformed_rate_per_s: int = 1
    malformed_burst: int = 32
    """Messages that are none, of one peer: what a person tries by hand is explained, a flood ends the connection."""

    def check_streams(self, count: int) -> None:
        """Raise LimitExceeded (EMFILE) if a peer with so many streams may open no further one."""
        if count >= self.streams_max:
            raise LimitExceeded(
                f"{count} streams of this peer are open, the limit is {self.streams_max}: cancel some, or follow many "
                "jobs by one stream (job-manager.watch, job-manager.wait-all)",
                errno.EMFILE,
            )

    def check_services(self, count: int) -> None:
        """Raise LimitExceeded (EMFILE) if a peer with so many services may register no further one."""
        if count >= self.services_max:
            raise LimitExceeded(
                f"{count} services are registered by this peer, the limit is {self.services_max}: remove one first",
                errno.EMFILE,
            )

    def too_many_peers(self, count: int) -> str | None:
        """Return the reason why a further peer is not served where there are so many; None if there is room."""
        if count < self.peers_max:
            return None
        return f"{count} peers are connected, the limit is {self.peers_max}: end some clients, then connect again"

    def flooding(self) -> str:
        """Return the reason why a peer is cut off that sends garbage."""
        return f"more than {self.malformed_burst} messages that are none: is this a client of Flux or fluxsched?"


class TokenBucket:
    """Lets `burst` through at once, and `rate_per_s` in the long run."""

    __slots__ = ("_at_s", "_burst", "_rate_per_s", "_tokens")

    def __init__(self, rate_per_s: int, burst: int) -> None:
        self._rate_per_s = float(rate_per_s)
        self._burst = self._tokens = float(burst)
        self._at_s = 0.0

    def take(self, now_s: float, count: float = 1.0) -> bool:
        """Take so many, if there are so many."""
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._rate_per_s)
        self._at_s = now_s
        if self._tokens < count:
            return False
        self._tokens -= count
        return True

    def wait_s(self, count: float = 1.0) -> float:
        """Return the time until so many tokens are available, from the last `take` on."""
        return max(0.0, count - self._tokens) / self._rate_per_s


class PeerRates:
    """The rates of one peer. `is_guest`: it may look, and have jobs of its own. `refusal`: why it is not served."""

    __slots__ = ("_limits", "_malformed", "_refusal", "_requests")

    def __init__(self, limits: PeerLimits, is_guest: bool, refusal: str | None) -> None:
        self._limits = limits
        self._refusal = refusal
        self._requests: TokenBucket | None = None
        self._malformed: TokenBucket | None = None
        if is_guest:
            self.restrict()

    def restrict(self) -> None:
        """Hold the peer to the rate of guests from now on. Idempotent."""
        if self._requests is None:
            self._requests = TokenBucket(self._limits.guest_rate_per_s, self._limits.guest_burst)

    def check_request(self, in_flight: int, monotonic_s: Callable[[], float]) -> None:
        """Check a request, with which `in_flight` are in flight; to be called for each.

        Raises LimitExceeded (EMFILE, EAGAIN).
        """
        if self._refusal is not None:
            raise LimitExceeded(self._refusal, errno.EMFILE)
        limits = self._limits
        if in_flight > limits.in_flight_max:
            raise LimitExceeded(
                f"{in_flight - 1} requests of this peer wait for answers, the limit is {limits.in_flight_max}: "
                "wait for some of them",
                errno.EMFILE,
            )
        if self._requests is not None:
            self.count_requests(1.0, monotonic_s)

    def count_requests(self, count: float, monotonic_s: Callable[[], float]) -> None:
        """Count so many requests of a guest, for each job in one message is as dear as a message. Raises LimitExceeded
        (EAGAIN).
        """
        limits, bucket = self._limits, self._requests
        if bucket is not None and not bucket.take(monotonic_s(), count):
            raise LimitExceeded(
                f"more than {limits.guest_burst} requests at once or {limits.guest_rate_per_s} a second, the limit for "
                f"guests: wait {bucket.wait_s(count):.3f} s and send this one again",
                errno.EAGAIN,
            )

    def may_err(self, now_s: float) -> bool:
        """Return whether a malformed message is answered with an error; to be called for each."""
        if self._malformed is None:
            self._malformed = TokenBucket(self._limits.malformed_rate_per_s, self._limits.malformed_burst)
        return self._malformed.take(now_s)


# ---- permissions

ROLEMASKS = {
    Role.OWNER: ROLE_OWNER,
    Role.ADMIN: ROLE_USER | ROLE_ADMIN,
    Role.GUEST: ROLE_USER,
    Role.KEEPER: ROLE_KEEPER,
}
"""Rolemasks of the roles in a message's header."""
SUBMISSIONS = ("job-manager.submit", "job-manager.submit-array", "job-manager.when", "job-ingest.submit")
KEEPER_NAME = "keeper"
"""Name of the key of an engine's keepers."""


OwnerOf = Callable[[int], int | None]
"""Returns the user of a job; None for one that is unknown."""


def owns_none(jobid: int) -> None:
    """Return None, where there are no jobs."""


def role_of(rolemask: int) -> Role:
    """Return the role of a header's rolemask."""
    if rolemask & ROLE_OWNER:
        return Role.OWNER
    if rolemask & ROLE_KEEPER:
        return Role.KEEPER
    return Role.ADMIN if rolemask & ROLE_ADMIN else Role.GUEST


class Permissions:
    """Asked for each request that is not the owner's."""

    def __init__(self, access: Access, owner_of: OwnerOf) -> None:
        self.access = access
        self._owner_of = owner_of

    def identify(self, server: Server, userid: int | None, key: bytes | None) -> tuple[int, int, str | None] | None:
        """Return userid, rolemask and name of key of a peer, as verified by its transport; None: it may not connect."""
        known = self.access.identify_at(server, userid, key)
        if known is None:
            return None
        return known.userid, ROLEMASKS[known.role] | (ROLE_LOCAL if server.json else 0), known.key_name

    def check(self, request: RpcRequest) -> None:
        """Raise Refused (EPERM) if the sender lacks a right, naming it."""
        role, topic = role_of(request.message.rolemask), request.topic
        rules = self.access.rules
        least, scope = least_of(topic, private_jobs=rules.private_jobs, run_as_user=rules.run_as_user)
        if role < least and not (role is Role.KEEPER and is_of_keepers(topic)):
            if topic in SUBMISSIONS:
                raise Refused(_not_yours_to_run(role, self.access.owner), errno.EPERM)
            missing = Role.OWNER if request.peer.json else least  # in Flux there is no role between owner and guest
            raise Refused(f"Request requires {missing} credentials", errno.EPERM)
        if topic in SUBMISSIONS or scope is Scope.RUN:
            self._check_account(request, role)
        if scope is Scope.SEEN and self.sees_only(request) is None:
            return
        if scope is not None and (role is Role.GUEST or (scope is Scope.RUN and role is not Role.OWNER)):
            self._check_own(request)

    def sees_only(self, request: RpcRequest) -> int | None:
        """Return the user whose jobs alone the sender may see; None: all."""
        is_limited = self.access.rules.private_jobs and role_of(request.message.rolemask) is Role.GUEST
        return request.userid if is_limited else None

    def check_urgency(self, request: RpcRequest, urgency: int) -> None:
        """Raise Refused (EPERM) if a guest would put its jobs before those of others."""
        if urgency > URGENCY_DEFAULT and role_of(request.message.rolemask) is Role.GUEST:
            limit = f"a guest may set an urgency of {URGENCY_DEFAULT} at most"
            raise Refused(f"urgency {urgency}: {limit}: ask an admin", errno.EPERM)

    def may_prolong(self, request: RpcRequest) -> bool:
        """Return whether the sender may let running jobs run longer; guests may shorten theirs only."""
        return role_of(request.message.rolemask) is not Role.GUEST

    def _check_account(self, request: RpcRequest, role: Role) -> None:
        """Raise Refused if the sender has no account as which its jobs could run; that of the owner is the owner's."""
        if role is not Role.OWNER and request.userid in (self.access.owner, NO_USER):
            text = "your key names no account of this machine that your jobs could run as"
            raise Refused(f"{text}: ask an admin for one with `user`", errno.EPERM)

    def _check_own(self, request: RpcRequest) -> None:
        jobids = _jobids(request)
        others = [jobid for jobid in jobids if self._owner_of(jobid) != request.userid]
        if others:
            raise Refused(f"job {format_f58(others[0])} is not one of yours", errno.EPERM)
        if not jobids:
            raise Refused(f"{request.topic}: name jobs of your own", errno.EPERM)


def _jobids(request: RpcRequest) -> list[int]:
    """Return the jobs that a request names, whatever else it contains. Raises InvalidValue for invalid ids."""
    wanted = request.payload(dict)
    if request.topic not in RIGHTS:  # it is that of one job
        return [parse_jobid(request.topic.partition("-")[2].rpartition(".")[0])]
    ids = wanted.get("ids")
    found = [*(ids if isinstance(ids, list) else ()), *([wanted["id"]] if wanted.get("id") is not None else ())]
    if not all(type(jobid) is int and jobid >= 0 for jobid in found):
        raise InvalidValue("id and ids: job ids are whole numbers, 0 or more")
    return found


def _not_yours_to_run(role: Role, owner: int) -> str:
    return (
        f"jobs here run as {user_name(owner)}, the user of the instance, with all access of that user: "
        f"only the owner may submit them, and your role is {role}"
    )


# ---- access

log = logger("access")

NO_USER = 0xFFFFFFFE
"""The userid of a peer that acts for no account, as of a key without one: no job has it."""


class Identity(NamedTuple):
    """A peer's role, the account whose jobs are its own, and the name of the key by which it is known, if it is."""

    role: Role
    userid: int
    key_name: str | None = None


class Access:
    """The rules in force, and the keys; both are replaced as a whole."""

    def __init__(self, rules: AccessRules | None = None, keys: Mapping[bytes, AuthorizedKey] | None = None) -> None:
        self.rules = rules or AccessRules()
        self.keys = dict(keys or {})
        self.owner = os.getuid()
        self._keepers_keys: dict[Server, bytes] = {}

    def reserve(self, server: Server, key: bytes) -> None:
        """Reserve a server for keepers: the holder of this public key is a keeper there, and nobody else comes in."""
        self._keepers_keys[server] = key

    def change(self, rules: AccessRules, keys: Mapping[bytes, AuthorizedKey] | None) -> None:
        """Replace the rules, but for those by which sockets were bound, and the keys, if any are given."""
        fixed = self.rules
        self.rules = replace(
            rules, allow_guests=fixed.allow_guests, server_key=fixed.server_key, run_as_user=fixed.run_as_user
        )
        self.keys = self.keys if keys is None else dict(keys)

    def admit_user(self, userid: int) -> int:
        """0 if a user of this machine may connect, else the errno to answer."""
        return errno.EPERM if self._role_of(userid) is None else 0

    def admit_key(self, key: bytes, address: str) -> bool:
        """Return whether the holder of a key may connect. A stranger receives no reason, so the log has it."""
        if key in self.keys:
            return True
        log.warning("refused a connection from %s: its key %s is not authorized", address, key.hex())
        return False

    def identify_at(self, server: Server, userid: int | None, key: bytes | None) -> Identity | None:
        """Return the identity of a peer of a server; None if it may not connect to it (any more)."""
        keepers_key = self._keepers_keys.get(server)
        if keepers_key is None:
            return self.identify(userid, key)
        return Identity(Role.KEEPER, self.owner, KEEPER_NAME) if key == keepers_key else None

    def identify(self, userid: int | None, key: bytes | None) -> Identity | None:
        """Return the identity of a peer; None if it may not connect (any more).

        A peer without user and key has connected where only the owner can.
        """
        if key is not None:
            known = self.keys.get(key)
            return None if known is None else Identity(known.role, self._account_of(known), known.name)
        userid = self.owner if userid is None else userid
        role = self._role_of(userid)
        return None if role is None else Identity(role, userid)

    def _role_of(self, userid: int) -> Role | None:
        if userid == self.owner or (userid == 0 and self.rules.allow_root_owner):
            return Role.OWNER
        if userid in self.rules.admin_users:
            return Role.ADMIN
        return Role.GUEST if self.rules.allow_guests else None

    def _account_of(self, key: AuthorizedKey) -> int:
        """Return the user for whom a key acts: owners and admins act for the instance, unless their key names a
        user.
        """
        if key.userid is not None:
            return key.userid
        return NO_USER if key.role is Role.GUEST else self.owner

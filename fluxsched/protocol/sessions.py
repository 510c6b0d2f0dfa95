"""Sessions of the protocols: both ends of an acquire stream (RFC 28), the calls of a client (RFC 6), state tables.

Laws: a state table lists every state; what it does not list for a state is not allowed there. Tests walk states x
events, and the diagrams in `rfc/` are printed from the same tables. A group change is sent in the dialect of its
stream: the typed one has one message a part of a change; the plain one has no grow after the first response.

`AcquireServer` is the resource module's end, group changes in, merged for as long as they wait, and reported in order.
Only online and offline merge, never across a grow or shrink; a target that changed and changed back is not mentioned;
grow and shrink are never cancelled or overtaken, and a grow states the availability at the moment it is sent. Between
two of them the order is: grow, offline and online, updates. `AcquireClient` is a scheduler's end, responses in, group
changes out. A change is true of what was acquired before it; a first response that is no grow, or a target that the
stream does not hold, is the peer's fault (RemoteProtocolError) and changes nothing.

A matchtag belongs to one call until its last response has come, even if its caller has given up.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.outages import Outage, Outages, checked
from fluxsched.core.resources import EMPTY_R, GroupChange, GroupState, Properties, ResourceSet, difference
from fluxsched.core.rlite import PartsByRank
from fluxsched.core.topology import Topology
from fluxsched.errors import (
    InvalidTransition,
    InvalidValue,
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
    RPCError,
)
from fluxsched.protocol import framing
from fluxsched.protocol.framing import (
    ERROR_CHARS_MAX,
    NODEID_ANY,
    NORESPONSE,
    RESPONSE,
    STREAMING,
    Message,
    make_request,
    pack,
)
from fluxsched.protocol.messages.common import CancelRequest, Payload
from fluxsched.protocol.messages.resource import (
    ACCEPT_PARTS,
    ACCEPT_UPDATE,
    AcquireChange,
    AcquireFirst,
    AcquireRequest,
    AcquireResponse,
    Grow,
    Offline,
    Online,
    OutageInfo,
    PropertyMap,
    ReleaseRequest,
    Shrink,
    SparesMap,
    Update,
)

S = TypeVar("S", bound=Enum)


def step(table: Mapping[S, Mapping[str, S]], state: S, event: str) -> S:
    """Return the state after `event`. Raises InvalidTransition naming the events that the state takes."""
    try:
        return table[state][event]
    except KeyError:
        allowed = ", ".join(sorted(table[state])) or "nothing"
        raise InvalidTransition(f"{event} is not allowed in state {state.name}, only {allowed}") from None


# ---- acquire streams


class AcquireState(Enum):
    """The state of a stream."""

    IDLE = "not requested yet"
    WAITING = "requested, no response yet"
    STREAMING = "changes follow"
    CLOSED = "cancelled, disconnected or failed"


_CLOSED_ROW = {"close": AcquireState.CLOSED}
TYPED = {
    AcquireState.IDLE: {"request": AcquireState.WAITING, **_CLOSED_ROW},
    AcquireState.WAITING: {"grow": AcquireState.STREAMING, **_CLOSED_ROW},
    AcquireState.STREAMING: {
        **dict.fromkeys(("grow", "shrink", "availability", "update"), AcquireState.STREAMING),
        **_CLOSED_ROW,
    },
    AcquireState.CLOSED: _CLOSED_ROW,
}
"""The typed dialect (RFC 28 draft)."""

PLAIN = {
    **TYPED,
    AcquireState.STREAMING: {event: after for event, after in TYPED[AcquireState.STREAMING].items() if event != "grow"},
}
"""The plain dialect (today's RFC 28): it has no grow after the first response."""


def after_change(typed: bool, state: AcquireState, change: GroupChange) -> AcquireState:
    """Return the state behind a change. Raises InvalidTransition if one of its parts may not come."""
    table = TYPED if typed else PLAIN
    after = state
    for event in _events(change):
        after = step(table, after, event)
    return after


def _events(change: GroupChange) -> list[str]:
    parts = (
        ("grow", change.grow is not None),
        ("shrink", bool(change.shrink)),
        ("update", change.is_update),
    )
    return [event for event, there in parts if there] or ["availability"]


def to_messages(change: GroupChange, typed: bool, to_json: Callable[[ResourceSet], dict[str, Any]]) -> list[Payload]:
    """Return the responses that carry a change, in order."""
    joined = change.joined
    online, offline = change.online - joined, change.offline - joined
    made: list[Payload] = []
    if not typed:
        if change.grow is not None:
            made.append(AcquireFirst(to_json(change.grow), str(change.online & joined), _outages(change)))
            change = replace(change, outages=None)
        down = str(offline | change.shrink) or None
        added, removed, expiration_s = _update(change)
        message = AcquireChange(
            str(online) or None, down, str(change.shrink) or None, added, removed, expiration_s, _switches(change),
            _outages(change),
        )  # fmt: skip
        return [*made, message] if message != AcquireChange() else made
    if change.grow is not None:
        shares = str(change.online & joined), str(change.offline & joined)
        outages, parts, spares = _outages(change), _parts(change), _spares(change)
        made.append(Grow(to_json(change.grow), *shares, change.incomplete, outages, parts, spares))
        change = replace(change, outages=None, parts=None, spares=None)
    if change.shrink:
        made.append(Shrink(str(change.shrink)))
    if offline:
        made.append(Offline(str(offline)))
    if online:
        made.append(Online(str(online)))
    if change.is_update:
        added, removed, expiration_s = _update(change)
        outages, parts, spares = _outages(change), _parts(change), _spares(change)
        made.append(Update(expiration_s, added, removed, _switches(change), outages, parts, spares))
    return made


def from_typed(message: AcquireResponse) -> GroupChange:
    """Return the change in a typed response. Raises InvalidValue."""
    match message:
        case Grow(resources, online, offline, incomplete, outages, parts, spares):
            grown, shares = ResourceSet.parse(resources), (Idset.parse(online), Idset.parse(offline))
            drained = None if parts is None else PartsByRank.parse(parts)
            change = GroupChange(grown, EMPTY, *shares, incomplete=incomplete, outages=_told(outages), parts=drained)
            return replace(change, spares=_spares_told(spares))
        case Shrink(targets):
            return GroupChange(shrink=Idset.parse(targets))
        case Online(targets):
            return GroupChange(online=Idset.parse(targets))
        case Offline(targets):
            return GroupChange(offline=Idset.parse(targets))
    drained = None if message.parts is None else PartsByRank.parse(message.parts)
    return replace(_updated(message), parts=drained, spares=_spares_told(message.spares))


def from_first(message: AcquireFirst) -> GroupChange:
    """Return the change in the first plain response. Raises InvalidValue."""
    grown, online = ResourceSet.parse(message.resources), Idset.parse(message.up)
    return GroupChange(grown, online=online, offline=grown.ranks - online, outages=_told(message.outages))


def from_plain(message: AcquireChange) -> GroupChange:
    """Return the change in a later plain response; shrink takes precedence over up and down (RFC 28). Raises
    InvalidValue.
    """
    online, offline, shrink = (Idset.parse(text or "") for text in (message.up, message.down, message.shrink))
    update = _updated(message)
    return GroupChange(
        None, shrink, online - shrink, offline - shrink,
        update.expiration_s, update.property_add, update.property_remove, update.topology, outages=update.outages,
    )  # fmt: skip


def _update(change: GroupChange) -> tuple[PropertyMap | None, PropertyMap | None, float | None]:
    return _texts(change.property_add), _texts(change.property_remove), change.expiration_s


def _switches(change: GroupChange) -> list[Any] | None:
    return None if change.topology is None else change.topology.to_json()


def _updated(message: Update | AcquireChange) -> GroupChange:
    return GroupChange(
        expiration_s=message.expiration,
        property_add={name: Idset.parse(text) for name, text in (message.property_add or {}).items()},
        property_remove={name: Idset.parse(text) for name, text in (message.property_remove or {}).items()},
        topology=None if message.topology is None else Topology.parse(message.topology),
        outages=_told(message.outages),
    )


def _outages(change: GroupChange) -> list[OutageInfo] | None:
    if change.outages is None:
        return None
    return [
        OutageInfo(
            name=each.name,
            targets=str(each.targets),
            from_=each.from_s,
            until=each.until_s,
            every=each.every_s or None,
            reason=each.reason,
            reservation=each.is_reservation,
        )
        for each in change.outages.all
    ]


def _parts(change: GroupChange) -> list[Any] | None:
    return None if change.parts is None else change.parts.to_json()


def _spares(change: GroupChange) -> SparesMap | None:
    return None if change.spares is None else {str(rank): replaced for rank, replaced in change.spares.items()}


def _spares_told(spares: SparesMap | None) -> dict[int, int] | None:
    if spares is None:
        return None
    return {rank: replaced for text, replaced in spares.items() for rank in Idset.parse(text)}


def _told(outages: list[OutageInfo] | None) -> Outages | None:
    if outages is None:
        return None
    return Outages([
        checked(Outage(
            each.name, Idset.parse(each.targets), each.from_, each.until, each.every or 0.0, each.reason,
            is_reservation=each.reservation,
        ))
        for each in outages
    ])  # fmt: skip


def _texts(properties: Properties) -> dict[str, str] | None:
    return {name: str(targets) for name, targets in properties.items()} if properties else None


# ---- a scheduler's end


class AcquireClient:
    """One stream. `group` None speaks the plain dialect; `decode` is `codec.from_json` where payloads are JSON."""

    def __init__(self, group: str | None, *, decode: Callable[[bytes | None, Any], Any] = framing.unpack) -> None:
        self.group = group
        self.typed = group is not None
        self.state = AcquireState.IDLE
        self.acquired = EMPTY
        self.leaving = EMPTY
        """Shrunk and not released yet (typed)."""
        self._decode = decode

    def request(self) -> AcquireRequest | None:
        """Return the payload of the `resource.acquire` request; None: send none. To be sent with the streaming flag."""
        self._step("request")
        return AcquireRequest(self.group, [ACCEPT_UPDATE, ACCEPT_PARTS]) if self.group is not None else None

    def receive(self, payload: bytes | None) -> GroupChange:
        """Return the change in a response. Raises RemoteProtocolError."""
        try:
            change = self._read(payload)
            self.accept(change)
        except (InvalidTransition, InvalidValue) as exc:
            raise RemoteProtocolError(f"resource.acquire response: {exc}") from exc
        return change

    def accept(self, change: GroupChange) -> None:
        """Take over a change. Raises InvalidTransition, RemoteProtocolError."""
        after = after_change(self.typed, self.state, change)
        self._check(change)
        self.state = after
        self.acquired = (self.acquired | change.joined) - change.shrink
        if self.typed:
            self.leaving |= change.shrink

    def release(self, targets: Idset) -> ReleaseRequest:
        """Return the request that gives shrunk targets back, now that they are free (typed only)."""
        if self.group is None:
            raise LocalProtocolError("release: the plain dialect has none")
        if not targets or not targets <= self.leaving:
            raise LocalProtocolError(f"release of targets {targets}, but only {self.leaving or 'none'} are leaving")
        self.leaving -= targets
        return ReleaseRequest(self.group, str(targets))

    def close(self) -> None:
        """Record that the stream has ended, by an error response or because we leave."""
        self._step("close")

    def _step(self, event: str) -> None:
        self.state = step(TYPED if self.typed else PLAIN, self.state, event)

    def _read(self, payload: bytes | None) -> GroupChange:
        if self.typed:
            return from_typed(self._decode(payload, AcquireResponse))
        if self.state is AcquireState.WAITING:
            return from_first(self._decode(payload, AcquireFirst))
        return from_plain(self._decode(payload, AcquireChange))

    def _check(self, change: GroupChange) -> None:
        joined, reported = change.joined, change.online | change.offline
        if not change.online.isdisjoint(change.offline):
            _refuse(change.online & change.offline, "are online and offline")
        if change.grow is not None and joined != reported:
            _refuse((joined - reported) | (reported - joined), "are not in both resources and online or offline")
        if again := joined & (self.acquired | self.leaving):
            _refuse(again, "grow, and are acquired or not released yet")
        if unknown := (change.shrink | (reported - joined)) - self.acquired:
            _refuse(unknown, "are not acquired")


def _refuse(targets: Idset, why: str) -> None:
    raise RemoteProtocolError(f"resource.acquire response: targets {targets} {why}")


# ---- the resource module's end

PENDING_CHANGES_MAX = 1024
"""Changes of one stream that wait to be taken. They are taken every turn: at this many, the peer does not read."""


def read_acquire(message: Message, decode: Callable[[bytes | None, Any], Any] = framing.unpack) -> AcquireRequest:
    """Return the request in a `resource.acquire` message; no payload or `{}` is the plain dialect.

    Raises RemoteProtocolError for a wrong shape, a payload without `group`, or a missing streaming flag (RFC 6).
    """
    if not message.flags & STREAMING:
        raise RemoteProtocolError("resource.acquire without the streaming flag: its responses are a stream, set it")
    keys = decode(message.payload, dict[str, Any])
    if not keys:
        return AcquireRequest()
    request: AcquireRequest = decode(message.payload, AcquireRequest)
    if request.group is None:
        raise RemoteProtocolError(
            f"resource.acquire with {', '.join(sorted(keys)):.80} but without `group`: name the group, "
            "or send no payload for the plain dialect"
        )
    return request


class AcquireServer:
    """One stream: `add` what changed, `take` what must be sent. Misuse is a bug of ours: LocalProtocolError."""

    def __init__(self, typed: bool, accept_update: bool, accept_parts: bool = False) -> None:
        self.typed = typed
        self.state = AcquireState.WAITING
        self.targets = EMPTY
        """Targets in the stream: grown and not shrunk."""
        self._accept_update = accept_update or not typed
        self._accept_parts = accept_parts and typed
        self._online = EMPTY  # as of now
        self._reported = EMPTY  # as of the last change made; the difference is the next offline and online
        self._made: list[GroupChange] = []
        self._grow: ResourceSet | None = None  # not made yet: availability still merges into it
        self._told = GroupChange()  # what that grow says beside its targets
        self._updates: list[GroupChange] = []

    @property
    def pending(self) -> bool:
        """Return whether `take` has something to send."""
        return bool(self._made or self._updates or self._grow is not None or self._reported != self._online)

    def add(self, change: GroupChange) -> None:
        """Record that the group changed; the first change is all that it has. Updates are dropped if the peer accepts
        none.

        Raises LimitExceeded.
        """
        waiting = len(self._made) + len(self._updates)
        if waiting >= PENDING_CHANGES_MAX:
            raise LimitExceeded(
                f"{waiting} changes wait in one acquire stream, limit {PENDING_CHANGES_MAX}: "
                "its peer does not read; end the stream"
            )
        after = after_change(self.typed, self.state, change)
        self._check(change)
        self.state = after
        joined = change.joined
        if change.grow is not None:
            self._make()
            self._grow, parts = change.grow, change.parts if self._accept_parts else None
            self._told = GroupChange(
                incomplete=change.incomplete, outages=change.outages, parts=parts, spares=change.spares
            )
            self.targets |= joined
            self._reported |= change.online & joined
            self._online |= change.online & joined
        if change.shrink:
            self._make()
            self._made.append(GroupChange(shrink=change.shrink))
            self.targets -= change.shrink
            self._reported -= change.shrink
            self._online -= change.shrink
        self._online = (self._online | change.online) - change.offline
        if self._grow is not None:  # the waiting grow reports these itself
            fresh = self._grow.ranks
            self._reported = (self._reported - fresh) | (self._online & fresh)
        if change.is_update and self._accept_update:
            of_R = change.expiration_s, change.property_add, change.property_remove, change.topology  # noqa: N806
            told = change.grow is None
            outages, parts = change.outages if told else None, change.parts if told and self._accept_parts else None
            spares = change.spares if told and self.typed else None
            update = GroupChange(None, EMPTY, EMPTY, EMPTY, *of_R, outages=outages, parts=parts, spares=spares)
            if update.is_update:
                self._updates.append(update)

    def take(self) -> list[GroupChange]:
        """Remove and return the changes to send now, in order."""
        self._make()
        made, self._made = self._made, []
        return made

    def close(self) -> None:
        """Record that the stream is over: nothing more will be sent. May come in every state."""
        self.state = step(TYPED if self.typed else PLAIN, self.state, "close")
        self._made, self._updates, self._grow = [], [], None
        self.targets = self._online = self._reported = EMPTY

    def _make(self) -> None:
        """Finish what could still merge: behind it comes something that it must not cross."""
        grow, self._grow = self._grow, None
        if grow is not None:
            online = self._reported & grow.ranks
            self._made.append(replace(self._told, grow=grow, online=online, offline=grow.ranks - online))
        if self._reported != self._online:
            before = GroupState(EMPTY_R, self.targets, self._reported)
            if (change := difference(before, before._replace(online=self._online))) is not None:
                self._made.append(change)
            self._reported = self._online
        self._made += self._updates
        self._updates = []

    def _check(self, change: GroupChange) -> None:
        joined, shrink, reported = change.joined, change.shrink, change.online | change.offline
        if not change.online.isdisjoint(change.offline):
            raise LocalProtocolError(f"targets {change.online & change.offline} are given as online and as offline")
        if not joined <= reported:
            raise LocalProtocolError(f"grow of targets {joined - reported}, which are neither online nor offline")
        if not joined.isdisjoint(self.targets):
            raise LocalProtocolError(f"grow of targets {joined & self.targets}, which the stream holds already")
        unknown = (shrink - self.targets) | (reported - joined - (self.targets - shrink))
        if unknown:
            raise LocalProtocolError(f"change of targets {unknown}, which the stream does not hold")


# ---- calls of one client

IN_FLIGHT_MAX = 100_000
"""Calls of one client that wait at once: 20,000 submits and as many waits fit five times over."""

MATCHTAG_MAX = 0xFFFFFFFF


class Answer(NamedTuple):
    """One response: its call, its payload or error, and whether it was the last. A stream ends with ENODATA."""

    token: Any
    payload: bytes | None
    error: RPCError | None
    done: bool


@dataclass(slots=True)
class _Call:
    topic: str
    token: Any
    streaming: bool
    payload: bytes | None
    """Of a stream, to open it again."""
    cancelled: bool = False


class Calls:
    """Makes requests and finds the token of each response; tokens are the caller's own (futures, callbacks, ids).

    Matchtags follow on `last_tag`; clients begin anywhere, so that logs tell their requests apart.
    """

    def __init__(self, in_flight_max: int = IN_FLIGHT_MAX, last_tag: int = 0) -> None:
        self._in_flight_max = in_flight_max
        self._calls: dict[int, _Call] = {}
        self._last = last_tag

    def __len__(self) -> int:
        return len(self._calls)

    def start(
        self,
        topic: str,
        payload: bytes | None = None,
        streaming: bool = False,
        token: Any = None,
        *,
        nodeid: int = NODEID_ANY,
    ) -> Message:
        """Return the request of a new call. Raises LimitExceeded at `in_flight_max` calls."""
        if len(self._calls) >= self._in_flight_max:
            raise LimitExceeded(
                f"{topic}: {len(self._calls)} calls wait for responses, limit {self._in_flight_max}: "
                "receive some before starting more"
            )
        matchtag = self._tag()
        self._calls[matchtag] = _Call(topic, token, streaming, payload if streaming else None)
        return make_request(topic, payload, matchtag=matchtag, flags=STREAMING if streaming else 0, nodeid=nodeid)

    def receive(self, message: Message) -> Answer:
        """Return the response with its call. Raise RemoteProtocolError for a stray response."""
        call = self._calls.get(message.matchtag)
        if message.type != RESPONSE or call is None or call.topic != message.topic:
            raise RemoteProtocolError(
                f"message type {message.type}, topic {message.topic}, matchtag {message.matchtag}: it matches no call"
            )
        errnum = message.aux1
        # peers differ in the flag of a stream's last response: only an error ends a stream (RFC 6)
        done = errnum != 0 or not call.streaming
        if done:
            del self._calls[message.matchtag]
        if errnum:
            return Answer(call.token, None, _failure(message), done)
        return Answer(call.token, message.payload, None, done)

    def cancel(self, matchtag: int, topic: str) -> Message:
        """Return the request that ends the stream `matchtag` of `topic`; its last response (ENODATA) is still to
        come.
        """
        call = self._calls.get(matchtag)
        if call is not None:
            call.cancelled = True
        return tell(f"{topic}-cancel", pack(CancelRequest(matchtag)))

    def open(self) -> Iterator[tuple[str, Any]]:
        """Topic and token of every call that waits, the oldest first."""
        return ((call.topic, call.token) for call in self._calls.values())

    def lose(self, error: RPCError) -> list[Answer]:
        """End all calls but streams: the connection is lost, and no response will come; the answers to hand out.

        A stream that was cancelled has ended. The others stay open, see `again`.
        """
        ended = {tag: call for tag, call in self._calls.items() if call.cancelled or not call.streaming}
        for tag in ended:
            del self._calls[tag]
        over = RPCError("the stream has ended", errno.ENODATA)
        return [Answer(call.token, None, over if call.cancelled else error, True) for call in ended.values()]

    def again(self) -> list[Message]:
        """Return the requests of all open streams, for a new connection: their responses go to the same tokens."""
        return [
            make_request(call.topic, call.payload, matchtag=tag, flags=STREAMING)
            for tag, call in self._calls.items()
            if call.streaming
        ]

    def abandon(self) -> list[Any]:
        """Return the tokens of all calls that wait: the connection is lost, and no response will come."""
        calls, self._calls = self._calls, {}
        return [call.token for call in calls.values()]

    def _tag(self) -> int:
        tag = self._last
        while True:
            tag = tag + 1 if tag < MATCHTAG_MAX else 1  # 0 means: no matchtag
            if tag not in self._calls:
                self._last = tag
                return tag


def tell(topic: str, payload: bytes | None, *, nodeid: int = NODEID_ANY) -> Message:
    """Return a request that wants no response."""
    return make_request(topic, payload, flags=NORESPONSE, nodeid=nodeid)


def _failure(message: Message) -> RPCError:
    text = (message.payload or b"").removesuffix(b"\0").decode(errors="replace")[:ERROR_CHARS_MAX]
    return RPCError(text or f"{message.topic}: error {message.errnum}", message.errnum)

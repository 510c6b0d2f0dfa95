"""The synchronous client: what the command line and scripts use. One connection, no threads, no asyncio."""

from __future__ import annotations

import contextlib
import errno
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from types import TracebackType
from typing import Any, Protocol

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import FluxschedError, RPCError
from fluxsched.protocol.framing import codec
from fluxsched.protocol.framing.bundle import pack_bundles, unpack_bundle
from fluxsched.protocol.framing.header import NORESPONSE, RESPONSE, Message, decode, encode, make_request
from fluxsched.protocol.sessions.rpc import Answer, Calls, tell
from fluxsched.runtime.system.clock import SystemClock
from fluxsched.runtime.system.live_instances import find_uri
from fluxsched.transport.base import Disconnected
from fluxsched.transport.zeromq import BlockingClient

TIMEOUT_S = 60.0
"""How long a plain request waits for its answer; an instance answers within milliseconds."""

WINDOW_CALLS = 4096
"""Requests of one kind under way at once: enough to keep an instance busy, little enough to keep in memory."""


class Beside(Protocol):
    """A file that is read whenever it can be, while a handle waits for answers."""

    @property
    def fd(self) -> int | None:
        """What to wait for; None: nothing at present."""
        ...

    def look(self) -> None:
        """Read what is there, without waiting; it may post requests."""


class Pending:
    """Answers that have arrived for one call and were not taken yet."""

    __slots__ = ("answers", "beside", "matchtag", "topic")

    def __init__(self, topic: str, beside: Beside | None = None) -> None:
        self.topic = topic
        self.beside = beside
        self.matchtag = 0
        self.answers: deque[Answer] = deque()


def _client(uri: str) -> BlockingClient:
    try:
        return BlockingClient(uri)
    except Disconnected as fault:
        from fluxsched.runtime.system.kept_logs import end_of

        said = end_of(uri)
        if said is None:
            raise
        raise Disconnected(f"nothing listens at {uri}; its instance {said}", fault.errnum) from None


class Handle:
    """A connection to an instance; use it as a context manager."""

    def __init__(self, uri: str | None = None, *, only: bool = False) -> None:
        self.uri = find_uri(uri, only=only)
        self._client = _client(self.uri)
        self._calls = Calls()

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; streams and waits of it end too."""
        with contextlib.suppress(FluxschedError):
            self._client.send(encode(make_request("instance.goodbye", None, flags=NORESPONSE)))
        self._client.close()

    def rpc(
        self, topic: str, payload: dict[str, Any] | None = None, *, timeout_s: float | None = TIMEOUT_S
    ) -> dict[str, Any]:
        """One request, one answer; `RPCError` carries the peer's errno and text."""
        pending = Pending(topic)
        self._ask(pending, payload)
        answer = self._next(pending, timeout_s)
        if answer.error is not None:
            raise answer.error
        return _object(answer)

    def stream(
        self,
        topic: str,
        payload: dict[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        meanwhile: Iterable[float] = (),
        beside: Beside | None = None,
    ) -> Iterator[dict[str, Any]]:
        """The answers of a streaming request until ENODATA; leaving the loop early cancels the stream.

        Whenever the file `beside` can be read it is looked at.
        Until the first answer `meanwhile` is asked for its next delay (seconds) whenever the last one has passed; it
        may use this handle to look what keeps the answer.
        """
        pending = Pending(topic, beside)
        self._ask(pending, payload, streaming=True)
        done = False
        try:
            self._until_answered(pending, meanwhile)
            while True:
                answer = self._next(pending, timeout_s)
                if answer.error is not None:
                    done = True
                    if answer.error.errnum == errno.ENODATA:
                        return
                    raise answer.error
                yield _object(answer)
        finally:
            if not done:
                with contextlib.suppress(FluxschedError):
                    self._client.send(encode(self._calls.cancel(pending.matchtag, topic)))

    def rpc_each(
        self, topic: str, payloads: Iterable[dict[str, Any]], *, window: int = WINDOW_CALLS
    ) -> Iterator[dict[str, Any] | RPCError]:
        """A request each, of which `window` at most are under way; in order the answer to each, or why it is refused.

        The next payload is only asked for when there is room for it.
        """
        source, waiting = iter(payloads), deque[Pending]()
        while True:
            if len(waiting) <= window // 2:
                messages = []
                for payload in islice(source, window - len(waiting)):
                    waiting.append(Pending(topic))
                    messages.append(self._calls.start(topic, codec.pack(payload), token=waiting[-1].answers.append))
                self._send(messages)
            if not waiting:
                return
            answer = self._next(waiting.popleft(), TIMEOUT_S)
            yield _object(answer) if answer.error is None else answer.error

    def subscribe(
        self, topic: str, payload: dict[str, Any] | None, told: Callable[[dict[str, Any] | RPCError | None], None]
    ) -> Callable[[], None]:
        """A streaming request, whose answers `told` takes while this handle waits or listens: None is its end, an error
        its failure. What it gives back ends the stream.
        """

        def take(answer: Answer) -> None:
            is_end = answer.error is not None and answer.error.errnum == errno.ENODATA
            told(None if is_end else answer.error or _object(answer))

        message = self._calls.start(
            topic, None if payload is None else codec.pack(payload), streaming=True, token=take
        )
        self._send([message])
        return lambda: self._client.send(encode(self._calls.cancel(message.matchtag, topic)))

    def listen(self, timeout_s: float | None, beside: Beside | None = None) -> bool:
        """Pass on what arrives next, or look at the file `beside` when it can be read; False if nothing came."""
        return self._take(timeout_s, beside)

    def post(self, topic: str, payload: dict[str, Any], answered: Callable[[Answer], None]) -> None:
        """One request, whose answer `answered` takes while this handle waits for others."""
        self._send([self._calls.start(topic, codec.pack(payload), token=answered)])

    def tell(self, topic: str, payload: dict[str, Any] | None = None) -> None:
        """A request that wants no answer."""
        self._client.send(encode(tell(topic, None if payload is None else codec.pack(payload))))

    def rest(self, delay_s: float) -> None:
        """Wait for so long, or until something comes. Raises Disconnected at once when the instance goes away."""
        self._client.receive(delay_s)

    def submit(self, jobspec: Jobspec | dict[str, Any], urgency: int = 16) -> int:
        """Submit one job; its id, once the job is on disk."""
        return self.submit_many([jobspec], urgency)[0]

    def submit_many(self, jobspecs: Iterable[Jobspec | dict[str, Any]], urgency: int = 16) -> list[int]:
        """Submit several jobs at once; their ids in order. The first refusal is raised when all were answered."""
        ids = []
        for answer in self.submit_each(jobspecs, urgency):
            if isinstance(answer, RPCError):
                raise answer
            ids.append(answer)
        return ids

    def submit_each(
        self, jobspecs: Iterable[Jobspec | dict[str, Any]], urgency: int = 16
    ) -> list[int | RPCError]:
        """Submit several jobs at once; in order the id of each, or why it was refused."""
        bodies = (jobspec.to_json() if isinstance(jobspec, Jobspec) else jobspec for jobspec in jobspecs)
        requests = ({"jobspec": body, "urgency": urgency} for body in bodies)
        answers = self.rpc_each("job-manager.submit", requests)
        return [answer if isinstance(answer, RPCError) else int(answer["id"]) for answer in answers]

    def wait(self, jobid: int, *, timeout_s: float | None = None) -> dict[str, Any]:
        """The result of a job once it is inactive (WaitResponse)."""
        return self.rpc("job-manager.wait", {"id": jobid}, timeout_s=timeout_s)

    def cancel(self, jobid: int, note: str = "") -> None:
        """Cancel a job."""
        self.rpc("job-manager.raise", {"id": jobid, "type": "cancel", "severity": 0, "note": note})

    def drain(self, targets: str, reason: str | None = None, mode: str | None = None) -> None:
        """Drain targets, given as idset or hostlist."""
        payload = {"targets": targets, "reason": reason, "mode": mode}
        self.rpc("resource.drain", {key: value for key, value in payload.items() if value is not None})

    def undrain(self, targets: str, reason: str | None = None) -> None:
        """Give drained targets back."""
        self.rpc("resource.undrain", {"targets": targets} | ({} if reason is None else {"reason": reason}))

    def _ask(self, pending: Pending, payload: dict[str, Any] | None, *, streaming: bool = False) -> None:
        data = None if payload is None else codec.pack(payload)
        message = self._calls.start(pending.topic, data, streaming=streaming, token=pending.answers.append)
        pending.matchtag = message.matchtag
        self._send([message])

    def _send(self, messages: list[Message]) -> None:
        if len(messages) == 1:
            self._client.send(encode(messages[0]))
            return
        for frames in pack_bundles(messages):
            self._client.send(frames)

    def _next(self, pending: Pending, timeout_s: float | None) -> Answer:
        while not pending.answers:
            if not self._take(timeout_s, pending.beside):
                raise RPCError(f"{pending.topic}: no answer from {self.uri} within {timeout_s} s", errno.ETIMEDOUT)
        return pending.answers.popleft()

    def _until_answered(self, pending: Pending, meanwhile: Iterable[float]) -> None:
        for delay_s in meanwhile:
            until_s = SystemClock.monotonic_s() + delay_s
            while not pending.answers and (left_s := until_s - SystemClock.monotonic_s()) > 0:
                self._take(left_s, pending.beside)
            if pending.answers:
                return

    def _take(self, timeout_s: float | None, beside: Beside | None) -> bool:
        """Pass what arrives next to the calls that wait for it, or look `beside`; False if nothing came."""
        fd = None if beside is None else beside.fd
        frames = self._client.receive(timeout_s, fd)
        if beside is not None and fd is not None:
            beside.look()
        if frames is None:
            return fd is not None
        for one in unpack_bundle(decode(frames)):
            if one.type == RESPONSE:
                answer = self._calls.receive(one)
                answer.token(answer)
        return True


def _object(answer: Answer) -> dict[str, Any]:
    return codec.unpack_answer(answer.payload)


def connect_sync(uri: str | None = None, *, only: bool = False) -> Handle:
    """Connect to an instance: `with fluxsched.connect_sync() as h: h.submit(...)`.

    Without `uri` and FLUXSCHED_URI to the newest of this user's; `only` refuses to guess among several.
    """
    return Handle(uri, only=only)

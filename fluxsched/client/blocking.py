"""The synchronous client: what the command line and scripts use. One connection, no threads, no asyncio."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

from fluxsched.client.calls import TIMEOUT_S, BlockingCalls, Object, TypedCall, as_object
from fluxsched.client.find import find_uri, key_for
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import Disconnected, FluxschedError, RPCError
from fluxsched.protocol import framing
from fluxsched.protocol.framing import Message, pack_bundles
from fluxsched.protocol.sessions import Answer, tell
from fluxsched.system.clock import SystemClock
from fluxsched.transport.zeromq import BlockingClient

P = ParamSpec("P")
R = TypeVar("R")

WINDOW_CALLS = 4096
"""Requests of one kind under way at once: enough to keep an instance busy, little enough to keep in memory."""


class ReadableFile(Protocol):
    """A file that is read whenever it can be, while a handle waits for answers."""

    @property
    def fd(self) -> int | None:
        """Return the descriptor to poll; None: none at present."""
        ...

    def look(self) -> None:
        """Read the available data without waiting; requests may be posted."""


def _client(uri: str, key: str | os.PathLike[str] | None) -> BlockingClient:
    try:
        return BlockingClient(uri, keys=key_for(uri, key))
    except Disconnected as fault:
        from fluxsched.system.files import end_of

        said = end_of(uri)
        if said is None:
            raise
        raise Disconnected(f"nothing listens at {uri}; its instance {said}", fault.errnum) from None


class Handle(BlockingCalls):
    """A connection to an instance; use it as a context manager."""

    def __init__(
        self,
        uri: str | None = None,
        *,
        only: bool = False,
        key: str | os.PathLike[str] | None = None,
        reconnect_s: float = 0.0,
    ) -> None:
        """Connect to an instance.

        With `reconnect_s`, a lost instance is looked for automatically during that time; without it, only `reconnect`
        looks for it.
        """
        super().__init__()
        self.uri = find_uri(uri, only=only)
        self._key = key
        self._reconnect_s = reconnect_s
        self._is_away = False
        """True while the instance is lost and the client is to look for it."""
        self.reconnects = 0
        """Number of times the connection to the instance was restored."""
        self._client = _client(self.uri, key)

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def reconnect(
        self,
        began: Callable[[], None] = lambda: None,
        *,
        within_s: float | None = None,
        also_stopped: bool = False,
    ) -> None:
        """Connect again after `Disconnected` to an instance that has been restarted, in place or on its state.

        Open calls are lost, and streams, too, unless the handle was made with `reconnect_s`: then they are opened
        again. `began` is called if the instance may be restarted. Raises Disconnected if it is not, or not within
        `within_s` (None: RECONNECT_S); `also_stopped`: see `attempts`.
        """
        from fluxsched.client.find import RECONNECT_S, attempts

        is_begun = False
        for delay_s in attempts(self.uri, RECONNECT_S if within_s is None else within_s, also_stopped=also_stopped):
            if not is_begun:
                began()
                is_begun = True
            SystemClock.sleep(delay_s)
            with contextlib.suppress(Disconnected):
                self._exchange(BlockingClient(self.uri, keys=key_for(self.uri, self._key)))
                return
        raise Disconnected(f"{self.uri} could not be reached again")

    def _exchange(self, client: BlockingClient) -> None:
        """Use another connection once the instance is ready there. Raises Disconnected if that is lost, too."""
        self._client.close()
        self._client = client
        if not self._reconnect_s:
            self.calls.abandon()
        open_streams = self.calls.again()
        self._is_away = False
        answers = deque[Answer]()
        self._send([super().start("instance.ready", None, answers.append)])
        while not answers:
            self.receive(self._client.receive(None) or [])
        self._send(open_streams)
        self.reconnects += 1

    def start(self, topic: str, payload: object, token: Callable[..., None], *, streaming: bool = False) -> Message:
        """Return the request of a new call; an instance that was lost meanwhile is looked for first."""
        if self._reconnect_s and (self._is_away or self._client.has_ended):
            self._lose(Disconnected(f"the instance at {self.uri} is gone"))
            self.reconnect(within_s=self._reconnect_s)
        return super().start(topic, payload, token, streaming=streaming)

    def _lose(self, fault: Disconnected) -> int:
        """End the calls whose responses are lost; return their number."""
        self._is_away = True
        answers = self.calls.lose(fault)
        for answer in answers:
            answer.token(answer)
        return len(answers)

    def close(self) -> None:
        """End the connection; streams and waits of it end too."""
        with contextlib.suppress(FluxschedError):
            self.tell("instance.goodbye")
        self._client.close()

    def rpc(self, topic: str, payload: Object | None = None, *, timeout_s: float | None = TIMEOUT_S) -> Object:
        """Send one request and return its response; `RPCError` carries the peer's errno and text."""
        return framing.unpack_answer(self._answered(topic, payload, timeout_s))

    def _answered(self, topic: str, payload: object, timeout_s: float | None) -> bytes | None:
        answers = deque[Answer]()
        self._send([self.start(topic, payload, answers.append)])
        answer = self._next(topic, answers, timeout_s)
        if answer.error is not None:
            raise answer.error
        return answer.payload

    def stream(
        self,
        topic: str,
        payload: object = None,
        *,
        timeout_s: float | None = None,
        meanwhile: Iterable[float] = (),
        beside: ReadableFile | None = None,
    ) -> Iterator[Object]:
        """Yield the responses of a streaming request until ENODATA; leaving the loop early cancels the stream.

        `beside` is a file that is read whenever it can be. Until the first answer `meanwhile` is asked for its next
        delay (seconds) whenever the last one has passed; it may use this handle to find out why the answer takes long.
        """
        answers = deque[Answer]()
        message = self.start(topic, payload, answers.append, streaming=True)
        self._send([message])
        done = False
        try:
            self._until_answered(answers, meanwhile, beside)
            while True:
                answer = self._next(topic, answers, timeout_s, beside)
                if answer.error is not None:
                    done = True
                    if answer.error.errnum == errno.ENODATA:
                        return
                    raise answer.error
                yield _object(answer)
        finally:
            if not done:
                with contextlib.suppress(FluxschedError):
                    self._send([self.calls.cancel(message.matchtag, topic)])

    def rpc_each(
        self, topic: str, payloads: Iterable[Object], *, window: int = WINDOW_CALLS
    ) -> Iterator[Object | RPCError]:
        """Send one request per payload, at most `window` of them under way; yield the responses, or errors, in order.

        The next payload is only taken when there is room for it.
        """
        source, waiting = iter(payloads), deque[deque[Answer]]()
        while True:
            if len(waiting) <= window // 2:
                more = [(deque[Answer](), payload) for payload in islice(source, window - len(waiting))]
                waiting.extend(answers for answers, _ in more)
                self._send([self.start(topic, payload, answers.append) for answers, payload in more])
            if not waiting:
                return
            answer = self._next(topic, waiting.popleft(), TIMEOUT_S)
            yield _object(answer) if answer.error is None else answer.error

    def subscribe(
        self, topic: str, payload: Object | None, told: Callable[[Object | RPCError | None], None]
    ) -> Callable[[], None]:
        """Send a streaming request; `told` is called with each response while this handle waits or listens: None is the
        end, an error a failure. Returns a function that ends the stream.
        """

        def take(answer: Answer) -> None:
            is_end = answer.error is not None and answer.error.errnum == errno.ENODATA
            told(None if is_end else answer.error or _object(answer))

        message = self.start(topic, payload, take, streaming=True)
        self._send([message])
        return lambda: self._send([self.calls.cancel(message.matchtag, topic)])

    def post(self, topic: str, payload: Object, answered: Callable[[Answer], None]) -> None:
        """Send one request; `answered` is called with its response while this handle waits for others."""
        self._send([self.start(topic, payload, answered)])

    def tell(self, topic: str, payload: Object | None = None) -> None:
        """Send a request without a response."""
        self._send([tell(topic, None if payload is None else framing.pack(payload))])

    def rest(self, delay_s: float) -> None:
        """Wait for a delay, or until a message arrives. Raises Disconnected at once if the instance disconnects."""
        self._client.receive(delay_s)

    def perform(self, call: TypedCall[P, Any, Any], *args: P.args, **kwargs: P.kwargs) -> Any:
        """Send the request of one of `InstanceCalls` and return its result."""
        request = call.request(self, *args, **kwargs)
        if call.result is None:
            return self.stream(call.topic, request)
        return call.read(self._answered(call.topic, request, call.timeout_of(kwargs)))

    def submit_many(self, jobspecs: Iterable[Jobspec | Object], urgency: int = 16) -> list[int]:
        """Submit several jobs at once; their ids in order. The first refusal is raised when all were answered."""
        ids = []
        for answer in self.submit_each(jobspecs, urgency):
            if isinstance(answer, RPCError):
                raise answer
            ids.append(answer)
        return ids

    def submit_each(self, jobspecs: Iterable[Jobspec | Object], urgency: int = 16) -> list[int | RPCError]:
        """Submit several jobs at once; in order the id of each, or why it was refused."""
        bodies = map(as_object, jobspecs)
        requests = ({"jobspec": body, "urgency": urgency} for body in bodies)
        answers = self.rpc_each("job-manager.submit", requests)
        return [answer if isinstance(answer, RPCError) else int(answer["id"]) for answer in answers]

    def _send(self, messages: Iterable[Message]) -> None:
        for frames in pack_bundles(messages):
            self._client.send(frames)

    def _next(
        self, topic: str, answers: deque[Answer], timeout_s: float | None, beside: ReadableFile | None = None
    ) -> Answer:
        while not answers:
            if not self.listen(timeout_s, beside):
                raise RPCError(f"{topic}: no answer from {self.uri} within {timeout_s} s", errno.ETIMEDOUT)
        return answers.popleft()

    def _until_answered(self, answers: deque[Answer], meanwhile: Iterable[float], beside: ReadableFile | None) -> None:
        for delay_s in meanwhile:
            until_s = SystemClock.monotonic_s() + delay_s
            while not answers and (left_s := until_s - SystemClock.monotonic_s()) > 0:
                self.listen(left_s, beside)
            if answers:
                return

    def listen(self, timeout_s: float | None, beside: ReadableFile | None = None) -> bool:
        """Pass on the next message, or read the file `beside` when it can be read; False if neither happened."""
        if self._is_away:
            self.reconnect(within_s=self._reconnect_s)
        fd = None if beside is None else beside.fd
        try:
            frames = self._client.receive(timeout_s, fd)
        except Disconnected as fault:
            if not self._reconnect_s:
                raise
            if not self._lose(fault):  # nobody waits for an answer that will not come
                self.reconnect(within_s=self._reconnect_s)
            return True
        if beside is not None and fd is not None:
            beside.look()
        if frames is None:
            return fd is not None
        self.receive(frames)
        return True


def _object(answer: Answer) -> Object:
    return framing.unpack_answer(answer.payload)


def connect_sync(
    uri: str | None = None,
    *,
    only: bool = False,
    key: str | os.PathLike[str] | None = None,
    reconnect_s: float = 60.0,
) -> Handle:
    """Connect to an instance: `with fluxsched.connect_sync() as h: h.submit(...)`.

    Without `uri` and FLUXSCHED_URI it is the newest of this user's; `only` raises if there are several. `key` is the
    file of the key to show at a tcp port; without it the one that FLUXSCHED_KEY names, or in the usual place.

    An instance that is lost is looked for at its address for `reconnect_s` seconds (0: not at all): calls under way
    raise Disconnected, for it is not known whether they were done; later ones wait until it is back; streams are opened
    again and begin anew. `reconnects` counts how often that was.
    """
    return Handle(uri, only=only, key=key, reconnect_s=reconnect_s)

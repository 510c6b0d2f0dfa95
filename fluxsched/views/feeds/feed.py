"""What a feed is: the one that asks an instance for a topic, for all viewers that asked the same.

Law: a feed keeps no viewer. It knows the whole at any time, and tells changes to its audience; an instance that is
gone ends `run` with an RPCError, and the next `run` begins anew with a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from fluxsched.core.text import some_of
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.views.changes import Body


class Asking(Protocol):
    """What a feed asks with: an `AsyncHandle`."""

    @property
    def is_gone(self) -> bool: ...

    def rpc(self, topic: str, payload: Any = None, *, timeout_s: float | None = ...) -> Any: ...

    def stream(self, topic: str, payload: Any = None) -> Any: ...


class Audience(Protocol):
    """Who is told."""

    def whole(self, body: Body) -> None:
        """Everything, anew."""

    def change(self, body: Body) -> None:
        """What is new."""


class Feed(Protocol):
    """One topic with its parameters."""

    def now(self) -> Body | None:
        """The whole for a viewer that comes now; None before the first answer."""

    async def run(self, handle: Asking, audience: Audience) -> None:
        """Ask until the connection is lost. Raises RPCError for that, and for what the instance refuses."""


@contextmanager
def streaming(handle: Asking, topic: str, payload: Any = None) -> Iterator[Any]:
    """A stream that ends at the instance, too, when its reader ends."""
    stream = handle.stream(topic, payload)
    try:
        yield stream
    finally:
        if not handle.is_gone:
            stream.cancel()


def checked(topic: str, params: Mapping[str, Any], **allowed: type | tuple[type, ...]) -> dict[str, Any]:
    """The parameters of a subscription, if each is known and of its type; those that are None are absent.

    Raises InvalidValue naming all that are not.
    """
    given = {name: value for name, value in params.items() if value is not None}
    wrong = [name for name, value in given.items() if name not in allowed or not isinstance(value, allowed[name])]
    if wrong:
        raise InvalidValue(
            f"view {topic}: {some_of(wrong)}: no such parameter, or of another type; there are {some_of([*allowed])}"
        )
    return given


def bounded_number(topic: str, name: str, value: int, limit: int) -> int:
    """A number of at least 1. Raises InvalidValue, or LimitExceeded above `limit`."""
    if value < 1:
        raise InvalidValue(f"view {topic}: {name} {value} is not at least 1")
    if value > limit:
        raise LimitExceeded(f"view {topic}: {name} {value} is above the limit of {limit}")
    return value

"""Answers that take long to find: a step a turn, between which others are served.

Law: it is looked for only as long as somebody wants to know, and what one step finds is told at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.messaging.peers import RpcRequest

T = TypeVar("T")


def in_steps(turns: Turns, request: RpcRequest, looking: Iterator[T | None], then: Callable[[T], None]) -> None:
    """Look until something is found, then call; a fault on the way ends the request."""

    def step() -> None:
        found = next(looking)
        if found is not None:
            then(found)
        elif request.is_open:
            turns.post(lambda: in_steps(turns, request, looking, then))

    turns.run_isolated(step, request.topic, request.failed)

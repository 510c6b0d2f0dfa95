"""Answers that take long to find: a step a turn, between which others are served.

Law: the search continues only while its request is open, and what one step finds is sent at once.
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

"""Questions to schedulers, one at a time each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fluxsched.services.jobs import QUESTIONS_MAX, InTurn

pytestmark = pytest.mark.plain_only("compiled code takes no made-up router, peers and requests")


class FakeRouter:
    """A router whose calls are answered by hand: (peer, payload, answered)."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, bytes, Any]] = []

    def call(self, peer: Any, topic: str, payload: bytes, answered: Any) -> None:
        assert topic == "sched.when"
        self.calls.append((peer, payload, answered))


def test_a_scheduler_is_asked_one_question_at_a_time_and_none_that_was_answered_meanwhile() -> None:
    router, heard = FakeRouter(), []
    in_turn = InTurn(router, "sched.when")  # type: ignore[arg-type]
    requests = [SimpleNamespace(is_open=True) for _ in range(4)]
    for request, payload in zip(requests, (b"0", b"1", b"2", b"3"), strict=True):
        assert in_turn.ask("one", request, payload, heard.append)  # type: ignore[arg-type]
    assert in_turn.ask("other", requests[0], b"4", heard.append)  # type: ignore[arg-type]
    assert [call[:2] for call in router.calls] == [("one", b"0"), ("other", b"4")]
    requests[1].is_open = False
    router.calls[0][2]("first")
    assert [call[1] for call in router.calls] == [b"0", b"4", b"2"]
    router.calls[2][2](None)
    router.calls[3][2]("last")
    assert (heard, router.calls[3][1]) == (["first", None, "last"], b"3")
    assert in_turn.ask("one", requests[0], b"5", heard.append)  # type: ignore[arg-type]
    assert router.calls[4][1] == b"5"


def test_so_many_questions_wait_and_no_more() -> None:
    in_turn, request = InTurn(FakeRouter(), "sched.when"), SimpleNamespace(is_open=True)  # type: ignore[arg-type]
    asked = [in_turn.ask("one", request, b"", print) for _ in range(QUESTIONS_MAX + 2)]  # type: ignore[arg-type]
    assert asked == [True] * (QUESTIONS_MAX + 1) + [False]
    assert QUESTIONS_MAX == 64

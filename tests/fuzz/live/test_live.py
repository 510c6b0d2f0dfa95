"""A batch of each kind at the sockets of one instance; and what is watched of it can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest

from tests.fuzz.live import instance as watched
from tests.fuzz.live.inputs import ENDS_IT, MessageMaker, broken_curve, broken_session, broken_stream
from tests.fuzz.live.instance import LiveInstance, Unwell, live_instance
from tests.fuzz.live.senders import SlowPeers, senders


@pytest.fixture(scope="module")
def living() -> Iterator[LiveInstance]:
    with live_instance() as instance:
        yield instance


@pytest.mark.slow
def test_an_instance_serves_others_whatever_is_sent(living: LiveInstance) -> None:
    slow = SlowPeers(living)
    for kind, send in senders().items():
        assert send(living, Random(kind))
        slow.trickle()
        living.check()
    slow.close()
    living.check_left()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "value", "text"),
    [
        ("RESIDENT_BYTES_MAX", 1 << 20, "it holds"),
        ("LOG_BYTES_MAX", -1, "its log has"),
        ("LATENCY_MAX_S", 1e-9, "it answered after|it does not answer"),
        ("DESCRIPTORS_EXTRA_MAX", -1000, "descriptors"),
    ],
)
def test_what_is_watched_can_fail(
    living: LiveInstance, monkeypatch: pytest.MonkeyPatch, limit: str, value: float, text: str
) -> None:
    monkeypatch.setattr(watched, "SETTLE_S", 0.0)
    monkeypatch.setattr(watched, limit, value)
    with pytest.raises(Unwell, match=text):
        living.check_left()


@pytest.mark.parametrize("make", [broken_session, broken_curve, broken_stream])
def test_the_same_chance_makes_the_same_bytes(make: Callable[[Random], bytes]) -> None:
    assert [make(Random(n)) for n in range(20)] == [make(Random(n)) for n in range(20)]


@pytest.mark.parametrize("json", [False, True])
def test_messages_repeat_and_none_ends_the_instance(json: bool) -> None:
    maker = MessageMaker(json=json)
    made = list(maker.batch(300, Random(3)))
    assert made == list(MessageMaker(json=json).batch(300, Random(3)))
    assert not any(word in part for parts in made for part in parts for word in ENDS_IT)

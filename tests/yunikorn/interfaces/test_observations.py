"""Events and container states, by both interfaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("grpc")

from fluxsched.yunikorn.messages import EventRecord, UpdateContainerSchedulingStateRequest

from .drivers import RM
from .test_answers import ask, prepared

State = UpdateContainerSchedulingStateRequest


def state_of(key: str, state: int) -> Callable[[Any], bool]:
    return lambda each: isinstance(each, State) and (each.allocationKey, each.state) == (key, state)


def test_events_have_all_fields(new_rm: Callable[[], RM]) -> None:
    rm = prepared(new_rm())
    rm.watch()
    kind, fields = ask()
    rm.send(kind, **fields)
    found = rm.observed(lambda each: isinstance(each, EventRecord) and each.objectID == "ask")
    assert (found.type, found.groupID, found.eventChangeType) == (EventRecord.REQUEST, "app", EventRecord.ADD)
    assert found.reason
    assert found.timestampNano > 10**17


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"vcore": 1 << 40}, State.FAILED),
        ({"tags": {"yunikorn.apache.org/requiredNode": "n9"}}, State.FAILED),
        ({}, State.SCHEDULED),
    ],
)
def test_what_becomes_of_an_ask_is_told_with_the_reason(
    new_rm: Callable[[], RM], fields: dict[str, Any], state: int
) -> None:
    rm = prepared(new_rm())
    rm.watch()
    kind, whole = ask(**fields)
    rm.send(kind, **whole)
    found = rm.observed(state_of("ask", state))
    assert found.applicartionID == "app"
    assert found.reason or state == State.SCHEDULED


def test_what_a_queue_holds_back_is_skipped(new_rm: Callable[[], RM]) -> None:
    rm = new_rm()
    prepared(rm)
    rm.watch()
    rm.send("applications", new=[{"applicationID": "small", "queueName": "root.small"}])
    rm.wait("applications", "accepted")
    kind, fields = ask(vcore=6000, applicationID="small")
    rm.send(kind, **fields)
    found = rm.observed(state_of("ask", State.SKIPPED))
    assert "root.small" in found.reason
    assert "5000" in found.reason

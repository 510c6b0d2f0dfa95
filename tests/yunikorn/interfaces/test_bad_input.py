"""Input that no resource manager should send, by both interfaces: each costs its sender, and others are served."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("grpc")

import grpc

from fluxsched.yunikorn import messages
from fluxsched.yunikorn.config import CONFIG_CHARS_MAX
from fluxsched.yunikorn.messages import ALLOCATIONS, APPLICATIONS, MESSAGE_BYTES_MAX, NODES, TIMEOUT
from fluxsched.yunikorn.requests import ASK_BYTES_MAX, TAGS_MAX
from fluxsched.yunikorn.tables import SI_KINDS_MAX

from .drivers import RM, Fault
from .test_answers import CONFIG, amounts, application, ask, node, prepared, release, told

Code = grpc.StatusCode
NewRM = Callable[[], RM]


@contextmanager
def others_are_served(new_rm: NewRM) -> Iterator[None]:
    """One of them before, and after."""
    other = prepared(new_rm())
    yield
    kind, fields = ask("other")
    other.send(kind, **fields)
    assert [(answer.part, answer.name) for answer in other.wait(ALLOCATIONS, "new")] == [("new", "other")]


def only_rejected(rm: RM, kind: str) -> str:
    """The reason of the only answer."""
    (answer,) = rm.read(kind)
    assert answer.part == "rejected"
    return told(answer)


def test_half_a_message(new_rm: NewRM) -> None:
    with others_are_served(new_rm):
        rm = prepared(new_rm())
        whole = messages.NodeRequest(nodes=[{"nodeID": "n2"}], rmID=rm.rm_id).SerializeToString()
        with pytest.raises(Exception, match=r"cannot|whole message|parsing"):  # noqa: PT012 - in process the first raises
            rm.send(NODES, whole[:-3])
            rm.read(NODES)


def test_sixteen_mebibytes_of_asks(new_rm: NewRM) -> None:
    with others_are_served(new_rm):
        rm = prepared(new_rm())
        asks = ask("x" * 1000)[1]["asks"] * (16 << 10)
        with pytest.raises(Fault, match=str(MESSAGE_BYTES_MAX)) as caught:  # noqa: PT012 - in process the first raises
            rm.send(ALLOCATIONS, asks=asks)
            rm.read(ALLOCATIONS)
        assert caught.value.code in (Code.RESOURCE_EXHAUSTED, Code.INVALID_ARGUMENT)


def test_two_to_the_63rd_as_a_quantity(new_rm: NewRM) -> None:
    """On the wire it is the same as its negative; a class refuses it in the first place."""
    with others_are_served(new_rm):
        rm = prepared(new_rm())
        with pytest.raises(ValueError, match="9223372036854775808"):
            messages.Quantity(value=1 << 63)
        kind, fields = node("n2", schedulableResource=amounts(vcore=-(1 << 63)))
        rm.send(kind, messages.NodeRequest(rmID=rm.rm_id, **fields).SerializeToString())
        assert "-9223372036854775808" in only_rejected(rm, NODES)
        kind, fields = ask(resourceAsk=amounts(vcore=(1 << 63) - 1))
        rm.send(kind, **fields)
        assert str(1 << 60) in only_rejected(rm, ALLOCATIONS)


def test_ten_thousand_tags_and_kinds(new_rm: NewRM) -> None:
    with others_are_served(new_rm):
        rm = prepared(new_rm())
        many = {f"tag-{index}": "x" for index in range(10_000)}
        for kind, fields in (
            ask(tags=many),
            application("new", tags=many),
            node("n2", attributes=many),
        ):
            rm.send(kind, **fields)
            assert re.search(rf"10,?000.*{TAGS_MAX}|{ASK_BYTES_MAX}", only_rejected(rm, kind))
        kinds = {f"kind-{index}": 1 for index in range(10_000)}
        for kind, fields in (ask(resourceAsk=amounts(**kinds)), node("n2", schedulableResource=amounts(**kinds))):
            rm.send(kind, **fields)
            assert re.search(rf"10,?000.*{SI_KINDS_MAX}|{ASK_BYTES_MAX}", only_rejected(rm, kind))


@pytest.mark.parametrize("text", ["\0", "a\0b", "\x1b[31m", "x" * 100_000, "\u202e", "../../x"])
def test_names_that_are_none(new_rm: NewRM, text: str) -> None:
    """Each item is answered, one way or the other, and what is printed of it is harmless."""
    with others_are_served(new_rm):
        rm = prepared(new_rm())
        for kind, fields in (
            node(text),
            application(text),
            application("new", queue=f"root.{text}"),
            ask(text),
            ask(applicationID=text),
            ask(partitionName=text),
            ask(tags={"fluxsched/constraint": text}),
            ask(tags={"creationTime": text, "yunikorn.apache.org/allowPreemption": text}),
            ask(resourceAsk=amounts(**{text: 1})),
            release(applicationID=text, UUID=text),
        ):
            rm.send(kind, **fields)
            for answer in rm.read(kind):
                assert "\0" not in told(answer)
                assert "\x1b" not in told(answer)
                assert len(told(answer)) < 4000
        rm.dump()


EXPLODING = "a0: &a0 [x, x]\n" + "\n".join(f"a{at}: &a{at} [*a{at - 1}, *a{at - 1}]" for at in range(1, 30))


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(EXPLODING, id="aliases"),
        pytest.param("partitions: " + "[" * 100_000, id="depth"),
        pytest.param("partitions:\n" + "- name: x\n" * (CONFIG_CHARS_MAX // 10 + 1), id="length"),
        pytest.param("!!python/object/apply:os.system ['true']", id="tags"),
        pytest.param("partitions: \0", id="NUL"),
        pytest.param("partitions: []", id="none"),
        pytest.param("- 1\n- 2", id="a list"),
        pytest.param("partitions: {a: SECRET}", id="another shape"),
    ],
)
def test_configurations_that_explode(new_rm: NewRM, config: str, caplog: Any) -> None:
    caplog.set_level("DEBUG")
    with others_are_served(new_rm):
        rm = prepared(new_rm())
        for call in (rm.register, rm.update_configuration):
            with pytest.raises(Fault) as caught:
                call(config=config)
            assert caught.value.code is Code.INVALID_ARGUMENT
        kind, fields = ask()
        rm.send(kind, **fields)
        rm.wait(ALLOCATIONS, "new")
    assert "SECRET" not in caplog.text


def test_a_resource_manager_that_registers_in_a_loop(new_rm: NewRM) -> None:
    with others_are_served(new_rm):
        rm = new_rm()
        for _ in range(100):
            rm.register(config=CONFIG)
        prepared(rm)
        assert rm.dump()["state"] == "Running"


def test_one_that_dies_between_a_demand_and_its_confirmation(new_rm: NewRM) -> None:
    with others_are_served(new_rm):
        rm = prepared(new_rm())
        kind, fields = ask(executionTimeoutMilliSeconds=1)
        rm.send(kind, **fields)
        uuid = next(a.item.UUID for a in rm.wait(ALLOCATIONS, "new") if a.part == "new")
        demand = _demanded(rm)
        assert (demand.UUID, demand.terminationType) == (uuid, TIMEOUT)
        _die(rm)
        rm.register(config=CONFIG)
        again = release(applicationID="app", UUID=uuid, terminationType=TIMEOUT)
        for kind, fields in (application("app"), again):
            rm.send(kind, **fields)
        assert [answer for answer in rm.read(APPLICATIONS, ALLOCATIONS) if answer.kind == ALLOCATIONS] == []
        prepared(rm)


def _demanded(rm: RM) -> Any:
    later = getattr(rm, "later", None)
    if later is not None:
        later(1.0)
    return next(answer.item for answer in rm.wait(ALLOCATIONS, "released") if answer.part == "released")


def _die(rm: RM) -> None:
    for stream in getattr(rm, "streams", {}).values():
        stream.call.cancel()
    getattr(rm, "streams", {}).clear()


def test_two_that_claim_one_rm_id(new_rm: NewRM) -> None:
    first, second = prepared(new_rm()), new_rm()
    second.rm_id = first.rm_id
    prepared(second)
    kind, fields = ask()
    second.send(kind, **fields)
    assert [answer.name for answer in second.wait(ALLOCATIONS, "new")] == ["ask"]
    if hasattr(first, "streams"):
        for kind in (APPLICATIONS, NODES):
            with pytest.raises(Fault, match="another registration of this rmID") as caught:
                first.read(kind)
            assert caught.value.code is Code.ABORTED
    else:
        assert first.read() == []

"""Every message class: there and back in both encodings, read by a second hand, refused with the part named."""

from __future__ import annotations

import msgpack
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fluxsched.errors import RemoteProtocolError
from fluxsched.protocol import framing
from fluxsched.protocol.messages import jobs, resource
from fluxsched.protocol.messages import jobs as sched
from fluxsched.protocol.messages.common import INT64_MAX, WALL_TIME_MAX_S, AttrResponse
from tests.generated.share import examples

from .pages import generate

_FEW = settings(max_examples=examples(24), suppress_health_check=[HealthCheck.function_scoped_fixture])


@_FEW
@given(data=st.data())
def test_there_and_back_and_a_second_hand_reads_the_same(message_class, values_of, data):
    value = data.draw(values_of)
    packed = framing.pack(value)
    assert framing.unpack(packed, message_class) == value
    if not any("inf" in repr(part) for part in msgspec.structs.astuple(value)):  # JSON has no infinity
        assert framing.from_json(framing.to_json(value) + b"\0", message_class) == value
    seen = msgpack.unpackb(packed)
    assert isinstance(seen, dict)
    assert framing.unpack(msgpack.packb(seen), message_class) == value


def test_every_class_says_what_it_is_and_leaves_defaults_off_the_wire():
    for cls in generate.all_classes():
        config, fields = cls.__struct_config__, msgspec.structs.fields(cls)
        assert cls.__doc__, cls
        assert config.frozen, cls
        if config.omit_defaults and config.tag is None and not any(field.required for field in fields):
            assert framing.pack(cls()) == b"\x80", cls


def test_unknown_keys_are_ignored():
    assert framing.unpack(msgpack.packb({"count": 3, "later": True}), sched.ReadyResponse) == sched.ReadyResponse(3)


def test_wire_names_are_those_of_the_rfcs():
    hello = sched.HelloRequest(partial_ok=True, groups=["a"])
    assert msgpack.unpackb(framing.pack(hello)) == {"partial-ok": True, "groups": ["a"]}
    update = resource.Update(expiration=2.0, property_add={"ssd": "0-1"}, property_remove={"old": "3"})
    assert msgpack.unpackb(framing.pack(update)) == {
        "type": "update",
        "expiration": 2.0,
        "property-add": {"ssd": "0-1"},
        "property-remove": {"old": "3"},
    }


def test_flux_clients_get_the_keys_that_they_insist_on():
    assert msgpack.unpackb(framing.pack(AttrResponse("4"))) == {"value": "4", "flags": 1}
    assert msgpack.unpackb(framing.pack(resource.MoveResponse("0", ""))) == {
        "moved": "0", "leaving": "", "draining": "", "there": "", "ending": []
    }  # fmt: skip


def test_integer_expirations_and_times_are_accepted():
    assert framing.unpack(msgpack.packb({"id": 1, "expiration": 7}), sched.ExpirationRequest).expiration == 7.0


@pytest.mark.parametrize(
    ("kind", "payload", "named"),
    [
        (resource.DrainRequest, {}, "targets"),
        (resource.DrainRequest, {"targets": 3}, r"\$\.targets"),
        (resource.AcquireResponse, {"type": "grew"}, "grew"),
        (resource.AcquireResponse, {"type": "grow", "resources": [], "online": "", "offline": ""}, r"\$\.resources"),
        (sched.AllocRequest, {"id": -1, "priority": 0, "userid": 0, "jobspec": {}}, r">= 0.*\$\.id"),
        (sched.AllocRequest, {"id": 1 << 63, "priority": 0, "userid": 0, "jobspec": {}}, r"\$\.id"),
        (sched.AllocResponse, {"id": 1, "type": 4}, r"\$\.type"),
        (sched.AllocResponse, {"id": 1, "type": 1}, "annotations"),
        (sched.PrioritizeRequest, {"jobs": [[1, 2], [3]]}, r"\$\.jobs\[1\]"),
        (sched.ReadyRequest, {"mode": "single"}, r"\$\.mode"),
        (sched.ReadyRequest, {"mode": "limited"}, "limit"),
        (sched.ReadyRequest, {"mode": "unlimited", "limit": 1}, "limit"),
        (sched.ExpirationRequest, {"id": 1, "expiration": float("nan")}, r"\$\.expiration"),
        (sched.ExpirationRequest, {"id": 1, "expiration": float("inf")}, r"\$\.expiration"),
        (jobs.LookupRequest, {"id": 1, "keys": ["J"]}, r"\$\.keys\[0\]"),
        (jobs.SubmitRequest, {"jobspec": {}, "urgency": "high"}, r"\$\.urgency"),
        (jobs.KillRequest, {"id": 1, "signum": 0}, r"\$\.signum"),
        (resource.StatusResponse, {"R": {}, "drain": {"0": {"timestamp": 1.0}}}, r"drain|reason"),
        (resource.ReloadRequest, {"path": "/r", "R": {}}, "two sources"),
        (resource.AcquireRequest, {"accept": ["update"]}, "group"),
    ],
)
def test_bad_input_names_the_part(kind, payload, named):
    with pytest.raises(RemoteProtocolError, match=named):
        framing.unpack(msgpack.packb(payload), kind)


def test_the_message_names_its_class():
    with pytest.raises(RemoteProtocolError, match=r"^DrainRequest: "):
        framing.unpack(b"\x90", resource.DrainRequest)


def test_there_are_classes_in_every_module():
    assert all(generate.classes(module) for module in generate.MODULES)


@pytest.mark.parametrize(
    ("kind", "field", "limit"),
    [(resource.ExpirationUpdateRequest, "expiration", WALL_TIME_MAX_S), (jobs.JobCancelRequest, "id", INT64_MAX)],
)
def test_numbers_up_to_a_limit(kind, field, limit):
    assert getattr(framing.unpack(msgpack.packb({field: limit}), kind), field) == limit
    with pytest.raises(RemoteProtocolError, match=field):
        framing.unpack(msgpack.packb({field: limit + 1}), kind)

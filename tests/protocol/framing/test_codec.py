"""The codec against bombs: what leaves it is a JSON value of bounded depth, whatever comes in."""

from __future__ import annotations

import sys
from typing import Any

import msgpack
import pytest

from fluxsched.errors import RemoteProtocolError
from fluxsched.protocol import framing
from fluxsched.protocol.messages import jobs, resource, sched
from fluxsched.protocol.messages.common import Empty


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"with": [value]}
    return value


@pytest.mark.parametrize("data", [None, b""])
def test_no_payload_is_an_empty_object(data):
    assert framing.unpack(data, Empty) == Empty()
    assert framing.unpack(data, dict[str, Any]) == {}
    assert framing.from_json(data, Empty) == Empty()


def test_depth_up_to_the_limit_passes():
    # the struct and its field are two levels, each step of `_nested` two more
    fits = (framing.DEPTH_MAX - 2) // 2
    assert framing.unpack(msgpack.packb({"jobspec": _nested(fits)}), jobs.SubmitRequest).jobspec == _nested(fits)
    with pytest.raises(RemoteProtocolError, match=f"{framing.DEPTH_MAX} levels"):
        framing.unpack(msgpack.packb({"jobspec": _nested(fits + 1)}), jobs.SubmitRequest)


@pytest.mark.parametrize(
    "resources",
    [
        None, {}, {"a": [{"b": {"c": [1, 1.5, True, None, "x"]}}]}, _nested(framing.SHALLOW_LEVELS),
        {1: 2}, {"a": [b"x"]}, {"a": {"b": {2.5: 1}}}, _nested(framing.DEPTH_MAX), {"a": "x" * 1000}, [], 7,
    ],
)  # fmt: skip
def test_the_quick_reader_reads_and_refuses_what_unpack_does(resources):
    def outcome(read):
        try:
            found = read(msgpack.packb({"id": 7, "type": 0, "R": resources}))
        except RemoteProtocolError as fault:
            return str(fault)
        return found.id, found.R

    quick = framing.QuickReader(sched.AllocResponse, "R").read
    assert outcome(quick) == outcome(lambda data: framing.unpack(data, sched.AllocResponse))
    for data in (b"", b"\x81", b"\x81\xa1R\x81\xa1x\xa1\xff", b"\x81\xa1R" + b"\x91" * 100_000 + b"\xc0"):
        with pytest.raises(RemoteProtocolError):
            quick(data)


@pytest.mark.parametrize("levels", [1_000, sys.getrecursionlimit(), 100_000])
def test_depth_bombs_are_refused(levels):
    bomb = b"\x81\xa7jobspec" + b"\x81\xa1x" * levels + b"\xc0"
    with pytest.raises(RemoteProtocolError, match="nested"):
        framing.unpack(bomb, jobs.SubmitRequest)
    with pytest.raises(RemoteProtocolError, match="nested"):
        framing.from_json(b'{"jobspec":' + b'{"x":' * levels + b"0" + b"}" * levels + b"}", jobs.SubmitRequest)
    with pytest.raises(RemoteProtocolError, match="nested"):
        framing.unpack(b"\x81\xa5later" + b"\x91" * 100_000 + b"\xc0", Empty)


@pytest.mark.parametrize("head", [b"\xdd", b"\xdf", b"\xdb", b"\xc6"])
def test_promised_sizes_are_not_believed(head):
    with pytest.raises(RemoteProtocolError, match="truncated"):
        framing.unpack(b"\x81\xa7jobspec\x81\xa1x" + head + b"\xff\xff\xff\xff", jobs.SubmitRequest)


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (b"\x81\x01\x02", "a key of type int"),
        (b"\x81\x92\x01\x02\x03", "a key of type tuple"),
        (b"\x81\xa1x\xc4\x01\x00", "a value of type bytes"),
        (b"\x81\xa1x\xd4\x05\x01", "a value of type Ext"),
        (b"\x81\xa1x\xd6\xff\x01\x01\x01\x01", "a value of type datetime"),
    ],
)
def test_what_json_cannot_say_is_refused(part, named):
    with pytest.raises(RemoteProtocolError, match=named):
        framing.unpack(b"\x82\xa2id\x01\xa1R\x81\xa1x" + part, sched.FreeRequest)


def test_open_parts_inside_typed_lists_are_checked_too():
    bad = msgpack.packb({"events": [{"timestamp": 1.0, "name": "x", "context": {"x": {3: 4}}}]})
    with pytest.raises(RemoteProtocolError, match="a key"):
        framing.unpack(bad, resource.JournalResponse)
    bad = msgpack.packb({"events": [[1, 2.0, "x", {"a": b"bytes"}]]})
    with pytest.raises(RemoteProtocolError, match="a value"):
        framing.unpack(bad, jobs.WatchResponse)


def test_declared_bytes_pass():
    out = jobs.OutputResponse("stdout", b"\xff\0", 3)
    assert framing.unpack(framing.pack(out), jobs.OutputResponse) == out


@pytest.mark.parametrize("data", [b"\xc1", b"\x80\x80", b"\x81", b"\x81\xa1x\xa2\xff\xff", b"\xff\xff"])
def test_malformed_bytes_are_the_senders_fault(data):
    with pytest.raises(RemoteProtocolError, match=r"^dict"):
        framing.unpack(data, dict[str, Any])


def test_malformed_json_is_the_senders_fault():
    with pytest.raises(RemoteProtocolError, match=r"^ReadyResponse"):
        framing.from_json(b'{"count":', sched.ReadyResponse)


def test_well_formed():
    assert framing.is_well_formed(msgpack.packb({"a": [1, {}]}))
    assert not framing.is_well_formed(b"")
    assert not framing.is_well_formed(b"\x80\x80")
    assert not framing.is_well_formed(b"\x91" * 100_000)


@pytest.mark.parametrize("data", [b"\x81\xa1a\xa2\xff\xfe", b"\x81\xa1a", b"\xc1", b"\x07"])
def test_an_answer_that_is_none_is_the_senders_fault(data):
    """A text that is no UTF-8 came out as a UnicodeDecodeError."""
    with pytest.raises(RemoteProtocolError, match="answer"):
        framing.unpack_answer(data)


@pytest.mark.parametrize("data", [b"\xc1", b"\x81\x90\x01", b"\xa2\xff\xfe", b"\x91" * 5000, b"\xd6\x05abcd"])
def test_what_has_no_form_in_json_is_the_senders_fault(data):
    with pytest.raises(RemoteProtocolError, match="payload"):
        framing.to_local(data)

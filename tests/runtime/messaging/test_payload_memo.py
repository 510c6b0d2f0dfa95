"""Jobspecs are read in parts, as they would be read as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue
from fluxsched.protocol.framing import codec
from fluxsched.runtime.messaging import payload_memo
from fluxsched.runtime.messaging.payload_memo import JSON, SPEC_BYTES_MAX, SPECS_KEPT, JobspecMemo, PayloadMemo

CONSTRAINT = {"properties": ["fast"]}


def _spec(*words: str, **options: Any) -> dict[str, Any]:
    return Jobspec.from_command(words or ("true",), cwd="/", environment={"A": "b"}, **options).to_json()


def _changed(**changes: Any) -> dict[str, Any]:
    return _spec() | changes


@pytest.mark.parametrize(
    ("memo", "encode"), [(JobspecMemo(), codec.pack), (JobspecMemo(JSON), lambda obj: json.dumps(obj).encode())]
)
@pytest.mark.parametrize(
    "obj",
    [
        _spec(),
        _spec("a", "b", duration_s=5.0, queue="batch", name="x"),
        _spec("a", constraint=CONSTRAINT),
        _spec("a", nodes=2, exclusive=True, amounts_per_task={"memory": "1GiB"}),
        _changed(more={"x": 1}),
        _changed(attributes=None),
        _changed(tasks=[{"command": ["a"], "slot": "task", "count": {"per_slot": 1}, "attributes": {"x": [1]}}]),
    ],
)
def test_a_jobspec_in_parts_is_the_whole_one(memo: JobspecMemo, encode: Callable[[Any], bytes], obj: Any) -> None:
    for _ in range(2):
        found, whole = memo.read(encode(obj)), Jobspec.parse(obj)
        assert found == whole
        assert found.bare == whole.bare


@pytest.mark.parametrize(
    "obj",
    [
        _changed(version=2),
        _changed(version=True),
        _changed(resources=5),
        _changed(attributes=[]),
        _changed(tasks=[]),
        _changed(tasks=[{"command": [5], "slot": "task", "count": {"per_slot": 1}}]),
        _changed(tasks=[{"command": ["a"], "slot": "other", "count": {"per_slot": 1}}]),
        _changed(tasks=[{"command": ["a"], "slot": "task", "count": {"per_slot": 1}, "more": 1}]),
        {key: value for key, value in _spec().items() if key != "tasks"},
    ],
)
def test_what_is_wrong_is_said_of_the_whole(obj: Any) -> None:
    with pytest.raises(InvalidValue) as whole:
        Jobspec.parse(obj)
    with pytest.raises(InvalidValue) as parts:
        JobspecMemo().read(codec.pack(obj))
    assert str(parts.value) == str(whole.value)


def test_what_jobs_have_in_common_is_read_once() -> None:
    memo = JobspecMemo()
    one, other = memo.read(codec.pack(_spec("a"))), memo.read(codec.pack(_spec("b")))
    assert one.request is other.request
    assert one.raw["attributes"] is other.raw["attributes"]
    assert (one.command, other.command) == (("a",), ("b",))


def test_members_are_limited_over_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    data = codec.pack(_spec(*map(str, range(50))))
    JobspecMemo().read(data)
    for module in ("fluxsched.core.jobspec", "fluxsched.runtime.messaging.payload_memo"):
        monkeypatch.setattr(f"{module}.MEMBERS_MAX", 60)
    with pytest.raises(InvalidValue, match="more than 60 members"):
        JobspecMemo().read(data)


def test_no_more_and_no_larger_ones_are_remembered_than_the_limits_say(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []

    def note(data: bytes) -> bytes:
        read.append(data)
        return data

    memo = PayloadMemo(note, SPECS_KEPT, SPEC_BYTES_MAX)
    for number in range(SPECS_KEPT + 1):
        memo.read(b"%d" % number)
    memo.read(b"%d" % SPECS_KEPT)
    memo.read(b"0")
    assert read[SPECS_KEPT:] == [b"%d" % SPECS_KEPT, b"0"]
    large = bytes(SPEC_BYTES_MAX + 1)
    assert [memo.read(large), memo.read(large)] == read[-2:]
    assert payload_memo.ObjectMemo(len).of(large) == len(large)

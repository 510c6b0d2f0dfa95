"""Values made of payloads are made once."""

from __future__ import annotations

import json

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue
from fluxsched.messaging import memo as payload_memo
from fluxsched.messaging.memo import JSON, SPEC_BYTES_MAX, SPECS_KEPT, JobspecMemo, PayloadMemo
from fluxsched.protocol import framing

CONSTRAINT = {"properties": ["fast"]}


def _spec(*words, **options):
    return Jobspec.from_command(words or ("true",), cwd="/", environment={"A": "b"}, **options).to_json()


def _changed(**changes):
    return _spec() | changes


@pytest.mark.parametrize(
    ("memo", "encode"), [(JobspecMemo(), framing.pack), (JobspecMemo(JSON), lambda obj: json.dumps(obj).encode())]
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
def test_a_jobspec_in_parts_is_the_whole_one(memo, encode, obj):
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
def test_what_is_wrong_is_said_of_the_whole(obj):
    with pytest.raises(InvalidValue) as whole:
        Jobspec.parse(obj)
    with pytest.raises(InvalidValue) as parts:
        JobspecMemo().read(framing.pack(obj))
    assert str(parts.value) == str(whole.value)


def test_what_jobs_have_in_common_is_read_once():
    memo = JobspecMemo()
    one, other = memo.read(framing.pack(_spec("a"))), memo.read(framing.pack(_spec("b")))
    assert one.request is other.request
    assert one.raw["attributes"] is other.raw["attributes"]
    assert (one.command, other.command) == (("a",), ("b",))


def test_members_are_limited_over_all_parts(monkeypatch):
    data = framing.pack(_spec(*map(str, range(50))))
    JobspecMemo().read(data)
    for module in ("fluxsched.core.jobspec", "fluxsched.messaging.memo"):
        monkeypatch.setattr(f"{module}.MEMBERS_MAX", 60)
    with pytest.raises(InvalidValue, match="more than 60 members"):
        JobspecMemo().read(data)


def test_no_more_and_no_larger_ones_are_remembered_than_the_limits_say(monkeypatch):
    read = []

    def note(data):
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
    assert payload_memo.ObjectMemo(len).get(large) == len(large)


def test_a_memo_is_bounded_in_bytes():
    read = []
    memo = PayloadMemo(lambda data: read.append(data) or data, SPECS_KEPT, SPEC_BYTES_MAX, memo_bytes_max=1000)
    first, second, third = b"1" * 400, b"2" * 400, b"3" * 400
    for data in (first, second, third, second, third, first, third):
        memo.read(data)
    assert read == [first, second, third, first], "the third has displaced the first, which was used last"


def test_jobspecs_are_remembered_from_the_second_time_on():
    """Where no two are alike, those that are kept cost more than they could spare."""
    read = []
    memo = PayloadMemo(lambda data: read.append(data) or data, 2, SPEC_BYTES_MAX, from_second=True)
    for data in (b"1", b"2", b"1", b"1", b"2", b"2"):
        memo.read(data)
    assert read == [b"1", b"2", b"1", b"2"]
    for data in (b"3", b"4", b"5", b"3"):
        memo.read(data)
    assert read[4:] == [b"3", b"4", b"5", b"3"]
    spec, specs = framing.pack(_spec("a")), JobspecMemo()
    first, second, third = [specs.read(spec) for _ in range(3)]
    assert first is not second is third


def test_what_is_made_of_objects_is_bounded_in_bytes():
    made = []
    memo = payload_memo.ObjectMemo(lambda thing: made.append(thing) or bytes(400), len, 1000)
    one, two, three = {}, {}, {}
    for thing in (one, one, two, three, three, one):
        memo.get(thing)
    assert [id(thing) for thing in made] == [id(one), id(two), id(three), id(one)]


def _named(name, **environment):
    return _changed(attributes={"system": {"job": {"name": name}, "environment": environment}})


def test_jobs_with_equal_environments_have_one_between_them():
    memo = JobspecMemo(environments_kept=2)
    one, other = memo.read(framing.pack(_named("one", A="1"))), memo.read(framing.pack(_named("other", A="1")))
    assert one.environment is other.environment is other.raw["attributes"]["system"]["environment"]
    assert one.job_name != other.job_name
    assert memo.read(framing.pack(_named("two", B="1"))).environment == {"B": "1"}
    assert memo.read(framing.pack(_named("three", C="1"))).environment == {"C": "1"}
    assert memo.read(framing.pack(_named("four", A="1"))).environment is not one.environment, "only two are kept"


def test_an_environment_of_the_same_hash_is_not_taken_for_another():
    environments = payload_memo.Environments()
    one, other = {"A": "1"}, {"A": "2"}
    environments._known[hash(tuple(other.items()))] = one
    assert environments.shared(other) is other

"""Rows of jobs: written in parts, compressed, and read as they were written."""

from __future__ import annotations

import errno
import json
import shutil
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import Refused
from fluxsched.instance.backup import restore
from fluxsched.messaging.memo import JobspecMemo
from fluxsched.protocol import framing
from fluxsched.store import jobs as storage_parts
from fluxsched.store.integrity import add_function, checksummed
from fluxsched.store.jobs import (
    COMPRESSED_BYTES_MIN,
    EXPANDED_BYTES_MAX,
    JOBSPEC_PHRASES,
    KEY_LEVELS,
    KEYS,
    NAMES,
    NO_JOBSPEC,
    NOTED_MAX,
    PARTS_READ_MAX,
    PER_JOB,
    R_PHRASES,
    EventPacker,
    Parts,
    compressed,
    ended_last,
    expanded,
    id_list,
    known_parts,
    pack_events,
    pack_resources,
    parts_of_only,
    read_active,
    read_ended,
    read_events,
    read_job,
    unpack_events,
)
from fluxsched.store.repair import salvage
from fluxsched.store.schema import prepare
from fluxsched.store.store import DELETES, INSERTS

# Rows of jobs: what is read is what was written, and what many have in common is there once.


KEY = st.sampled_from(KEYS)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**53) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | KEY, inner, max_size=3),
    max_leaves=6,
)
CONTEXTS = st.dictionaries(st.text(max_size=6) | KEY, VALUES, max_size=3)
EVENTS = st.fixed_dictionaries(
    {"timestamp": st.floats(0, 4e9) | st.sampled_from([0, 1.0, 1795369311.3057373]), "name": st.sampled_from(NAMES)},
    optional={"context": CONTEXTS},
) | st.dictionaries(st.sampled_from(["timestamp", "name", "context", "more"]), VALUES, max_size=4)
VARIABLES = st.dictionaries(st.text(max_size=4), st.none() | st.text(max_size=60), max_size=6)
ENVIRONMENT = {f"VARIABLE_{number}": "x" * 40 for number in range(10)}


@pytest.fixture
def database():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    prepare(connection, "memory")
    yield connection
    connection.close()


def parts_of(database):
    """As an instance has them that has just started."""

    def add(row):
        database.execute("INSERT INTO part VALUES (?, ?, ?, ?)", checksummed("part", [row]))

    return Parts(add, *known_parts(database.execute))


def submit(database, parts, jobid, jobspec, ended_s=0):
    events = pack_events([{"timestamp": 1.5, "name": "submit"}])
    row = (jobid, ended_s, events, *parts.split(jobspec), "")
    database.execute("".join(INSERTS["job_log"]), checksummed("job_log", [row]))


def count(database):
    return int(database.execute("SELECT count(*) FROM part").fetchone()[0])


def spec(command, **system):
    task = {"command": [command], "slot": "task", "count": {"per_slot": 1}}
    return {"version": 1, "resources": [], "tasks": [task], "attributes": {"system": system}}


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(EVENTS, max_size=6))
def test_events_are_read_as_they_were_written(events):
    assert unpack_events(bytes(pack_events(events))) == events


def test_stretches_of_the_same_events_are_packed_once():
    def ended(time_s, status):
        return [
            {"timestamp": time_s, "name": "finish", "context": {"status": status}},
            {"timestamp": time_s, "name": "clean"},
        ]

    packer, events = EventPacker(), ended(1.5, 0)
    first = packer.pack(events)
    assert first[0] == 1
    assert packer.pack([{"timestamp": 1.5, "name": "start"}])[0] == 0
    assert packer.pack(events) is first
    for found in (packer.pack(ended(1.5, 0)), packer.pack(ended(1.5, False))):
        assert found is not first
    for time_s, status in ((1.5, 9), (2.5, 9), (2.5, 0), (1.5, 0)):
        assert unpack_events(bytes(packer.pack(ended(time_s, status))[1])) == ended(time_s, status)


def test_values_of_users_are_packed_as_they_are():
    """1 equals true, which a memo or the annotations of a grant may have."""
    packer = EventPacker()
    for name, key in (("memo", "ok"), ("alloc", "annotations"), ("start", "memo")):
        for value in (1, True, 1.0):
            events = [{"timestamp": 1.5, "name": name}, {"timestamp": 1.5, "name": "memo", "context": {key: value}}]
            assert repr(unpack_events(bytes(packer.pack(events)[1]))) == repr(events)


def test_annotations_that_jobs_share_are_coded_once_up_to_a_number():
    packer = EventPacker()
    for turn in range(NOTED_MAX + 2):
        noted = {
            "sched": {"resource_summary": f"rank{turn}/core0", "selection_type": "immediate"},
            "user": {"status": turn},
        }
        for context in ({"annotations": noted}, {"annotations": {**noted}}, {"annotations": noted}, {}):
            events = [{"timestamp": 1.5, "name": "alloc", "context": context}]
            assert packer.pack(events) == (0, pack_events(events))
            assert unpack_events(bytes(packer.pack(events)[1])) == events
        assert len(packer._noted) <= NOTED_MAX


@pytest.mark.parametrize("number", [-1, len(NAMES), None, "submit", 1.0])
def test_what_is_no_number_of_an_event_is_none(number):
    """-1 was read as the last name that there is."""
    with pytest.raises((ValueError, LookupError)):
        unpack_events(msgspec.msgpack.encode([1.5, number, None]))


def test_a_key_s_number_that_is_none_is_noticed():
    with pytest.raises(LookupError):
        unpack_events(msgspec.msgpack.encode([1.5, NAMES.index("finish"), {len(KEYS): 0}]))


def test_keys_are_numbers_on_the_upper_levels_alone():
    context = {"status": 0}
    for _ in range(KEY_LEVELS + 1):
        context = {"usage": context}
    event = {"timestamp": 1.5, "name": "finish", "context": context}
    packed = bytes(pack_events([event]))
    assert (packed.count(b"usage"), packed.count(b"status"), unpack_events(packed)) == (0, 1, [event])


def submitted(*options: str) -> dict[str, object]:
    return Jobspec.from_command(["/bin/true", *options], cwd="/tmp", environment=ENVIRONMENT, queue="q").to_json()


ON_NODES = Jobspec.from_command(["a"], nodes=2, gpus_per_task=1, duration_s=60.0, test_run_duration_s=1.0).to_json()
GRANTED = {
    "version": 1,
    "execution": {
        "R_lite": [{"rank": "0", "children": {"core": "0-3", "gpu": "0"}}, {"rank": "9", "children": {"core": "2"}}],
        "starttime": 1795943705.4026787, "expiration": 0.0, "nodelist": ["fake0", "fake9"], "nslots": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("jobspec", [submitted(), submitted("\2\x13"), ON_NODES])
def test_long_texts_of_jobspecs_and_resources_take_a_byte(database, jobspec):
    parts = parts_of(database)
    row = (1, 0, pack_events([]), *parts.split(jobspec), pack_resources(GRANTED))
    database.execute("".join(INSERTS["job_log"]), checksummed("job_log", [row]))
    assert read_job(database.execute, 1) == {"eventlog": [], "jobspec": jobspec, "R": GRANTED}
    assert parts.split(JobspecMemo().read(framing.pack(jobspec)).raw).text == row[3], "as it is read from a message"
    [bare] = read_ended(database.execute, [1], pytest.fail)
    assert json.loads(bare.jobspec)["tasks"] == jobspec["tasks"]
    assert len(row[3]) < len(json.dumps(jobspec)) / 3
    assert len(row[-1]) < len(json.dumps(GRANTED)) / 2


def test_each_long_text_has_a_byte_of_its_own_that_json_never_has():
    marks = [mark for mark, _ in (*JOBSPEC_PHRASES, *R_PHRASES)]
    assert b"".join(marks) == bytes(range(2, 2 + len(marks)))
    assert 2 + len(marks) <= ord(" ")


def test_events_of_one_time_take_few_bytes():
    events = [{"timestamp": 1795369311.3057373, "name": name} for name in NAMES[:4]]
    assert len(pack_events(events)) < 24


@settings(max_examples=30)
@given(st.lists(st.fixed_dictionaries({}, optional={"environment": VARIABLES, "files": VARIABLES}), max_size=3))
def test_jobspecs_are_read_as_they_were_written(systems):
    database = sqlite3.connect(":memory:", isolation_level=None)
    prepare(database, "memory")
    parts = parts_of(database)
    specs = [spec("a\0b\1", **system) for system in systems]
    specs += [spec("c", environment={**ENVIRONMENT, **system.get("environment", {})}) for system in systems]
    for jobid, jobspec in enumerate(specs):
        submit(database, parts, jobid, jobspec)
    found = [read_job(database.execute, jobid) for jobid in range(len(specs))]
    assert [job and job["jobspec"] for job in found] == json.loads(json.dumps(specs))
    database.close()


def test_equal_environments_and_files_are_kept_once_also_by_the_next_instance(database):
    parts, script = parts_of(database), {"script": {"data": "sleep 1\n" * 100, "mode": 33152}}
    for jobid in range(3):
        submit(database, parts, jobid, spec(f"task{jobid}", environment=dict(ENVIRONMENT), files=dict(script)))
    assert count(database) == 2
    submit(database, parts_of(database), 3, spec("later", environment=dict(ENVIRONMENT), cwd="/tmp"))
    assert count(database) == 2
    job = read_job(database.execute, 3)
    assert job is not None
    assert job["jobspec"] == spec("later", environment=ENVIRONMENT, cwd="/tmp")
    (size,) = database.execute("SELECT max(length(jobspec)) FROM job_log").fetchone()
    assert size < 300


def test_the_variable_that_numbers_the_jobs_of_an_array_makes_no_environment_of_its_own(
    database,
):
    parts = parts_of(database)
    for jobid in range(3):
        submit(database, parts, jobid, spec("task", environment={PER_JOB: str(jobid), **ENVIRONMENT}))
    assert count(database) == 1
    job = read_job(database.execute, 2)
    assert job is not None
    assert job["jobspec"]["attributes"]["system"]["environment"] == {PER_JOB: "2", **ENVIRONMENT}


def test_a_part_that_was_forgotten_is_stored_again(database):
    parts = parts_of(database)
    submit(database, parts, 1, spec("a", environment=ENVIRONMENT))
    ((first,),) = database.execute("SELECT id FROM part").fetchall()
    parts.forget([first])
    database.execute("DELETE FROM part")
    submit(database, parts, 2, spec("a", environment=ENVIRONMENT))
    ((second,),) = database.execute("SELECT id FROM part").fetchall()
    assert second > first


@pytest.mark.parametrize("table", ["job_log", "part"])
def test_the_removal_of_some_jobs_looks_at_no_others(database, table):
    """A search for further jobs with a part once read all rows of all jobs, 60 ms for 100,000 of them."""
    plan = [row[-1] for row in database.execute(f"EXPLAIN QUERY PLAN {DELETES[table]}", (id_list([1, 2]),))]
    assert [step for step in plan if step.startswith("SCAN") and "json_each" not in step] == []


def test_of_the_parts_of_removed_jobs_those_stay_that_others_have(database):
    parts, own = parts_of(database), {"OWN": "x" * 200}
    script = {"script": {"data": "sleep 1\n" * 100, "mode": 33152}}
    submit(database, parts, 1, spec("a", environment=ENVIRONMENT, files=script))
    submit(database, parts, 2, spec("a", environment=own, files=script))
    submit(database, parts, 3, spec("a", environment=ENVIRONMENT))
    assert len(gone := parts_of_only(database.execute, [1, 2])) == 2
    for table, removed in (("job_log", [1, 2]), ("part", [1, 2, 3])):
        database.execute(DELETES[table], (id_list(removed),))
    assert count(database) == 1, f"all but the environment of job 3: {gone}"
    assert read_job(database.execute, 3)["jobspec"] == spec("a", environment=ENVIRONMENT)


def test_of_too_many_parts_the_latest_are_found_again(database, monkeypatch):
    monkeypatch.setattr(storage_parts, "PARTS_KNOWN_MAX", 2)
    parts = parts_of(database)
    for jobid in (1, 2, 3, 3, 1):
        submit(database, parts, jobid, spec("a", environment={**ENVIRONMENT, "JOB": str(jobid)}))
    assert count(database) == 4


def test_more_objects_and_texts_than_are_kept_are_all_read(database):
    parts, number = parts_of(database), max(PARTS_READ_MAX, storage_parts.OBJECTS_KNOWN_MAX) + 2
    environments = [{**ENVIRONMENT, "JOB": str(jobid)} for jobid in range(number)]
    for jobid, environment in enumerate(environments * 2):
        submit(database, parts, jobid, spec("a", environment=environment))
    assert count(database) == number
    jobs = [json.loads(job.jobspec or b"") for job in read_active(database.execute, pytest.fail)]
    assert [job["attributes"]["system"]["environment"] for job in jobs] == environments * 2


def test_an_ended_job_is_restored_without_its_large_parts(database):
    parts = parts_of(database)
    for jobid, ended_s in ((1, 5), (2, 0), (3, 9), (4, 7)):
        submit(database, parts, jobid, spec("a", environment={PER_JOB: "1", **ENVIRONMENT}, files="f" * 500), ended_s)
    read = database.execute
    last = ended_last(read, 2)
    assert last == [3, 4]
    found = [*read_active(read, pytest.fail), *read_ended(read, [*last, 99], pytest.fail)]
    jobs = {job.jobid: json.loads(job.jobspec or b"") for job in found}
    assert {jobid: jobspec["attributes"]["system"] for jobid, jobspec in jobs.items()} == {
        2: {"environment": {PER_JOB: "1", **ENVIRONMENT}, "files": "f" * 500},
        3: {"environment": {PER_JOB: "1"}, "files": None},
        4: {"environment": {PER_JOB: "1"}, "files": None},
    }


def test_a_job_that_is_not_there_is_none(database):
    assert read_job(database.execute, 7) is None
    assert read_events(database.execute, 7) is None
    assert NO_JOBSPEC[0] == ""


# Parts are compressed on disk; what is read is what was written, and a damaged one takes no memory without end.


ENVIRONMENT_OF_MANY = {f"VARIABLE_{number}": f"/opt/software/{number}/lib" for number in range(100)}
JSON = st.sampled_from([b"{", b"[", b'"', b"-", b"7", b"t", b"f", b"n"])


@settings(max_examples=50)
@given(JSON, st.binary(max_size=64), st.integers(1, 200))
@example(b'"', b"x" * COMPRESSED_BYTES_MIN, 1)
def test_what_is_read_is_what_was_written_whether_compressed_or_not(first, rest, times):
    text = first + rest * times
    assert expanded(compressed(text)) == text
    assert expanded(text) == text, "as an earlier version kept it"
    assert len(compressed(text)) <= len(text)


@pytest.mark.slow
def test_small_and_very_large_ones_stay_as_they_are():
    small, large = b"{" * (COMPRESSED_BYTES_MIN - 1), b"{" * (EXPANDED_BYTES_MAX + 1)
    assert compressed(small) == small
    assert compressed(large) == large
    assert len(compressed(large[1:])) < EXPANDED_BYTES_MAX // 100
    assert expanded(compressed(large[1:])) == large[1:]


WHOLE = zlib.compress(b"{" * 4096)


@pytest.mark.parametrize(
    ("kept", "why"),
    [
        (zlib.compress(b"{" * (EXPANDED_BYTES_MAX + 1)), f"it expands to more than {EXPANDED_BYTES_MAX} bytes"),
        (WHOLE[:-1], "its end is missing"),
        (WHOLE[:-1] + bytes([WHOLE[-1] ^ 1]), "incorrect data check"),
        (b"x", "its end is missing"),
    ],
)  # fmt: skip
def test_a_damaged_part_is_refused(kept, why):
    with pytest.raises(Refused, match=why) as raised:
        expanded(kept)
    assert raised.value.errnum == errno.EIO


@pytest.fixture
async def left(world):
    """The state of an instance that has ended, and a job of it with an environment that was compressed."""
    statedir = world.directory / "state"
    site = await world.bare(fake="1x1", statedir=statedir)
    jobspec = Jobspec.from_command(["true"], environment=ENVIRONMENT_OF_MANY, cwd="/")
    jobid = (await world.second(site).ok("job-manager.submit", {"jobspec": jobspec.to_json()}))["id"]
    await world.stop(site)
    return statedir / "state.sqlite", jobid


def environment_of(job):
    return job["jobspec"]["attributes"]["system"]["environment"]


async def test_an_environment_is_kept_compressed_and_found_again_after_restore_and_salvage(world, left, tmp_path):
    path, jobid = left
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT length(value) FROM part").fetchone()[0] < len(str(ENVIRONMENT_OF_MANY)) // 4
        assert environment_of(read_job(connection.execute, jobid)) == ENVIRONMENT_OF_MANY
    assert salvage(path, tmp_path / "salvaged").lost == []
    restore(Path(shutil.copy(tmp_path / "salvaged", tmp_path / "saved")), tmp_path / "restored")
    site = await world.bare(fake="1x1", statedir=tmp_path / "restored")
    found = await world.second(site).ok("job-manager.lookup", {"id": jobid, "keys": ["jobspec"]})
    assert environment_of(found) == ENVIRONMENT_OF_MANY


@pytest.mark.slow
async def test_salvage_leaves_out_a_job_whose_environment_expands_without_end(left, tmp_path):
    path, jobid = left
    with closing(sqlite3.connect(path)) as connection:
        add_function(connection)
        large = zlib.compress(b"{" * (EXPANDED_BYTES_MAX + 1))
        connection.execute("UPDATE part SET value = ?1, crc = row_checksum(id, digest, ?1)", (large,))
        connection.commit()
    assert salvage(path, tmp_path / "salvaged").lost == [f"job {format_f58(jobid)}, of which parts are missing"]
    with closing(sqlite3.connect(tmp_path / "salvaged")) as connection:
        assert read_job(connection.execute, jobid) is None

"""The two clients."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import sys
from pathlib import Path

import pytest

from fluxsched.client import aio
from fluxsched.client.aio import AsyncHandle
from fluxsched.client.blocking import Handle
from fluxsched.client.calls import InstanceCalls, TypedCall, as_object
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue, LimitExceeded, RPCError
from fluxsched.instance.enclosing import Parent, attributes_of, environment_of, inside, job_variables
from fluxsched.protocol import framing
from fluxsched.protocol.framing import BUNDLE_MESSAGES_MAX, decode, encode, make_error, make_response, unpack_bundle
from fluxsched.protocol.sessions import Calls
from fluxsched.protocol.topics import TOPICS
from fluxsched.system.files import base_directory, level_here

# The table of typed calls on both clients: what is sent, what comes back, and how long it is waited for.


SPEC = Jobspec.from_command(["true"])


def test_the_words_of_a_command_are_no_jobspec():
    with pytest.raises(InvalidValue, match=r"\['true'\] is no jobspec: give Jobspec.from_command"):
        as_object(["true"])


CALLS = {name: call for name, call in vars(InstanceCalls).items() if isinstance(call, TypedCall)}
ARGUMENTS = {
    "submit": (SPEC, 20), "submit_array": (SPEC, [["tasks", 0, "command", 0]], [["a"], ["b"]]),
    "wait": (7,), "cancel": (7, "enough"), "requeue": (7, "again"),
    "drain": ("0-3", "fan"), "undrain": ("0",),
    "watch": (["clean"],), "watch_resources": (), "trace": (["sched."],), "running": ("0-3", 10), "plan": ("lab", 10),
    "when": ([{"version": 1}],),
    "samples": (1.0, 2.0, 9), "intervals": (1.0, None, "0-3"), "report": ("bank", 1.0),
    "reasons": ([7],), "changes": (7,), "add_outage": ("0-3", 1.0, 2.0), "remove_outage": ("upd",), "outages": (),
    "add_notice": ("slow", 4e9), "remove_notice": ([1],), "notices": (),
}  # fmt: skip


class Wire:
    """A connection whose other end is the test."""

    lost: str | None = None

    def __init__(self):
        self.sent = []
        self.bundles = 0
        self.arrived = []

    def start(self, loop, wake):
        self.wake = wake

    def receive(self, limit):
        taken, self.arrived = self.arrived[:limit], self.arrived[limit:]
        if self.arrived:
            asyncio.get_running_loop().call_soon(self.wake)
        return taken

    def send(self, frames):
        self.bundles += 1
        self.sent += unpack_bundle(decode(list(frames)))

    def close(self): ...

    def answer(self, *responses):
        self.arrived += [encode(response) for response in responses]
        self.wake()


@pytest.fixture
async def wire():
    return Wire()


@pytest.fixture
async def handle(wire):
    async with AsyncHandle(client=wire) as handle:
        yield handle


@pytest.mark.parametrize("name", CALLS)
def test_each_call_is_what_its_topic_declares(name):
    call = CALLS[name]
    topic = TOPICS[call.topic]
    assert (call.response, call.result is None) == (topic.response, topic.streaming)
    assert type(call.request(None, *ARGUMENTS[name])) is topic.request


def test_the_page_names_each_call():
    page = (Path(__file__).parents[2] / "examples" / "README.md").read_text()
    assert dict(re.findall(r"^\| `(\w+)\(.*?\)` \| `([\w.-]+)` ", page, re.M)) == {
        name: call.topic for name, call in CALLS.items()
    }


def test_both_clients_send_the_same_and_read_the_same():
    def said(message):
        return message.topic, message.payload, message.flags  # each client begins its matchtags anywhere

    async def by_async(name):
        wire = Wire()
        async with AsyncHandle(client=wire) as handle:
            calling = asyncio.ensure_future(getattr(handle, name)(*ARGUMENTS[name]))
            await asyncio.sleep(0)
            wire.answer(make_response(wire.sent[0], framing.pack(ANSWERS[name])))
            return said(wire.sent[0]), await calling

    def by_blocking(name):
        handle, wire = Handle.__new__(Handle), Wire()
        handle._reconnect_s, handle._is_away = 0.0, False
        InstanceCalls.__init__(handle)
        handle._client = wire  # type: ignore[assignment]
        handle.uri = ""
        wire.receive = lambda *_: encode(make_response(wire.sent[0], framing.pack(ANSWERS[name])))  # type: ignore[method-assign, assignment, return-value]
        return (lambda result: (said(wire.sent[0]), result))(getattr(handle, name)(*ARGUMENTS[name]))

    for name in ANSWERS:
        assert asyncio.run(by_async(name)) == by_blocking(name)


ANSWERS = {
    "submit": {"id": 7}, "wait": {"id": 7, "success": False, "status": 256, "errstr": "exit 1"}, "cancel": {},
    "drain": {}, "undrain": {}, "running": {"jobs": [[7, "0", 1.0, 0.0, 4, 1000, "", "true", []]], "left_out": 0},
    "reasons": {"jobs": [[7, "no", None, False]]}, "when": {"estimates": []},
    "plan": {"jobs": [[7, 1.0, 0.0, None, 1, 4, True]], "left_out": 0},
}  # fmt: skip


async def test_a_call_can_be_awaited_gathered_and_made_a_task(wire, handle):
    task = asyncio.create_task(handle.submit(SPEC))
    gathering = asyncio.gather(handle.submit(SPEC), handle.wait(3), return_exceptions=True)
    await asyncio.sleep(0)
    assert [message.topic for message in wire.sent] == ["job-manager.submit"] * 2 + ["job-manager.wait"]
    assert wire.bundles == 1
    first, second, third = wire.sent
    wire.answer(
        make_error(first, errno.EINVAL, "no"),
        make_response(second, framing.pack({"id": 2})),
        make_error(third, errno.ENOENT),
    )
    with pytest.raises(RPCError, match="no"):
        await task
    number, fault = await gathering
    assert (number, fault.errnum) == (2, errno.ENOENT)


async def test_a_task_of_a_call_can_be_cancelled(wire, handle):
    task = asyncio.create_task(handle.wait(3))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    wire.answer(make_response(wire.sent[0], framing.pack({"id": 3, "success": True, "status": 0})))
    assert len(handle.calls) == 0, "the late answer was taken, and dropped"


async def test_a_full_bundle_leaves_before_the_turn_ends(wire, handle):
    replies = [handle.wait(number) for number in range(BUNDLE_MESSAGES_MAX + 1)]
    assert len(wire.sent) == BUNDLE_MESSAGES_MAX
    await asyncio.sleep(0)
    assert (len(wire.sent), wire.bundles) == (BUNDLE_MESSAGES_MAX + 1, 2)
    for reply in replies:
        reply.cancel()  # type: ignore[attr-defined]


async def test_what_cannot_be_sent_is_said_to_who_awaits_it(handle, wire):
    handle.calls = Calls(in_flight_max=1)
    waiting, refused = handle.wait(1), handle.wait(2)
    with pytest.raises(LimitExceeded):
        await refused
    wire.lost = "gone"
    wire.wake()
    with pytest.raises(RPCError, match="gone"):
        await waiting


@pytest.mark.parametrize("is_usual", [True, False])
async def test_an_answer_that_does_not_come(is_usual, handle, wire, monkeypatch):
    monkeypatch.setattr(aio, "TIMEOUT_S", 0.01 if is_usual else 60.0)
    monkeypatch.setattr(aio, "LOOK_S", 0.005)
    later = handle.rpc("instance.info", timeout_s=None)
    with pytest.raises(RPCError, match=r"instance\.ready: no answer") as raised:
        await handle.rpc("instance.ready", timeout_s=0.01)
    assert raised.value.errnum == errno.ETIMEDOUT
    wire.answer(make_response(wire.sent[1], None), make_response(wire.sent[0], framing.pack({"uri": "x"})))
    assert await later == {"uri": "x"}


async def test_a_flood_of_answers_leaves_room_for_other_tasks(wire, handle, monkeypatch):
    monkeypatch.setattr(aio, "RECEIVE_MAX", 2)
    replies = [handle.rpc("instance.info") for _ in range(5)]
    await asyncio.sleep(0)
    wire.answer(*[make_response(message, framing.pack({})) for message in wire.sent])
    assert [reply.done() for reply in replies] == [True, True, False, False, False]
    assert await asyncio.gather(*replies) == [{}] * 5


# What an instance inside another one is told by its environment, and tells what runs in it.


PARENT = Parent("ipc:///run/fluxsched-0-a/instance.sock", "local:///run/fluxsched-0-a/local-0", 1)


def test_an_initial_program_is_not_the_job_that_its_instance_is():
    """FLUX_JOB_ID of the outer instance was looked up in the inner one: `start` in a `start` in a job failed."""
    job = {"FLUX_JOB_ID": "ƒA", "FLUX_JOB_SIZE": "1", "FLUX_TASK_RANK": "0", "PMI_FD": "5", "FLUX_JOB_CC": "3"}
    kept = {"FLUX_JOB_TMPDIR": "/tmp/x", "PATH": "/bin", "HOME": "/root", "FLUXSCHED_LEVEL": "1"}
    found = inside({**job, **kept, "FLUXSCHED_PARENT_URI": "ipc:///stale"}, {"FLUXSCHED_LEVEL": "2"})
    assert job.keys() & found.keys() == set()
    assert "FLUXSCHED_PARENT_URI" not in found
    assert (found["FLUX_ENCLOSING_ID"], found["FLUXSCHED_LEVEL"], found["HOME"]) == ("ƒA", "2", "/root")


def test_outside_of_our_instances_a_job_id_is_foreign():
    assert inside({"FLUX_JOB_ID": "ƒA", "PATH": "/bin"}, {})["FLUX_JOB_ID"] == "ƒA"


def test_a_script_finds_our_commands():
    ours = str(Path(sys.executable).parent)
    assert inside({"PATH": "/nowhere"}, {})["PATH"] == f"/nowhere{os.pathsep}{ours}"
    assert inside({"PATH": ours}, {})["PATH"] == ours


def test_level_and_parent_are_told_to_all_that_runs_inside():
    assert environment_of("ipc:///x", None) == {"FLUXSCHED_URI": "ipc:///x", "FLUXSCHED_LEVEL": "1"}
    assert environment_of("ipc:///x", PARENT) == {
        "FLUXSCHED_URI": "ipc:///x", "FLUXSCHED_LEVEL": "3", "FLUXSCHED_PARENT_URI": PARENT.uri,
    }  # fmt: skip
    mine = job_variables("ipc:///x", "local:///x", PARENT)
    assert (mine["FLUXSCHED_URI"], mine["FLUX_URI"]) == ("ipc:///x", "local:///x")
    assert attributes_of(None) == {"instance-level": "0"}
    assert attributes_of(PARENT) == {"instance-level": "2", "parent-uri": PARENT.local_uri}
    assert attributes_of(PARENT._replace(local_uri=None)) == {"instance-level": "2"}


@pytest.mark.parametrize(("text", "level"), [("", 0), ("2", 2), ("x", 0), ("-1", 0), ("9" * 5000, 0)])
def test_a_level_that_is_no_number_is_none(text, level, monkeypatch):
    monkeypatch.setenv("FLUXSCHED_LEVEL", text)
    assert level_here() == level


def test_a_nested_instance_lives_beside_its_parent(tmp_path, monkeypatch):
    """Not below the job's TMPDIR: its socket's path would be too long, and nobody would look there."""
    here = tmp_path / "job"
    here.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(here))
    monkeypatch.setenv("FLUXSCHED_URI", f"ipc://{tmp_path}/fluxsched-0-a/instance.sock")
    monkeypatch.delenv("FLUXSCHED_LEVEL", raising=False)
    assert base_directory() == here
    monkeypatch.setenv("FLUXSCHED_LEVEL", "1")
    assert base_directory() == tmp_path
    monkeypatch.setenv("FLUXSCHED_URI", "tcp://127.0.0.1:5")
    assert base_directory() == here

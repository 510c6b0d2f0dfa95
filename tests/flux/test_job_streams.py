"""The streams of a job for unmodified Flux clients: eventlogs, output, input."""

from __future__ import annotations

import asyncio
import base64
import errno
import json
from typing import Any

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.executor import io
from fluxsched.flux.endpoint import (
    CURRENT,
    JSON_DECODE,
    OutputLog,
    _resources,
    all_tasks,
    exec_events,
    own_events,
    text_of,
)
from tests.r import r_of

# A job's logs as stock Flux clients follow them: its own, how it was executed, and what it printed.
#
# Of a job that grew and shrank they see events of ours beside theirs, its R as it is now, and all its tasks.


Flux = Any


def _system(**shell):
    return {"shell": {"options": {"output": shell}}}


async def test_a_run_as_flux_run_follows_it(flux):
    jobid = await flux.submit("sh", "-c", "echo hello; echo oops >&2; exit 3")
    log = flux.open("job-info.eventlog-watch", {"id": jobid, "path": "eventlog", "flags": 0})
    executed = flux.open("job-info.eventlog-watch", {"id": jobid, "path": "guest.exec.eventlog", "flags": 0})
    names = [json.loads(one["event"])["name"] async for one in flux.rest(executed)]
    assert names == ["init", "starting", "shell.init", "shell.start", "complete", "done"]
    output = await flux.events(jobid, "guest.output")
    assert output[0]["name"] == "header"
    assert output[0]["context"]["count"] == {"stdout": 1, "stderr": 1}
    data = [one["context"] for one in output[1:]]
    assert {"stream": "stdout", "rank": "0", "data": "hello\n"} in data
    assert {"stream": "stderr", "rank": "0", "data": "oops\n"} in data
    assert sum(one.get("eof", False) for one in data) == 2
    events = [json.loads(one["event"]) async for one in flux.rest(log)]
    names = ["submit", "validate", "depend", "priority", "alloc", "start", "finish", "release", "free", "clean"]
    assert [event["name"] for event in events] == names
    assert list(events[0]["context"]) == ["userid", "urgency", "flags", "version"]
    assert events[6]["context"] == {"status": 768}


async def test_the_output_comes_before_the_end(flux):
    jobid = await flux.submit("sh", "-c", "sleep 0.1; echo late", urgency=0)
    log = flux.open("job-info.eventlog-watch", {"id": jobid, "path": "eventlog", "flags": 0})
    output = flux.open("job-info.eventlog-watch", {"id": jobid, "path": "guest.output", "flags": 0})
    heard = []

    async def hear(tag):
        async for one in flux.rest(tag):
            event = json.loads(one["event"])
            heard.append(event.get("context", {}).get("data", event["name"]))

    await flux.ok("job-manager.urgency", {"id": jobid, "urgency": 16})
    await asyncio.gather(hear(log), hear(output))
    assert heard.index("late\n") < heard.index("finish")


async def test_each_line_of_each_task_is_an_event(flux):
    jobid = await flux.submit("sh", "-c", r"echo $FLUX_TASK_RANK; printf 'a\rb\n\377\n'", n=2)
    output = await flux.events(jobid, "guest.output")
    data = [one["context"] for one in output if "data" in one.get("context", {})]
    for rank in ("0", "1"):
        lines = [one for one in data if one["rank"] == rank]
        assert [one["data"] for one in lines] == [f"{rank}\n", "a\rb\n", base64.b64encode(b"\xff\n").decode()]
        assert lines[2]["encoding"] == "base64"
    taskmap = [one["context"]["taskmap"] for one in await flux.events(jobid, "guest.exec.eventlog")
               if one["name"] == "shell.start"]  # fmt: skip
    assert taskmap in ([{"version": 1, "map": [[0, 1, 2, 1]]}], [{"version": 1, "map": [[0, 2, 1, 1]]}])


async def test_output_in_a_file_is_said_to_be_there(flux, tmp_path):
    file = {"type": "file", "path": str(tmp_path / "o.{{id.dec}}")}
    jobid = await flux.submit("true", **_system(stdout=file))
    output = await flux.events(jobid, "guest.output")
    redirects = [one["context"] for one in output if one["name"] == "redirect"]
    path = str(tmp_path / f"o.{jobid}")
    assert redirects == [{"stream": name, "rank": "0", "path": path} for name in ("stdout", "stderr")]
    assert [one["name"] for one in output] == ["header", "redirect", "redirect"]


async def test_output_in_a_file_a_task_is_said_to_be_there(flux, tmp_path):
    file = {"type": "file", "path": str(tmp_path / "o.{{taskid}}")}
    jobid = await flux.submit("true", n=2, **_system(stderr=file))
    output = await flux.events(jobid, "guest.output")
    redirects = [one["context"] for one in output if one["name"] == "redirect"]
    assert redirects == [{"stream": "stderr", "rank": str(at), "path": str(tmp_path / f"o.{at}")} for at in (0, 1)]


async def test_a_job_that_never_runs_ends_all_its_streams(flux):
    jobid = await flux.submit("true", urgency=0)
    paths = ("eventlog", "guest.exec.eventlog", "guest.output")
    tags = [flux.open("job-info.eventlog-watch", {"id": jobid, "path": path, "flags": 0}) for path in paths]
    await flux.ok("job-manager.raise", {"id": jobid, "type": "cancel", "severity": 0})
    logs = [[json.loads(one["event"])["name"] async for one in flux.rest(tag)] for tag in tags]
    assert logs[0][-2:] == ["exception", "clean"]
    assert logs[1] == []


async def test_history_ends_with_an_empty_answer_if_that_is_wanted(flux):
    jobid = await flux.submit("sh", "-c", "echo one; sleep 60")
    tag = flux.open("job-info.eventlog-watch", {"id": jobid, "path": "eventlog", "flags": 2})
    names = []
    while (answer := (await flux.next(tag))[1]) is not None:
        names.append(json.loads(answer["event"])["name"])
    assert names[:4] == ["submit", "validate", "depend", "priority"]
    output = flux.open("job-info.eventlog-watch", {"id": jobid, "path": "guest.output", "flags": 0})
    while "one" not in str(await flux.next(output)):
        pass
    await flux.cancel_all()
    await flux.events(jobid)
    ended = await flux.all("job-info.eventlog-watch", {"id": jobid, "path": "guest.output", "flags": 2})
    assert ended[-1] is None
    assert "one" in str(ended[:-1])


async def test_a_stream_is_canceled(flux):
    jobid = await flux.submit("true", urgency=0)
    for path in ("eventlog", "guest.output"):
        tag = flux.open("job-info.eventlog-watch", {"id": jobid, "path": path, "flags": 0})
        assert (await flux.next(tag))[0] == 0
        flux.open("job-info.eventlog-watch-cancel", {"matchtag": tag}, flags=0x0F)
        async for _ in flux.rest(tag):
            pass
    assert not flux.instance.streams._logs
    assert not flux.instance.streams._followers


async def test_many_short_lines_come_whole_and_in_order(flux):
    jobid = await flux.submit("seq", "1", "6000")
    output = await flux.events(jobid, "guest.output")
    data = [one["context"]["data"] for one in output if "data" in one["context"]]
    assert data == [f"{number}\n" for number in range(1, 6001)]


@pytest.mark.plain_only("replaces a method of a Router")
async def test_who_reads_more_slowly_than_the_job_is_forgotten_is_told_its_output_and_end(flux, monkeypatch):
    instance = flux.instance
    instance.effects.manager.jobs.inactive_kept_max = 1
    with monkeypatch.context() as pager:
        pager.setattr(instance.router, "unsent_bytes", lambda peer: 1)
        jobid = await flux.submit("echo", "late")
        await flux.events(jobid)
        reading = flux.open("job-info.eventlog-watch", {"id": jobid, "path": "guest.output", "flags": 0})
        await flux.events(await flux.submit("true"))
        assert jobid not in instance.effects.manager.jobs.inactive
    events = [json.loads(one["event"]) async for one in flux.rest(reading)]
    assert [one["context"].get("data") for one in events if one["name"] == "data"] == ["late\n", None, None]
    assert events[-1]["timestamp"] == (await flux.events(jobid))[-1]["timestamp"]


RESIZED = [
    {"timestamp": float(at), "name": name} | ({} if context is None else {"context": context})
    for at, (name, context) in enumerate([
        ("submit", {"userid": 1000, "urgency": 16, "flags": 0, "version": 1}), ("validate", None), ("depend", None),
        ("priority", {"priority": 16}), ("alloc", {}), ("start", None), ("grow", {"R": r_of("3")}),
        ("shrink", {"ranks": "1", "note": "for another"}), ("release", {"ranks": "1", "final": False}),
        ("grow", {"R": r_of("1")}), ("resource-update", {"expiration": 90.0}),
    ])
]  # fmt: skip
RESIZED_RECORD = {
    "eventlog": RESIZED,
    "jobspec": Jobspec.from_command(["work"], nodes="1-8", exclusive=True, elastic=True).to_json(),
    "R": r_of("0-1"),
}


def test_the_log_has_a_line_for_each_event():
    lines = text_of(own_events(RESIZED)).splitlines()
    assert [json.loads(line)["name"] for line in lines] == [event["name"] for event in RESIZED]
    assert [event["name"] for event in exec_events(1, RESIZED, lambda: RESIZED_RECORD)] == [
        "init", "starting", "shell.init", "shell.start",
    ]  # fmt: skip


def test_r_is_as_it_is_now_or_as_it_was_at_the_start():
    now = _resources(1, RESIZED_RECORD, JSON_DECODE | CURRENT)
    assert now["execution"]["R_lite"] == [{"rank": "0-1,3", "children": {"core": "0-1"}}]
    assert now["execution"]["expiration"] == 90.0
    assert _resources(1, RESIZED_RECORD, JSON_DECODE) == r_of("0-1")


def test_output_is_that_of_all_tasks_that_ever_were():
    assert all_tasks(RESIZED_RECORD) == 4
    header = next(OutputLog(1, RESIZED_RECORD, lambda: 5.0).begin())
    assert header["context"]["count"] == {"stdout": 4, "stderr": 4}


# Input as stock Flux clients send it: to a service that each job has, in data events of RFC 24.


ENDING = {"stream": "stdin", "rank": "all", "eof": True}


def data(text, rank="all", **more):
    return {"stream": "stdin", "rank": rank, "data": text, **more}


async def begun(flux, *command, **options):
    """A job whose tasks run, and the topic of its input, as its log names it."""
    jobid = await flux.submit(*command, **options)
    tag = flux.open("job-info.eventlog-watch", {"id": jobid, "path": "guest.exec.eventlog", "flags": 0})
    async for one in flux.rest(tag):
        event = json.loads(one["event"])
        if event["name"] == "shell.init":
            return jobid, f"{event['context']['service']}.stdin"
    raise AssertionError("the job has no service")


async def printed(flux, jobid):
    """What each task has written to stdout."""
    found = {}
    for event in await flux.events(jobid, "guest.output"):
        context = event["context"]
        if context.get("stream") == "stdout" and "data" in context:
            found[context["rank"]] = found.get(context["rank"], "") + context["data"]
    return found


async def test_text_and_binary_go_to_all_tasks_until_the_end(flux):
    jobid, topic = await begun(flux, "sh", "-c", "od -An -c; sleep 0.5", n=2)
    assert await flux.ok(topic, data("ƒ\n")) is None
    assert await flux.ok(topic, data(base64.b64encode(b"\0\xff").decode(), encoding="base64")) is None
    assert await flux.ok(topic, ENDING) is None
    assert await flux.ask(topic, data("late")) == (errno.EPIPE, "the input of all tasks has ended")
    assert await printed(flux, jobid) == dict.fromkeys("01", " 306 222  \\n  \\0 377\n")
    errnum, text = await flux.ask(topic, data("late"))
    assert errnum == errno.ENOSYS
    assert "has ended" in text


async def test_some_tasks_may_be_sent_their_own(flux):
    jobid, topic = await begun(flux, "cat", n=3)
    assert await flux.ok(topic, {"stream": "stdin", "rank": "0,2", "eof": True}) is None
    assert await flux.ok(topic, {"stream": "stdin", "rank": "0-1", "eof": False, "data": ""}) is None
    assert await flux.ask(topic, data("x", rank="1-2")) == (errno.EPIPE, "the input of task 2 has ended")
    assert await flux.ok(topic, data("mine\n", rank="1", eof=True)) is None
    assert await printed(flux, jobid) == {"1": "mine\n"}


async def test_too_much_unread_input_ends_the_job_and_nothing_else(flux, monkeypatch):
    monkeypatch.setattr(io, "HELD_BYTES_MAX", 1 << 20)
    jobid, topic = await begun(flux, "sleep", "100")
    tags = [flux.open(topic, data("x" * 300_000), flags=0x0B) for _ in range(12)]
    found = [await flux.next(tag) for tag in tags]
    refused = [answer for answer in found if answer[0]]
    text = "more than 1 MiB of input wait to be read: give a file instead (--input)"
    assert refused[0] == (errno.EINVAL, text)
    assert {errnum for errnum, _ in refused[1:]} <= {errno.EPIPE, errno.ENOSYS}, "behind an end, or of an ended job"
    assert found == [(0, None)] * (len(found) - len(refused)) + refused, "nothing goes in behind a hole"
    [why] = [event["context"] for event in await flux.events(jobid) if event["name"] == "exception"]
    assert (why["type"], why["note"]) == ("exec", text)


async def test_what_is_no_input_is_refused(flux):
    jobid, topic = await begun(flux, "sleep", "100")
    for payload, errnum in (
        ({}, errno.EPROTO),
        (data("?", encoding="base64"), errno.EINVAL),
        (data("x", rank="some"), errno.EINVAL),
        (data("x", rank="7"), errno.EPIPE),
        ({**ENDING, "stream": "stdout"}, errno.EPROTO),
    ):
        assert (await flux.ask(topic, payload))[0] == errnum, payload
    assert (await flux.ask("shell-nonsense!.stdin", ENDING))[0] == errno.EINVAL
    assert (await flux.ask("shell-f2.stdin", ENDING))[0] == errno.ENOSYS
    assert (await flux.ask(topic.replace("stdin", "proctable"), {}))[0] == errno.ENOSYS
    file = {"shell": {"options": {"input": {"stdin": {"type": "file", "path": "/dev/zero"}}}}}
    other = await flux.submit("head", "-c1", **file, urgency=0)
    errnum, text = await flux.ask(topic.replace(topic[6:-6], f"{other:d}"), ENDING)
    assert (errnum, text.endswith("read /dev/zero")) == (errno.ENOSYS, True)
    await flux.cancel_all()
    assert (await flux.events(jobid))[-1]["name"] == "clean"


async def test_input_that_comes_early_waits_for_the_job(flux):
    jobid = await flux.submit("cat", urgency=0)
    early = flux.open(f"shell-{jobid}.stdin", data("early\n", eof=True), flags=0x0B)
    await flux.ok("job-manager.urgency", {"id": jobid, "urgency": 16})
    assert await flux.next(early) == (0, None)
    assert await printed(flux, jobid) == {"0": "early\n"}
    jobid = await flux.submit("cat", urgency=0)
    early = flux.open(f"shell-{jobid}.stdin", data("never read"), flags=0x0B)
    await flux.cancel_all()
    assert (await flux.next(early))[0] == errno.ESRCH

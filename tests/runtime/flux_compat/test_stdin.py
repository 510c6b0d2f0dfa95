"""Input as stock Flux clients send it: to a service that each job has, in data events of RFC 24."""

from __future__ import annotations

import base64
import errno
import json
from typing import Any

import pytest

from fluxsched.runtime.exec.tasks import input as exec_input

Flux = Any
ENDING = {"stream": "stdin", "rank": "all", "eof": True}


def data(text: str, rank: str = "all", **more: Any) -> dict[str, Any]:
    return {"stream": "stdin", "rank": rank, "data": text, **more}


async def begun(flux: Flux, *command: str, **options: Any) -> tuple[int, str]:
    """A job whose tasks run, and the topic of its input, as its log names it."""
    jobid = await flux.submit(*command, **options)
    tag = flux.open("job-info.eventlog-watch", {"id": jobid, "path": "guest.exec.eventlog", "flags": 0})
    async for one in flux.rest(tag):
        event = json.loads(one["event"])
        if event["name"] == "shell.init":
            return jobid, f"{event['context']['service']}.stdin"
    raise AssertionError("the job has no service")


async def printed(flux: Flux, jobid: int) -> dict[str, str]:
    """What each task has written to stdout."""
    found: dict[str, str] = {}
    for event in await flux.events(jobid, "guest.output"):
        context = event["context"]
        if context.get("stream") == "stdout" and "data" in context:
            found[context["rank"]] = found.get(context["rank"], "") + context["data"]
    return found


async def test_text_and_binary_go_to_all_tasks_until_the_end(flux: Flux) -> None:
    jobid, topic = await begun(flux, "sh", "-c", "od -An -c; sleep 0.5", n=2)
    assert await flux.ok(topic, data("ƒ\n")) is None
    assert await flux.ok(topic, data(base64.b64encode(b"\0\xff").decode(), encoding="base64")) is None
    assert await flux.ok(topic, ENDING) is None
    assert await flux.ask(topic, data("late")) == (errno.EPIPE, "the input of all tasks has ended")
    assert await printed(flux, jobid) == dict.fromkeys("01", " 306 222  \\n  \\0 377\n")
    errnum, text = await flux.ask(topic, data("late"))
    assert errnum == errno.ENOSYS
    assert "has ended" in text


async def test_some_tasks_may_be_sent_their_own(flux: Flux) -> None:
    jobid, topic = await begun(flux, "cat", n=3)
    assert await flux.ok(topic, {"stream": "stdin", "rank": "0,2", "eof": True}) is None
    assert await flux.ok(topic, {"stream": "stdin", "rank": "0-1", "eof": False, "data": ""}) is None
    assert await flux.ask(topic, data("x", rank="1-2")) == (errno.EPIPE, "the input of task 2 has ended")
    assert await flux.ok(topic, data("mine\n", rank="1", eof=True)) is None
    assert await printed(flux, jobid) == {"1": "mine\n"}


async def test_too_much_unread_input_ends_the_job_and_nothing_else(
    flux: Flux, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_input, "HELD_BYTES_MAX", 1 << 20)
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


async def test_what_is_no_input_is_refused(flux: Flux) -> None:
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


async def test_input_that_comes_early_waits_for_the_job(flux: Flux) -> None:
    jobid = await flux.submit("cat", urgency=0)
    early = flux.open(f"shell-{jobid}.stdin", data("early\n", eof=True), flags=0x0B)
    await flux.ok("job-manager.urgency", {"id": jobid, "urgency": 16})
    assert await flux.next(early) == (0, None)
    assert await printed(flux, jobid) == {"0": "early\n"}
    jobid = await flux.submit("cat", urgency=0)
    early = flux.open(f"shell-{jobid}.stdin", data("never read"), flags=0x0B)
    await flux.cancel_all()
    assert (await flux.next(early))[0] == errno.ESRCH

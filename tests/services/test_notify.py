"""The program that is told of job events: what it reads, and what becomes of events that it does not read."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.services.notify import (
    NOTIFY_AGAIN_MAX_S,
    NOTIFY_LINE_BYTES_MAX,
    NOTIFY_QUEUE_BYTES_MAX,
    NotifyProgram,
)
from fluxsched.system.clock import SystemClock
from fluxsched.system.loop import Turns

EVENT = {"timestamp": 1.0, "name": "memo", "context": {"text": "x" * 900}}


@pytest.fixture
async def turns() -> Any:
    found = Turns(SystemClock())
    found.start(asyncio.get_running_loop())
    yield found
    found.stop()


def program(turns: Turns, script: str, **limits: Any) -> NotifyProgram:
    """Return a running program that is a shell script; it is told of the jobs of a user."""
    job: Any = SimpleNamespace(userid=os.getuid(), name="solver")
    return NotifyProgram(turns, ["/bin/sh", "-c", script], {}, lambda jobid: job, **limits)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines in a file."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


async def test_it_reads_each_event_of_the_jobs_of_an_instance(world, eventually):
    path = world.directory / "events"
    text = world.write("notify", f"#!/bin/sh\ncat >> {path}\n")
    text.chmod(0o755)
    instance = await world.instance(config=f"[notify]\nprogram = '{text}'\n", fake="1x1")
    client = await world.client(instance)
    jobid = await client.submit(Jobspec.from_command(["true"], name="quick"))
    await eventually(lambda: any(line["event"]["name"] == "clean" for line in read(path)))
    lines = read(path)
    assert {(line["id"], line["userid"], line["name"]) for line in lines} == {(jobid, os.getuid(), "quick")}
    assert [line["event"]["name"] for line in lines][:2] == ["submit", "validate"]
    assert lines[-1]["event"] == {"timestamp": lines[-1]["event"]["timestamp"], "name": "clean"}
    stats = await client.rpc("instance.stats-get")
    assert stats["notify"] == {"queued": 0, "dropped": 0, "starts": 1}


async def test_what_it_does_not_read_is_dropped_counted_and_said(turns, tmp_path, eventually):
    path, go = tmp_path / "events", tmp_path / "go"
    assert NOTIFY_QUEUE_BYTES_MAX >= 64 * NOTIFY_LINE_BYTES_MAX
    script = f"while [ ! -e {go} ]; do sleep 0.01; done; exec cat > {path}"
    notify = program(turns, script, queue_bytes_max=100_000)
    for _ in range(500):
        notify.publish([(1, [EVENT])])  # some fill the pipe, a hundred the queue
    assert notify.dropped >= 300
    dropped = notify.dropped
    go.touch()
    await eventually(lambda: len(read(path)) == 500 - dropped)
    notify.publish([(2, [EVENT])])
    await eventually(lambda: bool(read(path)) and read(path)[-1].get("id") == 2)
    assert read(path)[-2] == {"dropped": dropped}
    notify.close()


async def test_an_event_that_is_too_large_is_dropped(turns, tmp_path, eventually):
    path = tmp_path / "events"
    notify = program(turns, f"cat > {path}")
    notify.publish([(1, [{"timestamp": 1.0, "name": "grow", "context": {"R": "x" * NOTIFY_LINE_BYTES_MAX}}, EVENT])])
    await eventually(lambda: len(read(path)) == 2)
    assert [line.get("dropped") for line in read(path)] == [1, None]
    notify.close()


async def test_one_that_ends_is_started_again_with_a_growing_pause(turns, tmp_path, eventually, caplog):
    path = tmp_path / "events"
    notify = program(turns, f'read -r line; echo "$line" >> {path}; exit 3', again_s=0.01)
    for jobid in range(1, 4):
        notify.publish([(jobid, [EVENT])])
        await eventually(lambda jobid=jobid: len(read(path)) == jobid)
        await eventually(lambda jobid=jobid: notify.starts > jobid)
    pauses = [record.message.rpartition(" in ")[2] for record in caplog.records if "started again" in record.message]
    assert pauses[:3] == ["0.01 s", "0.02 s", "0.04 s"]
    notify.close()


async def test_one_that_is_killed_while_it_does_not_read_loses_no_more_than_its_pipe(turns, tmp_path, eventually):
    path, go = tmp_path / "events", tmp_path / "go"
    notify = program(turns, f"[ -e {go} ] || exec sleep 600; cat > {path}", again_s=0.01)
    for jobid in range(500):
        notify.publish([(jobid, [EVENT])])
    process = notify._process
    assert process is not None
    go.touch()
    os.kill(process.pid, signal.SIGKILL)
    await eventually(lambda: any(line.get("id") == 499 for line in read(path)))
    ids = [line["id"] for line in read(path) if "id" in line]
    assert ids == list(range(ids[0], 500))
    notify.close()


async def test_one_that_cannot_be_started_ends_nothing(turns, tmp_path, eventually):
    notify = NotifyProgram(turns, [str(tmp_path / "absent")], {}, lambda jobid: None, again_s=0.01)  # type: ignore[arg-type, return-value]
    assert notify.starts == 0
    (tmp_path / "absent").write_text("#!/bin/sh\ncat >/dev/null\n")
    (tmp_path / "absent").chmod(0o755)
    await eventually(lambda: notify.starts == 1)
    notify.close()


async def test_the_pause_grows_no_more_than_to_a_minute(turns, tmp_path, caplog):
    absent: Any = str(tmp_path / "absent")
    notify = NotifyProgram(turns, [absent], {}, lambda jobid: absent, again_s=0.75 * NOTIFY_AGAIN_MAX_S)
    notify._start()
    pauses = [record.message.rpartition(" in ")[2] for record in caplog.records]
    assert pauses == ["45 s", "60 s"]
    notify.close()

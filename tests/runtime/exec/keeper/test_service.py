"""What a keeper makes of what its instance says: this one is played by the test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.runtime.exec.base import JobLaunch, Reports
from fluxsched.runtime.exec.keeper import messages as msg
from fluxsched.runtime.exec.keeper.service import KeeperOutside, KeeperService
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.system.clock import SystemClock
from fluxsched.transport.stream import StreamClient

WAIT_S = 15.0


class Tasks:
    """Remembers what it was to run."""

    kill_timeout_s = 0.0

    def __init__(self, reports: Reports) -> None:
        self.reports = reports
        self.launched: list[JobLaunch] = []
        self.sizes: list[tuple[str, str]] = []

    def start(self, job: JobLaunch) -> None:
        self.launched.append(job)

    def kill(self, jobid: int, signum: int, grace_s: float | None = None) -> None: ...

    def grow(self, jobid: int, r: Mapping[str, Any], ranks: Idset) -> None:
        self.sizes.append(("grow", str(ranks)))

    def shrink(self, jobid: int, ranks: Idset, grace_s: float | None = None) -> None:
        self.sizes.append(("shrink", str(ranks)))

    def input_of(self, jobid: int) -> None: ...

    def close(self) -> None: ...


async def test_equal_jobspecs_are_read_once_and_a_wrong_one_fails_its_job_alone() -> None:
    turns, made, answers, arrived = Turns(SystemClock()), list[Tasks](), list[Any](), asyncio.Event()
    instance, client = map(StreamClient, socket.socketpair())

    def executor(reports: Reports) -> Any:
        made.append(Tasks(reports))
        return made[0]

    def listen() -> None:
        answers.extend(one for frames in instance.receive(100) for one in msg.from_keeper(frames))
        arrived.set()

    outside = KeeperOutside(executor, lambda records, cleared: None, lambda: None, lambda is_gone: None, 7)
    service = KeeperService(turns, outside)
    turns.start(asyncio.get_running_loop())
    instance.start(asyncio.get_running_loop(), listen)
    client.start(asyncio.get_running_loop(), turns.wake)
    service.attend(client)
    jobspec = msg.packed_jobspec(Jobspec.from_command(["true"], environment={"LANG": "C"}))
    wrong = msgspec.Raw(msgspec.msgpack.encode({"version": 1}))
    said: list[msg.KeeperMessage] = [msg.KeeperHello(msg.VERSION, 1), msg.KeeperSettings("/spool", {}, None, 5.0, True)]
    said += [msg.StartJob(jobid, 0, wrong if jobid == 2 else jobspec, {}) for jobid in (1, 2, 3)]
    for frames in msg.packed(said):
        instance.send(frames)
    async with asyncio.timeout(WAIT_S):
        while len(answers) < 2:
            arrived.clear()
            await arrived.wait()
    first, third = made[0].launched
    assert (first.jobid, third.jobid, first.spool) == (1, 3, Path("/spool"))
    assert first.jobspec is third.jobspec
    assert first.jobspec.environment == {"LANG": "C"}
    welcome, failed = answers
    assert isinstance(welcome, msg.KeeperWelcome)
    assert isinstance(failed, msg.JobFailed)
    assert failed.jobid == 2
    service.close()
    instance.close()
    turns.stop()


async def test_what_an_instance_could_not_take_in_is_repeated_to_the_next() -> None:
    turns, heard, arrived = Turns(SystemClock()), list[Any](), asyncio.Event()
    outside = KeeperOutside(Tasks, lambda records, cleared: None, lambda: None, lambda is_gone: None, 7)
    service = KeeperService(turns, outside)
    turns.start(asyncio.get_running_loop())
    for jobid in (1, 2, 3):
        service._report(msg.JobRaised(service._next(), jobid, "memory", "too much"))
    for said in ([msg.Stored(3, [2])], []):
        instance, client = map(StreamClient, socket.socketpair())
        heard.clear()

        def listen(instance: StreamClient = instance) -> None:
            heard.extend(one for frames in instance.receive(100) for one in msg.from_keeper(frames))
            arrived.set()

        instance.start(asyncio.get_running_loop(), listen)
        client.start(asyncio.get_running_loop(), turns.wake)
        service.attend(client)
        for frames in msg.packed([msg.KeeperHello(msg.VERSION, 1), *said]):
            instance.send(frames)
        async with asyncio.timeout(WAIT_S):
            while not any(isinstance(one, msg.JobRaised) for one in heard):
                arrived.clear()
                await arrived.wait()
            while said and len(service._reports) > 1:
                await asyncio.sleep(0.001)
        instance.close()
    assert [one.jobid for one in heard if isinstance(one, msg.JobRaised)] == [2]
    service.close()
    turns.stop()


async def test_a_size_is_taken_on_once_and_a_release_is_repeated_until_it_is_stored() -> None:
    turns, made, heard = Turns(SystemClock()), list[Tasks](), list[Any]()

    def executor(reports: Reports) -> Tasks:
        made.append(Tasks(reports))
        return made[0]

    outside = KeeperOutside(executor, lambda records, cleared: None, lambda: None, lambda is_gone: None, 7)
    service = KeeperService(turns, outside)
    turns.start(asyncio.get_running_loop())
    execution = {"R_lite": [{"rank": "0-1", "children": {"core": "0"}}], "starttime": 0, "expiration": 0}
    r = {"version": 1, "execution": execution}
    jobspec = msg.packed_jobspec(Jobspec.from_command(["true"]))
    began = [msg.KeeperSettings("/spool", {}, None, 5.0, True), msg.StartJob(1, 0, jobspec, r)]
    one = [msg.GrowJob(1, r, "1-3"), msg.GrowJob(1, r, "2-3"), msg.ShrinkJob(1, "3"), msg.ShrinkJob(9, "3")]
    two = [msg.ShrinkJob(1, "3"), msg.GrowJob(1, r, "3"), msg.ShrinkJob(1, "3")]
    for said in ([*began, *one], two):
        instance, client = map(StreamClient, socket.socketpair())
        heard.clear()

        def listen(instance: StreamClient = instance) -> None:
            heard.extend(one for frames in instance.receive(100) for one in msg.from_keeper(frames))

        instance.start(asyncio.get_running_loop(), listen)
        client.start(asyncio.get_running_loop(), turns.wake)
        service.attend(client)
        for frames in msg.packed([msg.KeeperHello(msg.VERSION, 1), *said]):
            instance.send(frames)
        async with asyncio.timeout(WAIT_S):
            while not (heard and len(made[0].sizes) == 2):
                await asyncio.sleep(0.001)
        if said is not two:
            assert made[0].sizes == [("grow", "2-3"), ("shrink", "3")]
            made[0].sizes.clear()
            made[0].reports.released(1, Idset.parse("3"))
        instance.close()
    held = msg.HeldJob(1, 0, False, "0-2", "3")
    assert heard == [msg.KeeperWelcome(msg.VERSION, 7, [held]), msg.TargetsReleased(1, 1, "3")]
    assert made[0].sizes == [("grow", "3"), ("shrink", "3")], "what is being reported needs no further shrink"
    service.close()
    turns.stop()

"""The keeper of the tasks: its service, its proxy in the instance, and what passes between them."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import FluxschedError, LimitExceeded, Refused, RemoteProtocolError
from fluxsched.executor import keeper as process
from fluxsched.executor import proxy
from fluxsched.executor import wire as msg
from fluxsched.executor.base import JobLaunch, ResumedJob, TaskSettings
from fluxsched.executor.keeper import Keeper, KeeperOutside, KeeperService
from fluxsched.executor.proxy import LIMITS, KeeperLimits, LocalKeeperHost
from fluxsched.executor.wire import connected
from fluxsched.system.clock import SystemClock
from fluxsched.system.loop import Turns
from fluxsched.transport.base import MESSAGE_BYTES_MAX, PARTS_MAX, UNSENT_BYTES_MAX
from fluxsched.transport.local import StreamClient
from tests.executor.played import RECORD, Played
from tests.r import r_of
from tests.waiting import WAIT_S, until

# What a keeper makes of what its instance says: this one is played by the test.


class Tasks:
    """Remembers what it was to run."""

    kill_timeout_s = 0.0

    def __init__(self, reports):
        self.reports = reports
        self.launched = []
        self.killed = []
        self.sizes = []
        self.fences = []

    def start(self, job):
        self.launched.append(job)

    def kill(self, jobid, signum, grace_s=None):
        self.killed.append((jobid, signum))

    def grow(self, jobid, r, ranks, first=None):
        self.sizes.append(("grow", str(ranks)))

    def shrink(self, jobid, ranks, grace_s=None):
        self.sizes.append(("shrink", str(ranks)))

    def input_of(self, jobid): ...

    def measure(self, jobid, measured):
        measured({"user_s": float(jobid)})

    def fence_done(self, one):
        self.fences.append(one)

    def close(self): ...


class KeptTasks:
    """The service of a keeper, with tasks that it was to run, and what its instance hears."""

    def __init__(self):
        self.turns, self.made, self.heard = Turns(SystemClock()), list[Tasks](), list[Any]()
        outside = KeeperOutside(self._executor, lambda records, cleared: None, lambda: None, lambda is_gone: None, 7)
        self.outside = outside
        self.service = KeeperService(self.turns, outside)
        self.turns.start(asyncio.get_running_loop())

    def _executor(self, reports):
        self.made.append(Tasks(reports))
        return self.made[0]

    @contextmanager
    def instance(self, *said):
        """An instance that connects and says this; what it hears begins anew."""
        instance, client = map(StreamClient, socket.socketpair())
        self.heard.clear()

        def listen():
            self.heard.extend(one for frames in instance.receive(100) for one in msg.from_keeper(frames))

        instance.start(asyncio.get_running_loop(), listen)
        client.start(asyncio.get_running_loop(), self.turns.wake)
        self.service.attend(client)
        for frames in msg.packed([msg.KeeperHello(msg.VERSION, 1), *said]):
            instance.send(frames)
        yield
        instance.close()

    until = staticmethod(until)


@pytest.fixture
async def kept():
    kept = KeptTasks()
    yield kept
    kept.service.close()
    kept.turns.stop()


BEGUN = msg.KeeperSettings("/spool", {}, None, 5.0, True)


async def test_jobs_with_equal_jobspecs_share_one_and_a_wrong_one_fails_its_job_alone(kept):
    jobspec = msg.packed_jobspec(Jobspec.from_command(["true"], environment={"LANG": "C"}))
    wrong = msgspec.Raw(msgspec.msgpack.encode({"version": 1}))
    starts = [msg.StartJob(jobid, 0, wrong if jobid == 2 else jobspec, {}) for jobid in (1, 2, 3, 4)]
    with kept.instance(BEGUN, *starts):
        await kept.until(lambda: len(kept.heard) >= 2)
    first, third, fourth = kept.made[0].launched
    assert (first.jobid, fourth.jobid, first.settings.spool) == (1, 4, Path("/spool"))
    assert third.jobspec is fourth.jobspec
    assert first.jobspec.environment == third.jobspec.environment == {"LANG": "C"}
    welcome, failed = kept.heard
    assert isinstance(welcome, msg.KeeperWelcome)
    assert isinstance(failed, msg.JobFailed)
    assert failed.jobid == 2


async def test_a_keeper_of_another_host_spools_at_its_own_place_and_ends_all_jobs_when_it_is_to(kept):
    outside = replace(kept.outside, spool=Path("/scratch/spool"))
    kept.service = KeeperService(kept.turns, replace(outside, executor=lambda reports: kept.made[0]))
    jobspec = msg.packed_jobspec(Jobspec.from_command(["true"]))
    with kept.instance(BEGUN, *[msg.StartJob(jobid, 0, jobspec, {}) for jobid in (1, 2)]):
        await kept.until(lambda: len(kept.made[0].launched) == 2)
    assert {job.settings.spool for job in kept.made[0].launched} == {Path("/scratch/spool")}
    kept.service.end_jobs()
    assert kept.made[0].killed == [(1, signal.SIGTERM), (2, signal.SIGTERM)]


async def test_what_an_instance_could_not_take_in_is_repeated_to_the_next(kept):
    for jobid in (1, 2, 3):
        kept.service._report(msg.JobRaised(kept.service._next(), jobid, "memory", "too much"))
    for said, left in (([msg.Stored(3, [2])], 1), ([], 3)):
        with kept.instance(*said):
            await kept.until(lambda: any(isinstance(one, msg.JobRaised) for one in kept.heard))
            await kept.until(lambda left=left: len(kept.service._reports) <= left)
    assert [one.jobid for one in kept.heard if isinstance(one, msg.JobRaised)] == [2]


async def test_a_size_is_taken_on_once_and_a_release_is_repeated_until_it_is_stored(kept):
    r = r_of("0-1")
    began = [BEGUN, msg.StartJob(1, 0, msg.packed_jobspec(Jobspec.from_command(["true"])), r)]
    one = [msg.GrowJob(1, r, "1-3"), msg.GrowJob(1, r, "2-3"), msg.ShrinkJob(1, "3"), msg.ShrinkJob(9, "3")]
    two = [msg.ShrinkJob(1, "3"), msg.GrowJob(1, r, "3"), msg.ShrinkJob(1, "3")]
    with kept.instance(*began, *one):
        await kept.until(lambda: kept.heard and len(kept.made[0].sizes) == 2)
        tasks = kept.made[0]
        assert tasks.sizes == [("grow", "2-3"), ("shrink", "3")]
        tasks.sizes.clear()
        tasks.reports.released(1, Idset.parse("3"))
    with kept.instance(*two):
        await kept.until(lambda: kept.heard and len(tasks.sizes) == 2)
    held = msg.HeldJob(1, 0, False, "0-2", "3")
    assert kept.heard == [msg.KeeperWelcome(msg.VERSION, 7, [held], measures=True), msg.TargetsReleased(1, 1, "3")]
    assert tasks.sizes == [("grow", "3"), ("shrink", "3")], "what is being reported needs no further shrink"


async def test_the_last_two_barriers_of_a_job_are_repeated_until_its_end_is_stored(kept):
    began = [BEGUN, msg.StartJob(1, 0, msg.packed_jobspec(Jobspec.from_command(["true"])), r_of("0-1"), ranks="0")]
    fences = [msg.PmiFence(1, number, {"a": str(number)}) for number in (1, 2, 3)]
    with kept.instance(*began):
        await kept.until(lambda: kept.made and kept.made[0].launched)
        [tasks] = kept.made
        for one in fences[:2]:
            tasks.reports.fence(one)
        await kept.until(lambda: kept.heard[1:] == fences[:2])
    await kept.until(lambda: not kept.service.has_instance)
    tasks.reports.fence(fences[2])
    tasks.reports.finished(1, 0, None)
    finished = msg.JobFinished(1, 1, 0)
    for _ in range(2):
        with kept.instance(msg.PmiFenceDone(1, 3)):
            await kept.until(lambda: kept.heard[1:] == [*fences[1:], finished])
    assert tasks.fences == [msg.PmiFenceDone(1, 3)] * 2
    for _ in range(2):
        with kept.instance(msg.Stored(1)):
            await kept.until(lambda: kept.heard and kept.service.is_idle)
    assert kept.heard[1:] == []


# What the instance does with its keepers: these are played by the test, over a transport in memory.


async def test_a_job_passes_through_its_keeper(bench):
    bench.resume()
    assert bench.settled
    assert bench.keepers == [], "the first is started with the first job"
    bench.executor.start(bench.launch(1))
    [keeper] = bench.keepers
    await bench.until(lambda: keeper.started == [1])
    assert [type(one) for one in keeper.heard] == [msg.KeeperHello, msg.KeeperSettings, msg.StartJob]
    keeper.welcome()
    keeper.say(msg.JobSpawned(1, 1, RECORD))
    await bench.until(lambda: keeper.words(msg.Stored) == [msg.Stored(1)])
    keeper.say(msg.JobStarted(2, 1), msg.JobFinished(3, 1, 256))
    await bench.until(lambda: keeper.words(msg.Stored)[1:] == [msg.Stored(3)])
    assert bench.said == [
        ("record", 1, RECORD), ("started", 1), ("opened", 1), ("record", 1, None), ("finished", 1, 256),
    ]  # fmt: skip


async def test_the_process_of_a_single_task_comes_on_record_with_the_report_that_it_runs(bench, kept):
    began = [BEGUN, msg.StartJob(1, 0, msg.packed_jobspec(Jobspec.from_command(["true"])), r_of("0"))]
    with kept.instance(*began):
        await kept.until(lambda: kept.made and kept.made[0].launched)
        reports = kept.made[0].reports
        reports.record(1, {"pid": 7, "ahead": True}, lambda: reports.record(1, RECORD, None) or reports.started(1))
        await kept.until(lambda: kept.heard[1:] == [msg.JobSpawned(1, 1, {"pid": 7, "ahead": True})])
    started = msg.JobStarted(2, 1, record=RECORD)
    with kept.instance(msg.Stored(1)):
        await kept.until(lambda: kept.heard[-1:] == [started])
    bench.resume()
    bench.executor.start(bench.launch(1))
    [keeper] = bench.keepers
    await bench.until(lambda: keeper.started == [1])
    keeper.welcome()
    keeper.say(msg.JobSpawned(1, 1, {"pid": 7, "ahead": True}), started)
    await bench.until(lambda: keeper.words(msg.Stored) == [msg.Stored(2)])
    assert bench.said == [
        ("record", 1, {"pid": 7, "ahead": True}), ("record", 1, RECORD), ("started", 1), ("opened", 1),
    ]  # fmt: skip


async def test_barriers_of_a_job_pass_between_its_keeper_and_the_other_hosts(bench):
    bench.resume()
    bench.executor.start(bench.launch(1))
    [keeper] = bench.keepers
    await bench.until(lambda: keeper.started == [1])
    keeper.welcome()
    keeper.say(msg.PmiFence(2, 1), msg.PmiFence(1, 1, {"a": "b"}))
    await bench.until(lambda: bench.reported("fence"))
    assert bench.reported("fence") == [(msg.PmiFence(1, 1, {"a": "b"}),)], "there is no job 2"
    bench.executor.fence_done(msg.PmiFenceDone(2, 1))
    bench.executor.fence_done(msg.PmiFenceDone(1, 1))
    await bench.until(lambda: keeper.words(msg.PmiFenceDone))
    assert keeper.words(msg.PmiFenceDone) == [msg.PmiFenceDone(1, 1)]


async def test_after_a_restart_jobs_are_adopted_started_or_cleared(bench):
    bench.left = [Played()]
    known, never, lost, ending = (bench.resumed(1, RECORD), bench.resumed(2), bench.resumed(3, RECORD),
                                  bench.resumed(4, ending=True))  # fmt: skip
    bench.resume(known, never, lost, ending, records={1: RECORD, 3: RECORD, 9: RECORD})
    bench.executor.start(bench.launch(5))
    [keeper] = bench.keepers
    await bench.until(lambda: keeper.words(msg.KeeperHello))
    keeper.welcome(1, 8)
    await bench.until(lambda: keeper.words(msg.ClearProcesses))
    assert keeper.words(msg.SignalJob) == [msg.SignalJob(8, 9)], "the store knows nothing of it"
    assert keeper.words(msg.ClearProcesses)[0].records.keys() == {3, 9}
    assert not bench.settled
    keeper.say(msg.ProcessesCleared({3: "process 5 of the job outlived it", 9: "-"}))
    await bench.until(lambda: bench.settled)
    await bench.until(lambda: keeper.started == [2, 5])
    assert bench.reported("opened") == [(1,)]
    assert dict(bench.reported("failed")) == {
        3: "the instance was restarted; process 5 of the job outlived it",
        4: "it was ended before its tasks ran",
    }


async def test_a_signal_that_ends_nothing_waits_for_the_tasks_after_a_restart(bench):
    bench.left = [Played()]
    bench.resume(bench.resumed(1), bench.resumed(2))
    bench.executor.kill(1, signal.SIGCONT)
    bench.executor.kill(2, signal.SIGINT)
    [keeper] = bench.keepers
    await bench.until(lambda: keeper.words(msg.KeeperHello))
    keeper.welcome()
    await bench.until(lambda: keeper.words(msg.SignalJob))
    assert keeper.started == [1]
    assert bench.reported("failed") == [(2, "it was ended before its tasks ran")]


async def test_what_is_repeated_of_an_ended_job_is_passed_over_and_acknowledged(bench):
    bench.left = [Played()]
    bench.resume()
    [keeper] = bench.keepers
    await bench.until(lambda: keeper.words(msg.KeeperHello))
    keeper.welcome()
    keeper.say(msg.JobStarted(5, 1), msg.JobFinished(6, 1, 0))
    await bench.until(lambda: keeper.words(msg.Stored) == [msg.Stored(6)])
    assert bench.said == []


async def test_a_keeper_of_another_version_serves_its_jobs_and_gets_no_other(bench):
    old = Played()
    bench.left = [old]
    bench.resume(bench.resumed(1, RECORD))
    await bench.until(lambda: old.words(msg.KeeperHello))
    old.welcome(1, version=msg.VERSION + 1)
    await bench.until(lambda: bench.settled)
    bench.executor.start(bench.launch(2))
    await bench.until(lambda: bench.keepers[1:] and bench.keepers[1].started == [2])
    old.say(msg.JobFinished(1, 1, 0))
    await bench.until(lambda: old.words(msg.EndKeeper))
    assert (old.started, bench.reported("finished")) == ([], [(1, 0)])


async def test_jobs_of_a_dead_keeper_are_cleared_or_given_to_the_next(bench):
    bench.resume()
    for jobid in (1, 2):
        bench.executor.start(bench.launch(jobid))
    [first] = bench.keepers
    await bench.until(lambda: first.started == [1, 2])
    first.say(msg.JobSpawned(1, 1, RECORD))
    await bench.until(lambda: bench.reported("record"))
    first.server.close()
    await bench.until(lambda: bench.keepers[1:] and bench.keepers[1].started == [2])
    assert first.is_ended, "whatever became of its connection"
    second = bench.keepers[1]
    assert second.words(msg.ClearProcesses)[0].records == {1: RECORD}
    second.say(msg.ProcessesCleared({1: "no process of the job was left"}))
    await bench.until(lambda: bench.reported("node_failed"))
    assert bench.reported("node_failed") == [(1, "the keeper of its tasks was killed; no process of the job was left")]


async def test_a_signal_outlives_the_keeper_that_was_to_start_the_job(bench):
    """Seed 25351: jobs were canceled in the turn in which their keeper died; the next one ran them past all limits."""
    bench.resume()
    for jobid in (1, 2):
        bench.executor.start(bench.launch(jobid))
    [first] = bench.keepers
    await bench.until(lambda: first.started == [1, 2])
    bench.executor.kill(1, signal.SIGTERM)
    bench.executor.kill(2, signal.SIGCONT)
    first.server.close()
    await bench.until(lambda: bench.keepers[1:] and bench.keepers[1].words(msg.SignalJob))
    second = bench.keepers[1]
    assert second.started == [2]
    assert second.words(msg.SignalJob) == [msg.SignalJob(2, signal.SIGCONT, None)]
    assert bench.reported("failed") == [(1, "it was ended before its tasks ran")]


async def test_a_job_that_ends_its_keepers_is_given_to_a_few(bench):
    bench.resume()
    bench.executor.start(bench.launch(1))
    for number in range(LIMITS.tries_max):
        await bench.until(lambda number=number: bench.keepers[number:] and bench.keepers[number].started)
        bench.keepers[number].server.close()
    await bench.until(lambda: bench.reported("failed"))
    assert len(bench.keepers) == LIMITS.tries_max


async def test_without_a_keeper_no_job_starts(bench):
    bench.resume()
    bench.fault = OSError(11, "Resource temporarily unavailable")
    with pytest.raises(Refused, match="no keeper for its tasks can be started: Resource"):
        bench.executor.start(bench.launch(1))
    bench.fault = None
    bench.executor.start(bench.launch(1))
    assert len(bench.keepers) == 1


async def test_leaving_ends_no_job(bench):
    bench.resume()
    bench.executor.start(bench.launch(1))
    [keeper] = bench.keepers
    await bench.until(lambda: keeper.started)
    bench.executor.detach(2.0)
    await bench.until(lambda: keeper.words(msg.Leave))
    assert (keeper.words(msg.EndKeeper), keeper.is_ended) == ([], False)


async def test_a_report_whose_handling_fails_is_not_said_to_be_stored(bench, monkeypatch):
    """It would be forgotten, though nothing has come of it; the next instance hears it again."""
    bench.left = [Played()]
    bench.resume()
    [keeper] = bench.keepers
    await bench.until(lambda: keeper.words(msg.KeeperHello))

    bench.expects_bugs = True

    def fail(link, one):
        raise ZeroDivisionError

    monkeypatch.setitem(bench.executor._handlers, msg.JobStarted, fail)  # type: ignore[arg-type]
    keeper.welcome()
    keeper.say(msg.JobStarted(5, 1), msg.JobFinished(6, 1, 0))
    await bench.until(lambda: keeper.words(msg.Stored) == [msg.Stored(6, [5])])
    assert bench.reported("bug") == [(ZeroDivisionError,)]
    keeper.say(msg.JobFinished(7, 2, 0))
    await bench.until(lambda: keeper.words(msg.Stored)[1:] == [msg.Stored(7, [5])])


async def running_job(bench, **welcome):
    bench.resume()
    bench.executor.start(bench.launch(1))
    [keeper] = bench.keepers
    await bench.until(lambda: keeper.started == [1])
    keeper.welcome(**welcome)
    keeper.say(msg.JobSpawned(1, 1, RECORD), msg.JobStarted(2, 1))
    await bench.until(lambda: ("started", 1) in bench.said)
    return keeper


async def test_a_keeper_is_asked_what_a_job_has_used_only_when_somebody_asks(bench):
    keeper = await running_job(bench)
    assert keeper.words(msg.MeasureJob) == []
    answers = []
    bench.executor.measure(2, answers.append)
    assert answers == [None], "there is no such job"
    for _ in range(2):
        bench.executor.measure(1, answers.append)
    await bench.until(lambda: len(keeper.words(msg.MeasureJob)) == 2)
    first, second = keeper.words(msg.MeasureJob)
    keeper.say(msg.JobMeasured(second.number, {"user_s": 2.0}), msg.JobMeasured(77, {"user_s": 7.0}))
    await bench.until(lambda: answers[1:] == [{"user_s": 2.0}])
    assert first.jobid == 1
    keeper.server.close()
    await bench.until(lambda: answers[2:] == [None])


async def test_a_keeper_of_a_version_that_does_not_measure_is_not_asked(bench):
    keeper = await running_job(bench, measures=False)
    answers = []
    bench.executor.measure(1, answers.append)
    assert answers == [None]
    keeper.say(msg.JobFinished(3, 1, 0))
    await bench.until(lambda: ("finished", 1, 0) in bench.said)
    assert keeper.words(msg.MeasureJob) == []


@pytest.mark.parametrize("bench", [KeeperLimits(measure_s=0.01)], indirect=True)
async def test_what_a_keeper_does_not_measure_in_time_is_not_known(bench):
    keeper, answers = await running_job(bench), []
    bench.executor.measure(1, answers.append)
    await bench.until(lambda: answers == [None])
    await bench.until(lambda: keeper.words(msg.MeasureJob) != [])
    [asked] = keeper.words(msg.MeasureJob)
    keeper.say(msg.JobMeasured(asked.number, {"user_s": 2.0}), msg.JobFinished(3, 1, 0))
    await bench.until(lambda: ("finished", 1, 0) in bench.said)
    assert answers == [None], "too late"


async def test_what_one_instance_asked_is_not_answered_to_the_next(kept):
    start = msg.StartJob(1, 0, msg.packed_jobspec(Jobspec.from_command(["true"])), r_of("0"))
    asked = []
    with kept.instance(BEGUN, start):
        await kept.until(lambda: kept.made and kept.made[0].launched)
        kept.made[0].measure = lambda jobid, measured: asked.append((jobid, measured))
    with kept.instance(msg.MeasureJob(1, 1)):
        await kept.until(lambda: len(asked) == 1)
    with kept.instance(msg.MeasureJob(2, 1)):
        await kept.until(lambda: len(asked) == 2)
        for jobid, measured in asked:
            measured({"user_s": float(jobid)})
        await kept.until(lambda: any(isinstance(one, msg.JobMeasured) for one in kept.heard))
    assert [one.usage for one in kept.heard if isinstance(one, msg.JobMeasured)] == [{"user_s": 2.0}]


@pytest.mark.parametrize("bench", [KeeperLimits(hello_s=0.01)], indirect=True)
async def test_a_keeper_that_does_not_answer_is_ended_and_its_jobs_are_cleared(bench):
    stopped = Played()
    bench.left = [stopped]
    bench.resume(bench.resumed(1, RECORD))
    await bench.until(lambda: stopped.is_ended and len(bench.keepers) == 2)
    await bench.until(lambda: bench.keepers[1].words(msg.ClearProcesses) == [msg.ClearProcesses({1: RECORD})])


async def test_output_of_another_host_is_stored_for_a_job_of_this_keeper_and_discarded_for_others(make_bench):
    stored = []

    def store(job, name, offset, data):
        stored.append((job.jobid, name, offset, data))
        return 5

    bench = make_bench(output=store)
    bench.resume()
    bench.executor.start(bench.launch(1))
    [keeper] = bench.keepers
    await bench.until(lambda: keeper.started == [1])
    assert [one.forwards for one in keeper.words(msg.KeeperSettings)] == [True]
    keeper.welcome()
    keeper.say(msg.JobOutput(1, "stdout", 4, b"ab"), msg.JobOutput(2, "stdout", 4, b"cd"))
    await bench.until(lambda: len(keeper.words(msg.OutputStored)) == 2)
    assert keeper.words(msg.OutputStored) == [msg.OutputStored(1, "stdout", 5), msg.OutputStored(2, "stdout", 6)]
    assert stored == [(1, "stdout", 4, b"ab")]


# The sockets of keepers: no other user is talked to there, and none is removed that leads to a keeper.


@pytest.fixture
def listener(tmp_path):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "keeper-1"))
    listener.listen(1)
    return listener


def as_another_user(connection):
    return os.getpid(), os.geteuid() + 1


def test_an_instance_takes_no_keeper_of_another_user(tmp_path, listener, monkeypatch):
    monkeypatch.setattr(proxy, "peer_of", as_another_user)
    with listener:
        assert LocalKeeperHost(tmp_path, None, -1, 0.0).living() == []


def test_a_socket_that_no_process_listens_at_is_removed(tmp_path, listener):
    listener.close()
    assert LocalKeeperHost(tmp_path, None, -1, 0.0).living() == []
    assert not (tmp_path / "keeper-1").exists()


def test_a_socket_that_cannot_be_asked_is_kept_and_the_start_refused(tmp_path, listener, monkeypatch):
    def full(pid):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", full)
    with listener, pytest.raises(FluxschedError, match="keeper-1: Too many open files"):
        LocalKeeperHost(tmp_path, None, -1, 0.0).living()
    assert (tmp_path / "keeper-1").exists()


async def test_a_keeper_hangs_up_on_another_user(tmp_path, listener, monkeypatch):
    monkeypatch.setattr(process, "peer_of", as_another_user)
    keeper = Keeper(str(tmp_path / "keeper-1"), listener)
    with listener, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(str(tmp_path / "keeper-1"))
        keeper._accept()  # it would need its service to attend
        stranger.settimeout(5)
        assert stranger.recv(1) == b""


def test_a_keeper_knows_its_socket_from_one_that_took_its_place(tmp_path, listener):
    keeper = Keeper(str(tmp_path / "keeper-1"), listener)
    assert keeper.is_reachable
    (tmp_path / "keeper-1").unlink()
    assert not keeper.is_reachable
    with listener, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as another:
        another.bind(str(tmp_path / "keeper-1"))
        assert not keeper.is_reachable


async def test_a_start_larger_than_other_messages_and_a_slow_keeper_cost_no_connection():
    """Either would end the jobs of the keeper, and the first one the instance, again at each start."""
    ours, theirs = socket.socketpair()
    client = connected(ours)
    with theirs:
        for size in (MESSAGE_BYTES_MAX + 1, UNSENT_BYTES_MAX, 1):
            client.send([bytes(size)])
        client.receive(1)
        assert client.lost is None
    client.close()


def test_a_stopped_keeper_with_no_room_for_a_connection_is_said(tmp_path, listener):
    with listener, ExitStack() as others:
        there_is_room = True
        while there_is_room:
            other = others.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            other.setblocking(False)
            there_is_room = other.connect_ex(str(tmp_path / "keeper-1")) == 0
        with pytest.raises(FluxschedError, match=r"keeper-1: .* accepted no connection within 0.05 s; .*kill -CONT"):
            LocalKeeperHost(tmp_path, None, -1, 0.0, KeeperLimits(connect_s=0.05)).living()
    assert (tmp_path / "keeper-1").exists()


async def test_a_killed_keeper_that_is_not_gone_is_not_waited_for_without_end(tmp_path, listener, monkeypatch, caplog):
    """Here it is this process, which is not killed; a real one may wait for a disk."""
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda fd, signum: None)
    host = LocalKeeperHost(tmp_path, None, -1, 0.0, KeeperLimits(gone_s=0.01))
    with listener:
        [client] = host.living()
        host.end_keeper(client, 0.0)
        client.close()
    assert f"keeper {os.getpid()} is not gone 0.01 s after it was killed" in caplog.text


async def test_a_part_beyond_the_limit_ends_a_connection():
    ours, theirs = socket.socketpair()
    client, other = connected(ours, part_bytes_max=1000), StreamClient(theirs)
    with pytest.raises(LimitExceeded, match="limit 1000"):
        client.send([bytes(1001)])
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    client.start(loop, arrived.set)
    other.start(loop, lambda: None)
    other.send([bytes(1001)])
    async with asyncio.timeout(WAIT_S):
        while client.lost is None:
            arrived.clear()
            client.receive(1)
            if client.lost is None:
                await arrived.wait()
    assert "1000" in client.lost
    client.close()
    other.close()


# The messages between an instance and its keeper: read as they were written, and by a newer reader.


def test_messages_of_a_turn_travel_together_and_in_order():
    said = [msg.SignalJob(jobid, 15, 2.5) for jobid in range(PARTS_MAX + 1)]
    frames = list(msg.packed(said))
    assert [len(one) for one in frames] == [PARTS_MAX, 1]
    assert [one for each in frames for one in msg.from_instance(each)] == said


def test_each_message_is_read_as_it_was_written():
    reports = [
        msg.KeeperWelcome(1, 7, [msg.HeldJob(3, 0, True)]),
        msg.JobSpawned(1, 3, {"pid": 8}),
        msg.JobFinished(2, 3, 256, {"wall_s": 1.5}),
        msg.ProcessesCleared({3: "no process of the job was left"}),
        msg.JobOutput(3, "stdout.7", 65536, b"\xff\n"),
        msg.PmiFence(3, 1, {"a": "b"}),
    ]
    assert [one for each in msg.packed(reports) for one in msg.from_keeper(each)] == reports


def test_a_jobspec_is_an_object_on_the_wire():
    jobspec = Jobspec.from_command(["true"])
    ((frame,),) = msg.packed([msg.StartJob(1, 0, msg.packed_jobspec(jobspec), {})])
    assert msgspec.msgpack.decode(frame)["jobspec"] == jobspec.raw


def test_keys_of_a_newer_version_are_ignored():
    frame = msgspec.msgpack.encode({"type": "stored", "serial": 4, "of": "later"})
    assert msg.from_instance([frame]) == [msg.Stored(4)]


@pytest.mark.parametrize("frame", [b"", b"\xc1", msgspec.msgpack.encode({"type": "stored"}), b"\x91" * 5000])
def test_what_is_no_message_is_refused(frame):
    with pytest.raises(RemoteProtocolError, match=r"^keeper: "):
        msg.from_instance([frame])


# Jobs of keepers that grow and shrink: what an instance tells and hears, and what it makes of it after a restart.


def elastic(ranks, *, going="", record=RECORD):
    jobspec = Jobspec.from_command(["true"], nodes={"min": 1, "max": 9}, exclusive=True, elastic=True)
    launch = JobLaunch(1, jobspec, r_of(ranks), TaskSettings({}, Path("/spool")))
    return ResumedJob(launch, record, None, going=Idset.parse(going))


async def test_a_keeper_is_told_of_other_sizes_and_says_what_is_released(bench):
    bench.resume()
    bench.executor.start(elastic("0").launch)
    [keeper] = bench.keepers
    bench.executor.grow(1, r_of("4-5"))
    bench.executor.shrink(1, Idset.parse("5"), 3.0)
    await bench.until(lambda: keeper.words(msg.ShrinkJob))
    assert keeper.words(msg.GrowJob, msg.ShrinkJob) == [msg.GrowJob(1, r_of("4-5"), "4-5"), msg.ShrinkJob(1, "5", 3.0)]
    keeper.welcome()
    keeper.say(msg.JobSpawned(1, 1, RECORD), msg.TargetsReleased(2, 1, "4-5"), msg.TargetsReleased(3, 1, "5"))
    await bench.until(lambda: keeper.words(msg.Stored)[-1:] == [msg.Stored(3)])
    assert bench.reported("released") == [(1, "5")], "only what was to be released, and once"


async def test_a_keeper_that_ends_before_the_tasks_are_on_record_leaves_other_sizes_to_the_next(bench):
    bench.resume()
    bench.executor.start(elastic("0").launch)
    bench.executor.grow(1, r_of("4"))
    await bench.until(lambda: bench.keepers[0].words(msg.GrowJob))
    bench.keepers[0].server.close()
    await bench.until(lambda: len(bench.keepers) == 2 and bench.keepers[1].words(msg.GrowJob))
    assert bench.keepers[1].words(msg.StartJob, msg.GrowJob)[1:] == [msg.GrowJob(1, r_of("4"), "4")]


@pytest.mark.parametrize(
    ("now", "going", "has", "unstored", "told", "released"),
    [
        ("0-2", "", "0-1", "", [("grow", "2")], []),
        ("0-2", "2", "0-2", "", [("shrink", "2")], []),
        ("0-2", "2", "0-1", "2", [("shrink", "2")], [(1, "2")]),
        ("0-2", "", "0-1", "2", [("grow", "2")], []),
        ("0-1", "", "0-2", "", [("shrink", "2")], []),
        ("0-1", "", "0-1", "", [], []),
    ],
    ids=["grow unsent", "shrink unsent", "release unstored", "given again", "not its own", "the same"],
)
async def test_after_a_restart_a_keeper_is_told_what_it_missed(bench, now, going, has, unstored, told, released):
    bench.left = [Played()]
    bench.resume(elastic(now, going=going))
    [keeper] = bench.keepers
    await bench.until(lambda: keeper.words(msg.KeeperHello))
    keeper.say(msg.KeeperWelcome(msg.VERSION, 7, [msg.HeldJob(1, 0, True, has, unstored)]))
    keeper.say(*([msg.TargetsReleased(4, 1, unstored)] if unstored else [msg.JobStarted(4, 1)]))
    await bench.until(lambda: keeper.words(msg.Stored))
    words = {msg.GrowJob: "grow", msg.ShrinkJob: "shrink"}
    assert [(words[type(one)], one.ranks) for one in keeper.words(*words)] == told
    assert bench.reported("released") == released


@pytest.mark.parametrize("bench", [KeeperLimits(margin_s=0.0)], indirect=True)
async def test_an_instance_in_a_job_says_itself_what_it_has_left_or_ends(bench):
    jobspec = Jobspec.from_command(["flux", "broker"], nodes={"min": 1, "max": 9}, exclusive=True, elastic=True)
    launch = JobLaunch(1, jobspec, r_of("0-3"), TaskSettings({}, Path("/spool")))
    bench.resume()
    bench.executor.start(launch)
    bench.executor.start(bench.launch(2))
    bench.executor.grow(1, r_of("4"))
    bench.executor.shrink(1, Idset.parse("2-3"), 60.0)
    bench.executor.give_back(1, Idset.parse("2,7"))
    bench.executor.give_back(1, Idset.parse("2"))
    assert bench.reported("released") == [(1, "2")]
    with pytest.raises(Refused, match="not an elastic instance"):
        bench.executor.give_back(2, Idset.parse("9"))
    bench.executor.shrink(1, Idset.parse("1"), 0.0)
    await bench.until(lambda: bench.reported("raised"))
    assert bench.reported("raised") == [(1, "exec", "the instance in it did not give back ranks 1 within 0 s")]
    [keeper] = bench.keepers
    await bench.until(lambda: keeper.started == [1, 2])
    assert keeper.words(msg.GrowJob, msg.ShrinkJob) == [], "its keeper knows its one task, the instance"

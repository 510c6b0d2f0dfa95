"""What the instance does with its keepers: these are played by the test, over a transport in memory."""

from __future__ import annotations

import signal

import pytest

from fluxsched.errors import Refused
from fluxsched.runtime.exec.keeper import messages as msg
from fluxsched.runtime.exec.keeper import proxy
from fluxsched.runtime.exec.keeper.proxy import TRIES_MAX
from tests.runtime.exec.keeper.played import RECORD, Bench, Played


async def test_a_job_passes_through_its_keeper(bench: Bench) -> None:
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


async def test_after_a_restart_jobs_are_adopted_started_or_cleared(bench: Bench) -> None:
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


async def test_a_signal_that_ends_nothing_waits_for_the_tasks_after_a_restart(bench: Bench) -> None:
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


async def test_what_is_repeated_of_an_ended_job_is_passed_over_and_acknowledged(bench: Bench) -> None:
    bench.left = [Played()]
    bench.resume()
    [keeper] = bench.keepers
    await bench.until(lambda: keeper.words(msg.KeeperHello))
    keeper.welcome()
    keeper.say(msg.JobStarted(5, 1), msg.JobFinished(6, 1, 0))
    await bench.until(lambda: keeper.words(msg.Stored) == [msg.Stored(6)])
    assert bench.said == []


async def test_a_keeper_of_another_version_serves_its_jobs_and_gets_no_other(bench: Bench) -> None:
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


async def test_jobs_of_a_dead_keeper_are_cleared_or_given_to_the_next(bench: Bench) -> None:
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
    await bench.until(lambda: bench.reported("failed"))
    assert bench.reported("failed") == [(1, "the keeper of its tasks was killed; no process of the job was left")]


async def test_a_signal_outlives_the_keeper_that_was_to_start_the_job(bench: Bench) -> None:
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


async def test_a_job_that_ends_its_keepers_is_given_to_a_few(bench: Bench) -> None:
    bench.resume()
    bench.executor.start(bench.launch(1))
    for number in range(TRIES_MAX):
        await bench.until(lambda number=number: bench.keepers[number:] and bench.keepers[number].started)
        bench.keepers[number].server.close()
    await bench.until(lambda: bench.reported("failed"))
    assert len(bench.keepers) == TRIES_MAX


async def test_without_a_keeper_no_job_starts(bench: Bench) -> None:
    bench.resume()
    bench.fault = OSError(11, "Resource temporarily unavailable")
    with pytest.raises(Refused, match="no keeper for its tasks can be started: Resource"):
        bench.executor.start(bench.launch(1))
    bench.fault = None
    bench.executor.start(bench.launch(1))
    assert len(bench.keepers) == 1


async def test_leaving_ends_no_job(bench: Bench) -> None:
    bench.resume()
    bench.executor.start(bench.launch(1))
    [keeper] = bench.keepers
    await bench.until(lambda: keeper.started)
    bench.executor.leave(2.0)
    await bench.until(lambda: keeper.words(msg.Leave))
    assert (keeper.words(msg.EndKeeper), keeper.is_ended) == ([], False)


async def test_a_report_whose_handling_fails_is_not_said_to_be_stored(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be forgotten, though nothing has come of it; the next instance hears it again."""
    bench.left = [Played()]
    bench.resume()
    [keeper] = bench.keepers
    await bench.until(lambda: keeper.words(msg.KeeperHello))

    bench.turns.noted = lambda what, fault: bench.said.append(("bug", type(fault)))

    def fail(link: object, one: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(bench.executor._handlers, msg.JobStarted, fail)  # type: ignore[arg-type]
    keeper.welcome()
    keeper.say(msg.JobStarted(5, 1), msg.JobFinished(6, 1, 0))
    await bench.until(lambda: keeper.words(msg.Stored) == [msg.Stored(6, [5])])
    assert bench.reported("bug") == [(ZeroDivisionError,)]
    keeper.say(msg.JobFinished(7, 2, 0))
    await bench.until(lambda: keeper.words(msg.Stored)[1:] == [msg.Stored(7, [5])])


async def test_a_keeper_that_does_not_answer_is_ended_and_its_jobs_are_cleared(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "HELLO_S", 0.01)
    stopped = Played()
    bench.left = [stopped]
    bench.resume(bench.resumed(1, RECORD))
    await bench.until(lambda: stopped.is_ended and len(bench.keepers) == 2)
    await bench.until(lambda: bench.keepers[1].words(msg.ClearProcesses) == [msg.ClearProcesses({1: RECORD})])

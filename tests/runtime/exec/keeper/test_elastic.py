"""Jobs of keepers that grow and shrink: what an instance tells and hears, and what it makes of it after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import Refused
from fluxsched.runtime.exec import nested
from fluxsched.runtime.exec.base import JobLaunch, ResumedJob
from fluxsched.runtime.exec.keeper import messages as msg
from fluxsched.runtime.exec.keeper.given_job import TOO_OLD
from tests.runtime.exec.keeper.played import RECORD, Bench, Played


def r_of(ranks: str) -> dict[str, Any]:
    lite = [{"rank": ranks, "children": {"core": "0-1"}}]
    return {"version": 1, "execution": {"R_lite": lite, "starttime": 0, "expiration": 0}}


def elastic(ranks: str, *, going: str = "", record: object | None = RECORD) -> ResumedJob:
    jobspec = Jobspec.from_command(["true"], nodes={"min": 1, "max": 9}, exclusive=True, elastic=True)
    launch = JobLaunch(1, jobspec, r_of(ranks), {}, Path("/spool"), None)
    return ResumedJob(launch, record, None, going=Idset.parse(going))


async def test_a_keeper_is_told_of_other_sizes_and_says_what_is_released(bench: Bench) -> None:
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


async def test_a_keeper_that_ends_before_the_tasks_are_on_record_leaves_other_sizes_to_the_next(bench: Bench) -> None:
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
async def test_after_a_restart_a_keeper_is_told_what_it_missed(
    bench: Bench, now: str, going: str, has: str, unstored: str, told: list[tuple[str, str]], released: list[Any]
) -> None:
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


async def test_a_job_of_a_keeper_that_cannot_shrink_ends_as_a_whole(bench: Bench) -> None:
    bench.left = [Played()]
    bench.resume(elastic("0-1"))
    [keeper] = bench.keepers
    await bench.until(lambda: keeper.words(msg.KeeperHello))
    keeper.welcome(1, version=msg.ELASTIC_SINCE - 1)
    await bench.until(lambda: bench.settled)
    bench.executor.grow(1, r_of("4"))
    assert bench.reported("raised") == []
    bench.executor.shrink(1, Idset.parse("1"))
    assert bench.reported("raised") == [(1, "exec", TOO_OLD)]
    bench.executor.limit(1, 7.0)
    await bench.until(lambda: keeper.words(msg.LimitJob))
    assert keeper.words(msg.GrowJob, msg.ShrinkJob) == []


async def test_an_instance_in_a_job_says_itself_what_it_has_left_or_ends(bench: Bench, monkeypatch: Any) -> None:
    monkeypatch.setattr(nested, "MARGIN_S", 0.0)
    jobspec = Jobspec.from_command(["flux", "broker"], nodes={"min": 1, "max": 9}, exclusive=True, elastic=True)
    launch = JobLaunch(1, jobspec, r_of("0-3"), {}, Path("/spool"), None)
    bench.resume()
    bench.executor.start(launch)
    bench.executor.start(bench.launch(2))
    bench.executor.grow(1, r_of("4"))
    bench.executor.shrink(1, Idset.parse("2-3"), 60.0)
    bench.executor.give_back(1, Idset.parse("2,7"))
    bench.executor.give_back(1, Idset.parse("2"))
    assert bench.reported("released") == [(1, "2")]
    with pytest.raises(Refused, match="no elastic instance"):
        bench.executor.give_back(2, Idset.parse("9"))
    bench.executor.shrink(1, Idset.parse("1"), 0.0)
    await bench.until(lambda: bench.reported("raised"))
    assert bench.reported("raised") == [(1, "exec", "the instance in it did not give back ranks 1 within 0 s")]
    [keeper] = bench.keepers
    await bench.until(lambda: keeper.started == [1, 2])
    assert keeper.words(msg.GrowJob, msg.ShrinkJob) == [], "its keeper knows its one task, the instance"

"""`history.*` of a real instance: who is told what, times that are wrong, and a history that outlives a kill."""

from __future__ import annotations

import errno
import os
import time
from typing import Any

import pytest

from fluxsched.runtime.history import report as the
from fluxsched.runtime.system.clock import SystemClock

GUEST, ADMIN, OWNER_AS_OTHER = 6, 14, 21
ANN, BOB = os.getuid() + 1, os.getuid() + 2
PRIVATE = "[access]\nprivate-jobs = true\n"
CONFIG = "[queues.batch]\n[queues.debug]\n"


def jobspec(queue: str | None, bank: str, duration_s: float) -> dict[str, Any]:
    system = {"duration": 0, "bank": bank, "exec": {"test": {"run_duration": f"{duration_s}s"}}}
    system |= {} if queue is None else {"queue": queue}
    return {
        "version": 1, "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}],
        "resources": [{"type": "slot", "label": "task", "count": 1, "with": [{"type": "core", "count": 2}]}],
        "attributes": {"system": system},
    }  # fmt: skip


async def run(world: Any, flux: Any, userid: int, queue: str | None, bank: str, *, waits: bool = True) -> int:
    """Run a job of this user."""
    flux.userid, flux.rolemask = userid, OWNER_AS_OTHER
    jobid = (await flux.ok("job-manager.submit", {"jobspec": jobspec(queue, bank, 0.01 if waits else 100.0)}))["id"]
    if waits:
        await world.second(flux.instance).ok("job-manager.wait", {"id": jobid})
    return int(jobid)


async def report(flux: Any, by: str = "user", **more: Any) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in (await flux.ok("history.report", {"by": by, **more}))["rows"]}


def become(flux: Any, userid: int, rolemask: int) -> None:
    flux.userid, flux.rolemask = userid, rolemask


async def test_a_report_has_all_that_ended_until_now_and_what_runs(world: Any, flux: Any) -> None:
    async with type(flux)(await world.instance(config=CONFIG, fake="4x4")) as site:
        for userid, queue, bank in ((ANN, "batch", "x"), (ANN, "debug", "x"), (BOB, "batch", "y")):
            await run(world, site, userid, queue, bank)
        long = await run(world, site, BOB, "batch", "y", waits=False)
        become(site, ANN, GUEST)
        users = await report(site)
        assert {name: row["jobs"] for name, row in users.items()} == {str(ANN): 2, str(BOB): 1}
        assert {name: row["jobs"] for name, row in (await report(site, "queue")).items()} == {"batch": 2, "debug": 1}
        assert {name: row["jobs"] for name, row in (await report(site, "bank")).items()} == {"x": 2, "y": 1}
        assert {name: row["jobs"] for name, row in (await report(site, "group")).items()} == {"default": 3}
        assert (await report(site, max_entries=1)).keys() <= users.keys()
        assert users[str(ANN)]["results"]["completed"] == users[str(ANN)]["waits"] == 2
        become(site, os.getuid(), 5)
        await site.ok("job-manager.cancel", {"id": long, "note": ""})
        await world.second(site.instance).ok("job-manager.wait", {"id": long})
        assert (await report(site))[str(BOB)]["results"]["canceled"] == 1


async def test_use_and_machine_are_over_the_same_time(world: Any, flux: Any) -> None:
    """From the very start on, with a job that runs across the last sample."""
    async with type(flux)(await world.instance(fake="1x2")) as site:
        become(site, os.getuid(), 5)
        await run(world, site, os.getuid(), None, "x", waits=False)
        peer = world.second(site.instance)
        while not (answer := await peer.ok("history.report"))["total"]["core_seconds"]:
            pass
        for _ in range(2):
            capacity = answer["capacity"]
            assert answer["total"]["core_seconds"] == capacity["allocated"] <= sum(capacity.values())
            assert sum(capacity.values()) == pytest.approx(2 * answer["observed"], rel=1e-6)
            assert answer["until"] <= time.time()
            site.instance.turns.post(site.instance._parts.sampling._minute)
            await peer.ok("instance.info")
            answer = await peer.ok("history.report")


async def test_where_jobs_are_private_guests_see_their_own_use_and_nothing_of_the_machine(
    world: Any, flux: Any
) -> None:
    async with type(flux)(await world.instance(config=CONFIG + PRIVATE, fake="4x4")) as site:
        await run(world, site, ANN, "batch", "x")
        await run(world, site, BOB, "batch", "y")
        become(site, ANN, GUEST)
        answer = await site.ok("history.report", {"by": "bank"})
        assert [row["name"] for row in answer["rows"]] == ["x"]
        assert (answer["total"]["jobs"], answer["capacity"]) == (1, None)
        for topic in ("history.samples", "history.intervals"):
            assert (await site.ask(topic, {}))[0] == errno.EPERM
        become(site, ANN, ADMIN)
        answer = await site.ok("history.report", {"by": "bank"})
        assert (answer["total"]["jobs"], len(answer["rows"])) == (2, 2)
        assert answer["capacity"]["allocated"] >= 0.0


async def test_times_that_cannot_be_and_an_empty_history(world: Any, flux: Any) -> None:
    async with type(flux)(await world.bare(fake="2x4")) as site:
        now_s = time.time()
        for topic in ("history.samples", "history.intervals", "history.report"):
            for times in ({"since": now_s + 60.0}, {"since": now_s, "until": now_s - 1.0}):
                errnum, text = await site.ask(topic, times)
                assert (errnum, "is after until" in text) == (errno.EINVAL, True), topic
            assert (await site.ask(topic, {"since": -1.0}))[0] != 0
        future = {"since": now_s + DAY_S, "until": now_s + 2 * DAY_S}
        assert (await site.ok("history.samples", future))["t"] == []
        assert (await site.ok("history.intervals", future))["observed"] == []
        for times in ({}, future, {"since": 0.0}):
            answer = await site.ok("history.report", times)
            assert (answer["rows"], answer["total"]["jobs"], answer["left_out"]) == ([], 0, 0)
        assert (await site.ask("history.report", {"by": "colour"}))[0] == errno.EPROTO
        assert (await site.ask("history.intervals", {"targets": "7"}))[0] == errno.EINVAL


DAY_S = 86_400.0


async def test_drains_and_accounts_outlive_the_instance(world: Any, flux: Any, tmp_path: Any) -> None:
    state = tmp_path / "state"
    first = await world.instance(fake="2x4", statedir=state)
    async with type(flux)(first) as site:
        await run(world, site, ANN, None, "x")
        become(site, os.getuid(), 5)
        await site.ok("resource.drain", {"targets": "1", "reason": "fan"})
        while not (await site.ok("history.intervals"))["intervals"]:
            pass
    await world.stop(first)
    second = await world.instance(fake="2x4", statedir=state)
    async with type(flux)(second) as site:
        become(site, os.getuid(), 5)
        assert (await report(site))[str(ANN)]["jobs"] == 1
        answer = await site.ok("history.intervals")
        (row,) = answer["intervals"]
        assert (row[0], row[1], row[3], row[4]) == ("1", "drained", None, "fan")
        assert len(answer["observed"]) == 2
        assert (await site.ok("history.samples"))["observed"], "the first one wrote what it had seen"


async def test_rows_are_no_more_than_asked_for_and_the_total_is_of_all(
    world: Any, flux: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(the, "REPORT_ROWS_MAX", 3)
    async with type(flux)(await world.bare(fake="2x4")) as site:
        now_s = SystemClock.wall_s()
        for userid in range(8):
            sums = [1.0] * 4 + [float(userid)] + [0.0] * (len(the.SUMS) - 5)
            site.instance.store.add("usage", (3600, int(now_s) - 7200, userid, "x", "", "default", "", *sums))
        become(site, os.getuid(), 5)
        answer = await site.ok("history.report", {})
        assert [row["name"] for row in answer["rows"]] == ["7", "6", "5"]
        assert (answer["left_out"], answer["total"]["jobs"], answer["total"]["core_seconds"]) == (5, 32, 28.0)
        answer = await site.ok("history.report", {"max_entries": 1})
        assert (len(answer["rows"]), answer["left_out"]) == (1, 7)


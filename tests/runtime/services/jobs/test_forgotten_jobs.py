"""Ended jobs are forgotten when they are too many or too old: logs, what they printed, and what no other job shares."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue, Refused
from fluxsched.runtime.config import operations
from fluxsched.runtime.config.reader import parse_config
from fluxsched.runtime.exec.base import spool_directory
from fluxsched.runtime.services.jobs import history

SHARED = {f"VARIABLE_{number}": "x" * 40 for number in range(10)}
ENOENT = 2


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LOOK_S", 0.01)
    monkeypatch.setattr(history, "PAUSE_S", 0.0)
    monkeypatch.setattr(history, "PIECE_JOBS", 3)


async def run(peer: Any, jobspec: Jobspec) -> int:
    """A job that has ended."""
    jobid: int = (await peer.ok("job-manager.submit", {"jobspec": jobspec.to_json()}))["id"]
    await peer.ok("job-manager.wait", {"id": jobid})
    return jobid


def remembered(site: Any) -> list[int]:
    return [jobid for (jobid,) in site.store.read("SELECT DISTINCT jobid FROM job_log ORDER BY jobid")]


async def test_of_too_many_the_oldest_are_forgotten_with_all_that_is_theirs(world: Any, eventually: Any) -> None:
    site = await world.instance(config="[job-manager]\ninactive-num-limit = 2\n", fake="1x1")
    peer, jobs = world.second(site), list[int]()
    waits = (await peer.ok("job-manager.submit", {"jobspec": printing(SHARED).to_json(), "urgency": 0}))["id"]
    for number in range(7):
        jobs.append(await run(peer, printing(SHARED if number % 2 else {**SHARED, "OWN": str(number)})))
    await eventually(lambda: remembered(site) == [waits, *jobs[-2:]])
    assert [job["id"] for job in (await peer.ok("job-manager.list", {"states": ["INACTIVE"]}))["jobs"]] == jobs[:-3:-1]
    assert (await peer.call("job-manager.lookup", {"id": jobs[0], "keys": ["eventlog"]})).errnum == ENOENT
    kept = {spool_directory(site.effects.spool, jobid).name for jobid in jobs[-2:]}
    assert {path.name for path in site.effects.spool.iterdir()} == kept
    assert site.store.read("SELECT count(*) FROM part") == [(2,)]
    assert (await peer.ok("instance.stats-get"))["ended_jobs"] == 2
    found = await peer.ok("job-manager.lookup", {"id": waits, "keys": ["jobspec"]})
    assert found["jobspec"]["attributes"]["system"]["environment"] == SHARED


def printing(environment: dict[str, str]) -> Jobspec:
    return Jobspec.from_command(["echo", "hello"], environment=environment, cwd="/")


async def test_an_environment_of_forgotten_jobs_is_stored_again_for_the_next(world: Any, eventually: Any) -> None:
    site = await world.instance(config="[job-manager]\ninactive-num-limit = 1\n", fake="1x1")
    peer = world.second(site)
    await run(peer, printing(SHARED))
    await run(peer, printing({}))
    await eventually(lambda: site.store.read("SELECT count(*) FROM part") == [(0,)])
    last = await run(peer, printing(SHARED))
    found = await peer.ok("job-manager.lookup", {"id": last, "keys": ["jobspec"]})
    assert found["jobspec"]["attributes"]["system"]["environment"] == SHARED


async def test_of_too_old_ones_only_the_highest_id_is_kept_for_the_next_instance(world: Any, eventually: Any) -> None:
    statedir = world.directory / "state"
    site = await world.bare(config='[job-manager]\ninactive-age-limit = "0s"\n', fake="1x1", statedir=statedir)
    peer, jobs = world.second(site), list[int]()
    for _ in range(5):
        jobs.append((await peer.ok("job-manager.submit", {"jobspec": printing({}).to_json()}))["id"])
        await peer.ok("job-manager.cancel", {"id": jobs[-1]})
    await eventually(lambda: remembered(site) == jobs[-1:])
    await world.stop(site)
    site = await world.bare(fake="1x1", statedir=statedir)
    again = (await world.second(site).ok("job-manager.submit", {"jobspec": printing({}).to_json()}))["id"]
    assert again > jobs[-1]


async def test_the_file_is_used_again_and_does_not_grow_without_end(world: Any, eventually: Any) -> None:
    site = await world.bare(config="[job-manager]\ninactive-num-limit = 10\n", fake="1x1")
    peer, pages = world.second(site), list[int]()
    for _ in range(6):
        for number in range(20):
            environment = {**SHARED, "OWN": str(number) * 200}
            found = await peer.ok("job-manager.submit", {"jobspec": printing(environment).to_json()})
            await peer.ok("job-manager.cancel", {"id": found["id"]})
        await eventually(lambda: len(remembered(site)) == 10)
        pages.append(site.store.read("PRAGMA page_count")[0][0])
    assert pages[-1] <= pages[1] * 1.1, pages


async def test_looks_that_wait_for_the_disk_together_count_what_is_removed_once(world: Any) -> None:
    """The second found the same jobs, whose removal was not on disk yet; then too few were removed ever after."""
    site = await world.bare(fake="1x1")
    peer, waiting = world.second(site), list[Any]()
    for _ in range(3):
        found = await peer.ok("job-manager.submit", {"jobspec": printing({}).to_json()})
        await peer.ok("job-manager.cancel", {"id": found["id"]})
    background = SimpleNamespace(run=lambda work, done: done())
    looking = history.JobHistory(site.effects, site.store, operations.HistorySettings(1, inf), background)
    remembered_before = looking.count
    site.store.when_settled = lambda done, failed=None: waiting.append(done)
    for _ in range(2):
        looking._look()
    for done in waiting:
        done()
    assert looking.count == remembered_before - 2


def test_the_limits_have_defaults_and_a_lowest_value() -> None:
    assert parse_config("", "x").history == operations.HistorySettings(
        operations.INACTIVE_NUMBER_MAX, operations.INACTIVE_AGE_MAX_S
    )
    with pytest.raises(InvalidValue, match="inactive-num-limit: 0 is below 1"):
        parse_config("[job-manager]\ninactive-num-limit = 0\n", "x")


async def test_a_failed_read_is_not_the_end_of_forgetting(world: Any, eventually: Any) -> None:
    site = await world.instance(config="[job-manager]\ninactive-num-limit = 1\n", fake="1x1")
    read, failing = site.store.read, [True]

    def reading(sql: str, parameters: Any = ()) -> Any:
        if "ended" in sql and failing.count(True) > len(failing) - 2:
            failing.append(True)
            raise Refused("the state cannot be read")
        return read(sql, parameters)

    site.store.read = reading
    peer = world.second(site)
    last = [await run(peer, printing(SHARED)) for _ in range(3)][-1]
    await eventually(lambda: len(failing) > 2)
    site.store.read = read
    await eventually(lambda: remembered(site) == [last])


async def test_targets_are_given_back_before_the_end_of_their_job_is_announced(world: Any) -> None:
    site = await world.instance(fake="1x1")
    effects, order = site.effects, list[str]()
    unheld = effects.unheld

    def give_back(jobid: int, ranks: Any) -> None:
        order.append("given back")
        unheld(jobid, ranks)

    effects.unheld = give_back
    effects.publish.append(
        lambda stretches: order.extend("free" for _, events in stretches for one in events if one["name"] == "free")
    )
    await run(world.second(site), Jobspec.from_command(["true"], test_run_duration_s=0.001))
    assert order == ["given back", "free"]

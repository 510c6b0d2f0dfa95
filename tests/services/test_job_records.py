"""What is kept of jobs that have ended, and of their output."""

from __future__ import annotations

import os
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from fluxsched.config import values
from fluxsched.config.reader import parse_config
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue, Refused
from fluxsched.executor.base import spool_directory
from fluxsched.executor.layout import TASKS_JOB_MAX
from fluxsched.services import job_effects
from fluxsched.services.job_streams import CHUNK_BYTES, OUTPUT_POLL_S, TASK_CHUNKS, TURN_LOOKS, Budget, TaskOutput

# Ended jobs are forgotten when they are too many or too old: logs, what they printed, and what no other job shares.


SHARED = {f"VARIABLE_{number}": "x" * 40 for number in range(10)}
ENOENT = 2


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(job_effects, "LOOK_S", 0.01)
    monkeypatch.setattr(job_effects, "PAUSE_S", 0.0)
    monkeypatch.setattr(job_effects, "ROUND_JOBS", 3)
    monkeypatch.setattr(job_effects, "PIECE_ITEMS", 2)


async def run(peer, jobspec):
    """A job that has ended."""
    jobid = (await peer.ok("job-manager.submit", {"jobspec": jobspec.to_json()}))["id"]
    await peer.ok("job-manager.wait", {"id": jobid})
    return jobid


def remembered(site):
    return [jobid for (jobid,) in site.store.read("SELECT DISTINCT jobid FROM job_log ORDER BY jobid")]


async def test_of_too_many_the_oldest_are_forgotten_with_all_that_is_theirs(world, eventually):
    site = await world.instance(config="[job-manager]\ninactive-num-limit = 2\n", fake="1x1")
    peer, jobs = world.second(site), list[int]()
    waits = (await peer.ok("job-manager.submit", {"jobspec": printing(SHARED).to_json(), "urgency": 0}))["id"]
    for number in range(7):
        jobs.append(await run(peer, printing(SHARED if number % 2 else {**SHARED, "OWN": str(number)})))
    await eventually(lambda: remembered(site) == [waits, *jobs[-2:]])
    assert [job["id"] for job in (await peer.ok("job-manager.list", {"states": ["INACTIVE"]}))["jobs"]] == jobs[:-3:-1]
    assert (await peer.call("job-manager.lookup", {"id": jobs[0], "keys": ["eventlog"]})).errnum == ENOENT
    kept = {spool_directory(site.effects.settings.spool, jobid).name for jobid in jobs[-2:]}
    assert {path.name for path in site.effects.settings.spool.iterdir()} == kept
    assert site.store.read("SELECT count(*) FROM part") == [(2,)]
    assert (await peer.ok("instance.stats-get"))["ended_jobs"] == 2
    found = await peer.ok("job-manager.lookup", {"id": waits, "keys": ["jobspec"]})
    assert found["jobspec"]["attributes"]["system"]["environment"] == SHARED


async def test_a_job_that_prints_nothing_keeps_few_bytes(world):
    site = await world.instance(fake="1x1")
    silent = Jobspec.from_command(["true"], environment=SHARED, cwd="/")
    await run(world.second(site), silent)
    size = " + ".join(f"ifnull(sum(length({column})), 0)" for column in ("events", "jobspec", "R"))
    [(found,)] = site.store.read(f"SELECT {size} FROM job_log")
    assert 200 < found < 350


def printing(environment):
    return Jobspec.from_command(["echo", "hello"], environment=environment, cwd="/")


async def test_an_environment_of_forgotten_jobs_is_stored_again_for_the_next(world, eventually):
    site = await world.instance(config="[job-manager]\ninactive-num-limit = 1\n", fake="1x1")
    peer = world.second(site)
    await run(peer, printing(SHARED))
    await run(peer, printing({}))
    await eventually(lambda: site.store.read("SELECT count(*) FROM part") == [(0,)])
    last = await run(peer, printing(SHARED))
    found = await peer.ok("job-manager.lookup", {"id": last, "keys": ["jobspec"]})
    assert found["jobspec"]["attributes"]["system"]["environment"] == SHARED


async def test_of_too_old_ones_only_the_highest_id_is_kept_for_the_next_instance(world, eventually):
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


@pytest.mark.slow
async def test_the_file_is_used_again_and_does_not_grow_without_end(world, eventually):
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


async def test_looks_that_wait_for_the_disk_together_count_what_is_removed_once(world):
    """The second found the same jobs, whose removal was not on disk yet; then too few were removed ever after."""
    site = await world.bare(fake="1x1")
    peer, waiting = world.second(site), list[Any]()
    for _ in range(3):
        found = await peer.ok("job-manager.submit", {"jobspec": printing({}).to_json()})
        await peer.ok("job-manager.cancel", {"id": found["id"]})
    background = SimpleNamespace(run=lambda work, done: done())
    looking = job_effects.JobHistory(site.effects, site.store, values.HistorySettings(1, inf), background)
    remembered_before = looking.count
    site.store.when_idle = lambda done, failed=None: waiting.append(done)
    for _ in range(2):
        looking._look()
    (choose,) = waiting
    choose()
    assert looking.count == remembered_before - 2


def test_the_limits_have_defaults_and_a_lowest_value():
    assert parse_config("", "x").history == values.HistorySettings(
        values.INACTIVE_NUMBER_MAX, values.INACTIVE_AGE_MAX_S
    )
    with pytest.raises(InvalidValue, match="inactive-num-limit: 0 is below 1"):
        parse_config("[job-manager]\ninactive-num-limit = 0\n", "x")


async def test_a_failed_read_is_not_the_end_of_forgetting(world, eventually):
    site = await world.instance(config="[job-manager]\ninactive-num-limit = 1\n", fake="1x1")
    read, failing = site.store.read, [True]

    def reading(sql, parameters=()):
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


async def test_targets_are_given_back_before_the_end_of_their_job_is_announced(world):
    site = await world.instance(fake="1x1")
    effects, order = site.effects, list[str]()

    effects.unheld.append(lambda released: order.append("given back"))
    effects.publish.append(
        lambda stretches: order.extend("free" for _, events in stretches for one in events if one["name"] == "free")
    )
    await run(world.second(site), Jobspec.from_command(["true"], test_run_duration_s=0.001))
    assert order == ["given back", "free"]


# Reading what tasks write: whose it is, at whose turn, how much at a time, and that nothing is lost or said twice.


@pytest.fixture
def write(tmp_path):
    def append(name, data):
        with (tmp_path / name).open("ab") as file:
            file.write(data)

    return append


def bite(output, *, ended=False, budget=None):
    pieces = output.bite(budget or Budget(), ended=ended)
    return [(piece.task, piece.stream, piece.data) for piece in pieces]


def test_an_only_task_is_read_as_it_writes(tmp_path, write):
    output = TaskOutput(tmp_path / "not made yet")
    assert bite(output) == []
    output = TaskOutput(tmp_path)
    write("stdout", b"now")
    write("stderr", b"oh\n")
    assert bite(output) == [(0, "stdout", b"now"), (0, "stderr", b"oh\n")]
    assert bite(output) == []
    write("stdout", b" later\n")
    assert bite(output, ended=True) == [(0, "stdout", b" later\n")]
    assert output.is_complete


def test_tasks_are_found_whenever_they_come_and_told_apart(tmp_path, write):
    output = TaskOutput(tmp_path)
    write("stdout.0", b"zero\n")
    assert bite(output) == [(0, "stdout", b"zero\n")]
    for task in (1, 2, 3):
        write(f"stdout.{task}", b"")
        write(f"stderr.{task}", b"%d\n" % task)
    assert bite(output) == [(task, "stderr", b"%d\n" % task) for task in (1, 2, 3)]
    write("stdout.4", b"four\n")
    write("stdout.0", b"more\n")
    assert sorted(bite(output)) == [(0, "stdout", b"more\n"), (4, "stdout", b"four\n")]
    assert not output.is_complete
    assert bite(output, ended=True) == []
    assert output.is_complete


def test_a_job_without_files_is_complete_when_it_has_ended(tmp_path):
    output = TaskOutput(tmp_path)
    assert (bite(output, ended=True), output.is_complete) == ([], True)


def test_a_task_that_goes_on_is_cut_at_the_ends_of_its_lines(tmp_path, write):
    output = TaskOutput(tmp_path)
    write("stdout.0", b"one\ntw")
    assert bite(output) == [(0, "stdout", b"one\n")]
    write("stdout.0", b"o\nthr")
    assert bite(output) == [(0, "stdout", b"two\n")]
    assert bite(output) == [(0, "stdout", b"thr")], "a prompt has no end of line"
    write("stdout.0", b"ee\nand an end")
    assert bite(output, ended=True) == [(0, "stdout", b"ee\nand an end")]


def test_who_floods_its_output_does_not_starve_others_and_nothing_is_lost(tmp_path, write):
    flood = b"x" * (3 * TASK_CHUNKS * CHUNK_BYTES) + b"\nend"
    write("stdout.0", flood)
    write("stdout.1", b"me too\n")
    output = TaskOutput(tmp_path)
    first = bite(output)
    assert len(first) == TASK_CHUNKS + 1
    assert first[-1] == (1, "stdout", b"me too\n")
    rest = []
    while not output.is_complete:
        budget = Budget()
        rest += bite(output, ended=True, budget=budget)
        assert budget.chunks >= 0
    assert b"".join(data for task, _, data in first + rest if task == 0) == flood


def test_many_tasks_are_found_and_read_with_bounded_work_a_turn(tmp_path, write):
    for task in range(100):
        write(f"stdout.{task}", b"%d\n" % task if task in (0, 50, 99) else b"")
    output, found, turns = TaskOutput(tmp_path), [], 0
    while not output.is_complete:
        budget = Budget(looks=20)
        found += bite(output, ended=True, budget=budget)
        assert budget.looks >= -1  # a task's two streams go together
        turns += 1
    assert [task for task, _, _ in found] == [0, 50, 99]
    assert turns <= 2 * 102 / 20 + 1
    assert 2 * TASKS_JOB_MAX / TURN_LOOKS * OUTPUT_POLL_S < 1, "the most tasks are seen every second"


def test_a_budget_that_is_spent_leaves_the_rest_for_later(tmp_path, write):
    for task in range(6):
        write(f"stdout.{task}", b"%d\n" % task)
    output, found = TaskOutput(tmp_path), []
    for _ in range(4):
        found += bite(output, budget=Budget(chunks=2))
    assert [task for task, _, _ in found] == list(range(6))


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path):
    os.symlink("stdout.0", tmp_path / "stdout.0")
    with pytest.raises(Refused, match=r"cannot read stdout\.0 of the job: Too many levels"):
        bite(TaskOutput(tmp_path))


def test_what_a_response_was_worth_ends_the_bite(tmp_path, write):
    write("stdout", b"line\n" * 100)
    output = TaskOutput(tmp_path, 42)
    budget = Budget(chunks=4)
    said = []
    for piece in output.bite(budget, ended=True):
        said.append(piece.data)
        budget.chunks -= 1
    assert said == [b"line\n" * 8] * 2
    rest = b"".join(data for _, _, data in bite(output, ended=True, budget=Budget(chunks=99)))
    assert rest == b"line\n" * 84

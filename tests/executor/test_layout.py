"""Which task runs where, with which variables and how many."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.executor import layout
from fluxsched.executor.base import JobLaunch, TaskSettings, spool_directory
from fluxsched.executor.cleanup import clear_orphans
from fluxsched.executor.layout import TASKS_JOB_MAX, Tags, blocks, processing_units
from fluxsched.system import processes

# Tasks over ranks in blocks of slots, and the names of output files: arithmetic and text only.


def r_of_entries(*entries, nslots=None):
    lite = [{"rank": ranks, "children": children} for ranks, children in entries]
    execution = {"R_lite": lite, "starttime": 0, "expiration": 0}
    if nslots is not None:
        execution["nslots"] = nslots
    return ResourceSet.parse({"version": 1, "execution": execution})


def laid_out(jobspec, resources):
    return [(block.rank, block.first, block.ntasks) for block in blocks(jobspec, resources)]


UNEVEN = (("3", {"core": "0-3"}), ("7", {"core": "0-1"}))


def test_a_rank_has_as_many_tasks_as_its_cores_make_slots():
    jobspec = Jobspec.from_command(["true"], ntasks=3, cores_per_task=2)
    assert laid_out(jobspec, r_of_entries(*UNEVEN, nslots=3)) == [(3, 0, 2), (7, 2, 1)]


def test_without_nslots_the_slots_are_derived():
    jobspec = Jobspec.from_command(["true"], ntasks=3, cores_per_task=2)
    assert laid_out(jobspec, r_of_entries(*UNEVEN)) == [(3, 0, 2), (7, 2, 1)]
    on_nodes = Jobspec.from_command(["true"], ntasks=4, nodes=2, exclusive=True)
    assert laid_out(on_nodes, r_of_entries(*UNEVEN)) == [(3, 0, 2), (7, 2, 2)]


def test_whole_nodes_share_the_slots_evenly_whatever_they_have():
    jobspec = Jobspec.from_command(["true"], ntasks=4, nodes=2, exclusive=True)
    assert laid_out(jobspec, r_of_entries(*UNEVEN, nslots=4)) == [(3, 0, 2), (7, 2, 2)]


def test_gpus_bound_the_slots_too():
    jobspec = Jobspec.from_command(["true"], ntasks=3, gpus_per_task=1)
    resources = r_of_entries(("0", {"core": "0-3", "gpu": "0"}), ("1", {"core": "0-1", "gpu": "0-1"}))
    assert laid_out(jobspec, resources) == [(0, 0, 1), (1, 1, 2)]


def count_of(count, slots):
    raw = Jobspec.from_command(["true"], ntasks=slots, cores_per_task=2).to_json()
    return Jobspec.parse({**raw, "tasks": [{"command": ["true"], "slot": raw["tasks"][0]["slot"], "count": count}]})


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        ({"per_slot": 2}, [(3, 0, 4), (7, 4, 2)]),
        ({"total": 1}, [(3, 0, 1), (7, 1, 0)]),
        ({"total": 3}, [(3, 0, 2), (7, 2, 1)]),
        ({"total": 5}, [(3, 0, 4), (7, 4, 1)]),
        ({"per_resource": {"type": "core", "count": 1}}, [(3, 0, 4), (7, 4, 2)]),
    ],
)
def test_every_way_to_count_tasks_fills_ranks_in_order(count, expected):
    assert laid_out(count_of(count, 3), r_of_entries(*UNEVEN, nslots=3)) == expected


def test_too_many_tasks_are_refused_with_the_limit():
    jobspec = Jobspec.from_command(["true"], ntasks=TASKS_JOB_MAX + 1)
    with pytest.raises(LimitExceeded, match=f"{TASKS_JOB_MAX + 1} tasks.*{TASKS_JOB_MAX}"):
        blocks(jobspec, r_of_entries(("0", {"core": "0"}), nslots=TASKS_JOB_MAX + 1))
    assert len(blocks(jobspec, r_of_entries(("0", {"core": "0"}), nslots=TASKS_JOB_MAX))) == 1


def test_an_empty_r_runs_nowhere():
    with pytest.raises(InvalidValue, match="no ranks"):
        blocks(Jobspec.from_command(["true"]), ResourceSet())


def test_processing_units_are_the_union_of_the_cores():
    topology = [Idset.parse("0,4"), Idset.parse("1,5"), Idset.parse("2,6")]
    assert processing_units(Idset.parse("0,2"), topology) == {0, 2, 4, 6}
    assert processing_units(Idset(), topology) == set()
    assert processing_units(Idset.parse("2-3"), topology) is None


def tags(jobspec=None):
    """Of job 9: three tasks on node1 (rank 1), one on node5 (rank 5)."""
    resources = ResourceSet.parse(
        {"version": 1, "execution": {"R_lite": [{"rank": "1", "children": {"core": "0-2", "gpu": "1"}},
                                                {"rank": "5", "children": {"core": "7"}}],
                                     "starttime": 0, "expiration": 0, "nodelist": ["node[1,5]"]}}
    )  # fmt: skip
    jobspec = jobspec or Jobspec.from_command(["/usr/bin/prog", "x"], ntasks=4)
    return Tags(9, jobspec, blocks(jobspec, resources), resources.to_json())


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("out-{{id}}.txt", "out-ƒA.txt"),
        ("{{jobid}}/{{ id.dec }}", "ƒA/9"),
        ("{{id.f58plain}} {{jobid.hex}} {{id.dothex}}", "fA 0x9 0000.0000.0000.0009"),
        ("{{name}}-{{nnodes}}-{{size}}-{{ntasks}}", "prog-2-4-4"),
        ("{{taskid}} {{task.id}} {{task.rank}} {{task.index}} {{task.localid}}", "2 2 2 2 2"),
        ("{{node.id}} {{node.name}} {{node.broker_rank}} {{node.cores}} {{node.gpus}} {{node.ncores}}",
         "0 node1 1 0-2 1 3"),
        ("{{other}}-{{id.words}}-{{node.x}}-{{", "{{other}}-{{id.words}}-{{node.x}}-{{"),
        ("plain", "plain"),
    ],
)  # fmt: skip
def test_tags_of_a_path_are_those_of_flux(template, expected):
    assert tags().fill(template, 2) == expected


def test_tags_of_a_node_and_a_task_follow_the_task():
    assert tags().fill("{{node.id}} {{node.name}} {{node.gpus}} {{taskid}} {{task.index}}", 3) == "1 node5  3 0"


def test_the_name_of_a_job_goes_before_that_of_its_program():
    assert tags(Jobspec.from_command(["/usr/bin/prog"], name="mine", ntasks=4)).fill("{{name}}") == "mine"


# Jobs of several parts, and elastic jobs: real tasks start on targets that a job gets, and end on those it gives.


Shop = Any
"""That of `conftest.py`."""
FOREVER = "echo up; exec sleep 300"
STUBBORN = "trap '' TERM; echo up; while :; do sleep 300; done"


@pytest.fixture(autouse=True)
def ours(monkeypatch):
    """The job path that all jobs here are within: other workers run jobs of the same ids at the same time."""
    path = f"worker{os.getpid()}"
    monkeypatch.setenv(processes.PATH_VARIABLE, path)
    return path


def r_of(ranks, parts=None):
    hosts = [",".join(f"a{rank}" for rank in Idset.parse(ranks))]
    lite = [{"rank": ranks, "children": {"core": "0-1"}}]
    execution = {"R_lite": lite, "nodelist": hosts, "starttime": 0, "expiration": 0}
    found = {"version": 1, "execution": execution}
    return found if parts is None else {**found, "scheduling": {"writer": "fluxsched", "parts": parts}}


def elastic(command, **options):
    nodes = {"min": 1, "max": 10}
    return Jobspec.from_command(["sh", "-c", command], nodes=nodes, exclusive=True, elastic=True, **options)


def part(label, nodes):
    slot = {"type": "slot", "count": 1, "label": label, "with": [{"type": "core", "count": 2}]}
    return {"type": "node", "count": nodes, "exclusive": True, "with": [slot]}


def pool(lead, worker):
    """A coordinator and workers, with one task a node."""
    tasks = [
        {"command": ["sh", "-c", command], "slot": label, "count": {"per_slot": 1}}
        for label, command in (("lead", lead), ("worker", worker))
    ]
    resources = [part("lead", 1), part("worker", {"min": 1, "max": 8})]
    system = {"duration": 0, "fluxsched": {"elastic": True}}
    return Jobspec.parse({"version": 999, "resources": resources, "tasks": tasks, "attributes": {"system": system}})


def start(shop, jobspec, r, jobid=1):
    shop.executor.start(JobLaunch(jobid, jobspec, r, TaskSettings({}, shop.spool, None, shop.scratch)))


def grow(shop, r, ranks):
    shop.executor.grow(1, r, Idset.parse(ranks))


def shrink(shop, ranks, grace_s=None):
    shop.executor.shrink(1, Idset.parse(ranks), grace_s)


def out(shop):
    files = spool_directory(shop.spool, 1).glob("stdout.*")
    return {file.name.removeprefix("stdout."): file.read_text() for file in sorted(files)}


async def released(shop, *ranks):
    await shop.until(lambda: all(("released", 1, one) in shop.said for one in ranks))


async def up(shop, *tasks):
    await shop.until(lambda: all(out(shop).get(task) for task in tasks))


# -- parts


async def test_each_part_runs_its_own_command_and_knows_its_label(shop):
    say = 'echo "$FLUXSCHED_PART $FLUX_TASK_RANK $FLUX_TASK_LOCAL_ID $FLUX_JOB_SIZE $FLUX_JOB_NNODES"'
    start(shop, pool(say, say), r_of("0-2", {"lead": "1", "worker": "0,2"}))
    assert await shop.finished() == 0
    assert out(shop) == {"0": "lead 0 0 3 3\n", "1": "worker 1 0 3 3\n", "2": "worker 2 0 3 3\n"}


async def test_an_r_that_does_not_say_whose_a_rank_is_fails_the_job(shop):
    with pytest.raises(Exception, match="assigns ranks 2 to no part"):
        start(shop, pool("true", "true"), r_of("0-2", {"lead": "1", "worker": "0"}))


# -- grow


async def test_new_tasks_run_the_parts_command_under_new_numbers(shop):
    say = 'echo "$FLUXSCHED_PART $FLUX_TASK_RANK of $FLUX_JOB_SIZE on $FLUX_JOB_NNODES"; sleep 300'
    start(shop, pool(say, say), r_of("0-1", {"lead": "0", "worker": "1"}))
    await up(shop, "0", "1")
    grow(shop, r_of("5-6", {"worker": "5-6"}), "5-6")
    await up(shop, "2", "3")
    assert out(shop)["2"] == "worker 2 of 4 on 4\n"
    assert out(shop)["3"] == "worker 3 of 4 on 4\n"
    shop.executor.kill(1, signal.SIGTERM)
    assert await shop.finished() == signal.SIGTERM
    assert len(shop.usage()["tasks"]) == 4


async def test_new_tasks_wait_behind_their_gate_until_they_are_on_record(shop):
    start(shop, elastic(FOREVER), r_of("0"))
    await up(shop, "0")
    first = shop.records[1]
    shop.held = []
    grow(shop, r_of("1"), "1")
    await shop.until(lambda: bool(shop.held))
    assert out(shop)["1"] == ""
    [[pid, ticks]] = shop.records[1]["groups"]
    assert shop.records[1] == {**first, "groups": [[pid, ticks]]}
    stat = processes.stat_of(pid)
    assert stat is not None
    assert stat.start_ticks == ticks
    shop.commit()
    await up(shop, "1")


async def test_output_of_ended_tasks_is_kept_also_in_a_file_of_the_users(shop, tmp_path):
    file = tmp_path / "all"
    start(shop, elastic('echo "task $FLUX_TASK_RANK"; sleep 300', output=str(file)), r_of("0-1"))
    await shop.until(lambda: file.exists() and len(file.read_text().splitlines()) == 2)
    shrink(shop, "1")
    await released(shop, "1")
    grow(shop, r_of("1"), "1")
    await shop.until(lambda: len(file.read_text().splitlines()) == 3)
    assert sorted(file.read_text().splitlines()) == ["task 0", "task 1", "task 2"]


async def test_files_are_reported_when_tasks_begin_and_end_to_print_into_them(shop):
    said = []
    note = {"spooled": lambda jobid, names: said.append(names), "closed": lambda jobid, names: said.append(names)}
    shop.executor._reports = replace(shop.executor._reports, **note)
    start(shop, elastic(FOREVER), r_of("0-1"))
    await up(shop, "0", "1")
    shrink(shop, "1")
    await released(shop, "1")
    assert said == [["stdout.0", "stderr.0", "stdout.1", "stderr.1"], ["stdout.1", "stderr.1"]]


async def test_new_tasks_get_the_input_that_comes_from_then_on(shop):
    start(shop, elastic("head -n1; sleep 300"), r_of("0"))
    await shop.until(lambda: shop.executor.input_of(1) is not None)
    shop.executor.input_of(1).send(b"early\n", None, eof=False, taken=lambda: None)
    grow(shop, r_of("1"), "1")
    await shop.until(lambda: len(shop.executor.input_of(1)._tasks) == 2)
    shop.executor.input_of(1).send(b"late\n", None, eof=False, taken=lambda: None)
    await up(shop, "0", "1")
    assert out(shop) == {"0": "early\n", "1": "late\n"}


async def test_tasks_that_cannot_be_started_cost_the_job_nothing_but_them(shop, monkeypatch):
    start(shop, elastic(FOREVER), r_of("0"))
    await up(shop, "0")
    monkeypatch.setattr(layout, "TASKS_JOB_MAX", 1)
    grow(shop, r_of("1"), "1")
    shrink(shop, "1")
    await released(shop, "1")
    assert list(out(shop)) == ["0"]
    assert not [said for said in shop.said if said[0] in ("failed", "raised")]


# -- shrink


async def test_what_a_shrink_ends_does_not_fail_the_job(shop):
    start(shop, elastic("[ $FLUX_TASK_RANK = 0 ] && { read x; exit 0; }; echo up; exec sleep 300"), r_of("0-2"))
    await up(shop, "1", "2")
    shrink(shop, "1-2")
    await shop.until(lambda: any(said[0] == "released" for said in shop.said))
    await shop.until(lambda: shop.executor.input_of(1) is not None)
    shop.executor.input_of(1).send(b"go\n", None, eof=False, taken=lambda: None)
    assert await shop.finished() == 0
    assert {said[2] for said in shop.said if said[0] == "released"} <= {"1-2", "1", "2"}  # the end may cover the rest
    assert [task["status"] for task in shop.usage()["tasks"]] == [0, signal.SIGTERM, signal.SIGTERM]


async def test_a_task_that_had_failed_before_the_shrink_still_counts(shop):
    start(shop, elastic("[ $FLUX_TASK_RANK = 1 ] && exit 3; echo up; read x; exit 0"), r_of("0-1"))
    await up(shop, "0")
    group = shop.executor._runs[1].groups[1]
    await shop.until(lambda: group.first_running() is None)
    shrink(shop, "1")
    await released(shop, "1")
    shop.executor.input_of(1).send(b"", None, eof=True, taken=lambda: None)
    assert await shop.finished() == 3 << 8


async def test_one_that_does_not_end_is_killed_with_all_that_it_left_there(ours, shop):
    stray = "setsid sh -c 'trap \"\" TERM; sleep 300; true' & sleep 300 & echo up; exec sleep 300"
    start(shop, elastic(f"[ $FLUX_TASK_RANK = 0 ] && {{ {FOREVER}; }}; trap '' TERM; {stray}"), r_of("0-1"))
    await up(shop, "0", "1")
    before = processes.children_of(os.getpid())
    shrink(shop, "1", 0.05)
    await released(shop, "1")
    assert shop.executor._runs[1].groups[0].rank == 0
    left = [pid for pid, _ in processes.living() if processes.is_within(processes.path_of(pid), f"{ours}/f2/1")]
    assert left == []
    elsewhere = [pid for pid in before if processes.is_within(processes.path_of(pid), f"{ours}/f2/0")]
    assert elsewhere, "what is elsewhere goes on"


async def test_a_job_whose_other_tasks_end_meanwhile_is_finished_and_nothing_is_left(ours, shop):
    start(shop, elastic(f"[ $FLUX_TASK_RANK = 0 ] && {{ read x; exit 0; }}; {STUBBORN}"), r_of("0-1"))
    await up(shop, "1")
    shrink(shop, "1", 0.3)
    shop.executor.input_of(1).send(b"", None, eof=True, taken=lambda: None)
    assert await shop.finished() == 0
    assert not [pid for pid, _ in processes.living() if processes.is_within(processes.path_of(pid), f"{ours}/f2")]


async def test_targets_without_tasks_are_released_at_once_and_others_not_twice(shop):
    start(shop, elastic(FOREVER), r_of("0-1"))
    await up(shop, "0", "1")
    shrink(shop, "7")
    shrink(shop, "1")
    shrink(shop, "1")
    whole = [["7", "1"], ["1,7"]]  # together if the tasks end as quickly
    await shop.until(lambda: [said[2] for said in shop.said if said[0] == "released"] in whole)


async def test_a_shrink_before_the_tasks_run_and_a_cancel_while_it_grows(shop):
    shop.held = []
    start(shop, elastic(FOREVER), r_of("0-1"))
    shrink(shop, "1")
    await released(shop, "1")
    shop.commit()
    await up(shop, "0")
    shop.held = []
    grow(shop, r_of("1"), "1")
    shop.executor.kill(1, signal.SIGTERM)
    await shop.until(lambda: len(shop.held) == 1)
    shop.commit()
    assert await shop.finished() == signal.SIGTERM
    assert "up" not in out(shop).get("2", "")


async def test_all_groups_on_record_are_ended_after_a_killed_keeper(shop):
    bare = "exec env -i sleep 300"
    start(shop, elastic(bare), r_of("0"))
    await shop.until(lambda: shop.said != [])
    grow(shop, r_of("1"), "1")
    await shop.until(lambda: "groups" in shop.records[1] and not shop.executor._runs[1].starts)
    pids = sorted(shop.executor._runs[1].pids)
    notes = clear_orphans(dict(shop.records), 0.1)
    assert f"2 processes ({pids[0]}, {pids[1]})" in notes[1]
    await shop.finished()

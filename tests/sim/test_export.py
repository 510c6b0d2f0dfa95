"""The record of an instance as a trace: what is in it, what is left out, and that `sim run` reads it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue
from fluxsched.sim.commands import export_trace
from fluxsched.sim.simulation import run
from fluxsched.sim.traces import Machine, Trace, read_lines, read_trace
from tests.site import timed as timed
from tests.site import world as world

R = {"version": 1, "execution": {"R_lite": [{"rank": "0-3", "children": {"core": "0-7"}}], "nodelist": ["n[0-3]"]}}
MACHINE = ResourceSet.parse(R)
LOOK_S = 0.05


def listed(jobid: int, submit_s: float, run_s: float | None, **more: Any) -> dict[str, Any]:
    """Return a job as `job-manager.list` has it; it waited for 5 s."""
    times = {} if run_s is None else {"t_run": submit_s + 5.0, "t_cleanup": submit_s + 5.0 + run_s}
    usual = {"state": "INACTIVE", "name": "secret-app", "userid": 4711, "urgency": 16, "duration": 600.0, "ntasks": 2}
    return {"id": jobid, "t_submit": submit_s, **usual, "ncores": 8, "result": "COMPLETED", **times, **more}


SPEC = Jobspec.from_command(["secret-app", "-x"], nodes=2, exclusive=True, duration_s=600.0, environment={"S": "x"})
ROWS = [
    listed(30, 1060.5, 20.0, userid=4712, bank="physics", queue="batch", result="FAILED", urgency=20),
    listed(20, 1000.0, 60.0, bank="physics", preemptible_after=7.0),
    listed(40, 1070.0, None, result="CANCELED"),
    listed(50, 1080.0, 3.0, userid=4711, bank="maths", queue="debug", result="TIMEOUT"),
]
PAIRS = [(row, SPEC.to_json()) for row in ROWS]


def written(**options: bool) -> tuple[Trace, str]:
    trace, lines = export_trace(None, PAIRS, MACHINE, **options)
    return trace, "\n".join(lines)


def test_jobs_are_as_asked_with_their_real_times() -> None:
    trace, text = written()
    assert (trace.machine, trace.left_out, [fault.why for fault in trace.faults]) == (Machine(4, 8), 1, ["never ran"])
    again = read_lines(text.splitlines(), "record")
    assert (again.jobs, again.bad, again.machine) == (trace.jobs, 0, trace.machine)
    first, second, third = again.jobs
    assert (first.job, first.submit_s, first.run_s, first.limit_s, first.wait_s) == (20, 0.0, 60.0, 600.0, 5.0)
    assert (first.user, first.bank, first.preemptible_after_s, first.result) == (4711, "physics", 7.0, "COMPLETED")
    assert (second.submit_s, second.urgency, second.queue, second.result) == (60.5, 20, "batch", "FAILED")
    assert Jobspec.parse(json.loads(third.ask.jobspec or "")).request == SPEC.request
    assert "secret" not in text, "programs and environments are nobody's business"


def test_anonymous_names_nobody() -> None:
    trace, text = written(anonymous=True)
    assert [(job.job, job.user, job.bank) for job in trace.jobs] == [(1, 1, "bank1"), (2, 2, "bank1"), (4, 1, "bank2")]
    assert not [word for word in ("4711", "4712", "physics", "maths", "secret") if word in text]
    _, swf = written(anonymous=True, swf=True)
    assert not [word for word in ("4711", "4712", "physics", "maths", "secret") if word in swf]


def test_anonymous_numbers_the_labels_of_parts() -> None:
    node = {"type": "node", "count": 1, "exclusive": True}
    slots = [{"type": "slot", "count": 1, "label": label, "with": [{"type": "core", "count": 1}]} for label in "zy"]
    labels = [{**slot, "label": f"secret-{slot['label']}"} for slot in slots]
    tasks = [{"command": ["a"], "slot": slot["label"], "count": {"per_slot": 1}} for slot in labels]
    spec = {"version": 999, "resources": [{**node, "with": [slot]} for slot in labels], "tasks": tasks}
    spec["attributes"] = {"system": {"duration": 60.0}}
    trace, lines = export_trace(None, [(ROWS[0], spec)], MACHINE, anonymous=True)
    assert "secret" not in "\n".join(lines)
    again = Jobspec.parse(json.loads(trace.jobs[0].ask.jobspec or ""))
    assert [part.label for part in again.request.parts] == ["slot1", "slot2"]


def test_swf_has_processors_status_and_numbers_of_queues(tmp_path: Path) -> None:
    path = tmp_path / "record.swf"
    export_trace(path, PAIRS, MACHINE)
    text = path.read_text()
    assert "; Queues: 1 batch, 2 debug\n; Groups: 1 physics, 2 maths\n" in text
    again = read_trace(path)
    assert [job.ask.nslots for job in again.jobs] == [8, 8, 8]
    assert [(job.run_s, job.queue, job.group) for job in again.jobs] == [(60.0, None, 1), (20.0, 1, 1), (3.0, 2, 2)]
    assert [job.result for job in again.jobs] == ["COMPLETED", "FAILED", "FAILED"]


def test_where_nothing_has_run_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="no job of the 1 listed has run and ended: nothing to write; see --since"):
        export_trace(tmp_path / "none.jsonl", PAIRS[2:3], MACHINE)
    assert not list(tmp_path.iterdir())
    (bad,) = read_lines(['{"submit": 1, "run": 1, "result": "FINE"}'], "x").faults
    assert bad.why == "result 'FINE' is not one of COMPLETED, FAILED, TIMEOUT, CANCELED: leave it out if unknown"


def test_elastic_jobs_have_work_and_what_they_asked_for() -> None:
    made = Jobspec.from_command(["a"], nodes="1-4", exclusive=True, elastic=True, max_hops=2, duration_s=60.0).to_json()
    made["attributes"]["system"]["fluxsched"]["reservation"] = "course"
    row = listed(1, 1000.0, 60.0, sizes=[("0-3", 1025.0, 32)])
    trace, lines = export_trace(None, [(row, made)], MACHINE)
    (again,) = read_lines(list(lines), "record").jobs
    assert (again.work, again.run_s) == (20 * 32 + 40 * 8, 0.0)
    asked = Jobspec.parse(again.ask.jobspec or "")
    assert (asked.request.elastic, asked.request.max_hops, asked.request.reservation) == (True, 2, "course")
    assert run(trace, "easy").jobs.state == ["completed"], "there are no reservations in a simulation"


async def test_the_record_of_an_instance_runs_in_the_simulator(world: Any, timed: Any, tmp_path: Path) -> None:
    site = await world.instance(fake="2x4", schedulers=("easy",))
    client, asker = await world.client(site), world.second(site)
    ids = [await client.submit(timed("0.2s", nodes=nodes, exclusive=True, duration_s=60.0)) for nodes in (1, 2, 1)]
    for jobid in ids:
        await client.wait(jobid)
    while len(jobs := (await asker.ok("job-manager.list", {"states": ["INACTIVE"]}))["jobs"]) < len(ids):
        await asyncio.sleep(LOOK_S)
    pairs = [
        (job, (await asker.ok("job-manager.lookup", {"id": job["id"], "keys": ["jobspec"]}))["jobspec"]) for job in jobs
    ]
    path = tmp_path / "record.jsonl"
    export_trace(path, pairs, ResourceSet.parse((await asker.ok("resource.sched-status"))["all"]))
    trace = read_trace(path)
    assert (len(trace.jobs), trace.bad, trace.machine) == (3, 0, Machine(2, 4))
    assert all(0.2 <= job.run_s < 60.0 and job.result == "COMPLETED" for job in trace.jobs)
    assert len(run(trace, "easy").jobs) == 3

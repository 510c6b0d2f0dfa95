"""A record through the simulator: as it was, and what would have been under changes of policy and machine."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from fluxsched.cli.main import main
from fluxsched.config.values import SchedulerSettings
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.instance import record as recording
from fluxsched.instance.assembly import Assembly
from fluxsched.instance.record import read_record
from fluxsched.instance.restarts import KIND, RANKS
from fluxsched.sim import commands
from fluxsched.sim.commands import Change, History, RecordStudy, outages, what_if
from fluxsched.sim.record import RecordPeriod
from fluxsched.sim.site import Site, SiteEvent
from fluxsched.store.schema import CONFIGURED as CONFIGURED_ROW
from tests.history.by_hand import ByHand
from tests.sim.test_export import LOOK_S, listed
from tests.site import timed as timed
from tests.site import world as world

R = ResourceSet.parse(
    {"version": 1, "execution": {"R_lite": [{"rank": "0-3", "children": {"core": "0-7"}}], "nodelist": ["n[0-3]"]}}
)
BEGIN_S, INF = 1000.0, float("inf")
CONFIG = {"queues": {"batch": {"policy": "fifo"}, "debug": {}}, "policy": {}}


def spec(nodes: int | str, limit_s: float = 600.0, **more: Any) -> dict[str, Any]:
    return Jobspec.from_command(["app"], nodes=nodes, exclusive=True, duration_s=limit_s, **more).to_json()


def ran(
    jobid: int, submit_s: float, start_s: float, run_s: float, nodes: int | str = 4, **more: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a job that was submitted, started and ran then; times since BEGIN_S."""
    begun_s = BEGIN_S + start_s
    times = {"t_run": begun_s, "t_cleanup": begun_s + run_s, "t_sched": BEGIN_S + submit_s}
    row = listed(jobid, BEGIN_S + submit_s, run_s, **{**times, "ncores": 8 * int(str(nodes)[0]), **more})
    return row, spec(nodes)


THREE = (ran(1, 0, 0, 100, 3), ran(2, 10, 100, 100, 4), ran(3, 20, 200, 50, 1, duration=60.0))
"""As under fifo: the last one would have fitted beside the first."""


def study(
    *jobs: tuple[dict[str, Any], dict[str, Any]],
    change: Change = Change(),  # noqa: B008 - frozen
    since_s: float | None = None,
    until_s: float = 2000.0,
    config: dict[str, Any] | None = None,
    policies: tuple[tuple[str, tuple[str, ...]], ...] = (("fifo", ()),),
    unusable: tuple[tuple[float, float, Idset], ...] = (),
) -> RecordStudy:
    period = RecordPeriod(since_s, until_s)
    history = History(jobs or THREE, period, R, config or {}, policies, unusable)
    return what_if(history, change, lambda: 0.0)


def starts(found: RecordStudy) -> list[list[float | None]]:
    return [result.jobs.start for result in found.results]


def test_the_first_result_repeats_the_record_and_says_how_near_it_comes() -> None:
    found = study(change=Change(policies=("easy",)))
    assert starts(found) == [[0.0, 100.0, 200.0], [0.0, 100.0, 20.0]]
    assert [result.title for result in found.results] == ["as it was", "easy"]
    assert tuple(found.nearness) == (3, 90.0, 90.0, 3)
    first = next(iter(found.lines()))
    assert first.endswith("100.0 % of 3 jobs start within 60 s of their recorded start")
    assert found.to_json()["as_it_was"]["near"] == 3
    assert found.drawing()["heading"][-1] == first


def test_what_is_not_near_is_counted_as_such() -> None:
    late = (*THREE[:2], ran(3, 20, 320, 50, 1, duration=60.0))
    found = study(*late)
    assert tuple(found.nearness) == (3, 90.0, 90.0, 2)


def test_how_near_it_comes_is_said_of_one_job_and_of_none() -> None:
    assert str(study(THREE[0]).nearness).endswith("100.0 % of 1 job starts within 60 s of its recorded start")
    carried = study(ran(1, -500, -400, 450, 3), since_s=BEGIN_S)
    assert str(carried.nearness) == "as it was: no job has started in it"


def test_targets_are_added_and_taken_away() -> None:
    more = study(change=Change(nodes=4))
    assert starts(more)[1] == [0.0, 10.0, 20.0]
    assert more.results[1].targets == 8
    assert "changed: 4 targets more, like n3" in list(more.lines())
    less = study(change=Change(without="n0"))
    assert (starts(less)[1][0], less.results[1].jobs.state[1]) == (0.0, "denied")
    assert "changed: without 1 target (n0)" in less.notes


def test_what_could_not_be_used_is_drained() -> None:
    away = ((BEGIN_S - 50.0, BEGIN_S + 40.0, Idset.parse("0-1")), (BEGIN_S + 30.0, BEGIN_S + 60.0, Idset.parse("1-2")))
    found = study(ran(1, 0, 60, 100, 4), unusable=away)
    assert starts(found) == [[60.0]]
    drains = outages((*away, (BEGIN_S + 90.0, INF, Idset.parse("3"))), BEGIN_S, Site(R), Idset.parse("2"))
    assert drains == [
        SiteEvent(0.0, "assign", Idset.parse("2"), "exclude"),
        SiteEvent(0.0, "drain", Idset.parse("0-1"), "recorded"),
        SiteEvent(40.0, "undrain", Idset.parse("0"), "recorded"),
        SiteEvent(60.0, "undrain", Idset.parse("1"), "recorded"),
        SiteEvent(90.0, "drain", Idset.parse("3"), "recorded"),
    ]


def test_a_period_begins_with_what_ran_then_and_ends_with_what_runs() -> None:
    runs = {"result": None, "t_cleanup": None, "state": "RUN"}
    waits = {"result": None, "t_run": None, "t_cleanup": None, "state": "SCHED"}
    jobs = (
        ran(1, -500, -400, 450, 3), ran(2, -20, 50, 100), ran(3, 60, 150, 0, **runs), ran(4, 70, 0, 0, **waits),
        ran(5, 80, 0, 0, **{**waits, "state": "DEPEND"}),
    )  # fmt: skip
    found = study(*jobs, since_s=BEGIN_S, until_s=BEGIN_S + 300.0)
    assert starts(found) == [[0.0, 50.0, 150.0, 750.0]]
    assert [job.run_s for job in found.trace.jobs] == [50.0, 100.0, 600.0, 600.0]
    assert [job.wait_s for job in found.trace.jobs] == [None, 50.0, 90.0, None]
    assert found.trace.jobs[0].limit_s == 200.0, "what is left of it"
    assert found.notes == ["2 jobs that had not ended: taken to use up their limits"]
    assert found.trace.left_out == 1


def test_jobs_are_submitted_when_they_could_start() -> None:
    found = study(ran(1, 30, 30, 10, t_sched=BEGIN_S + 30.0, t_submit=BEGIN_S))
    assert (found.trace.jobs[0].submit_s, found.trace.jobs[0].wait_s) == (30.0, 0.0)


@pytest.mark.parametrize("policy", ["fifo", "easy", "conservative"])
def test_an_epilog_is_part_of_a_job_also_after_its_limit(policy: str) -> None:
    long, policies = {"t_inactive": BEGIN_S + 700.0}, ((policy, ()),)
    limited = {"policy": {"limits": {"duration": "10m"}}}
    jobs = (ran(1, 0, 0, 600, 4, **long), ran(2, 10, 700, 50, 4))
    found = study(*jobs, config=limited, policies=policies)
    assert (starts(found), found.results[0].jobs.end) == ([[0.0, 700.0]], [700.0, 750.0])
    assert found.results[0].jobs.state == ["completed", "completed"]
    carried = study(*jobs, since_s=BEGIN_S + 500.0, config=limited, policies=policies)
    assert (carried.trace.jobs[0].run_s, carried.trace.jobs[0].limit_s) == (200.0, 100.0)
    assert (starts(carried), carried.results[0].jobs.end) == ([[0.0, 200.0]], [200.0, 250.0])
    over = study(ran(1, 0, 0, 600, 4, **long, result="TIMEOUT"), policies=policies)
    assert (over.results[0].jobs.end, over.results[0].jobs.state) == ([600.0], ["timeout"])


def test_a_job_that_is_being_cleaned_up_has_its_targets_until_then() -> None:
    jobs = (ran(1, 0, 0, 100, result=None, state="CLEANUP"), ran(2, 10, 150, 50))
    found = study(*jobs, until_s=BEGIN_S + 130.0)
    assert found.trace.jobs[0].run_s == 130.0
    later = study(*jobs, since_s=BEGIN_S + 100.0, until_s=BEGIN_S + 130.0)
    assert later.trace.jobs[0].run_s == 30.0, "of what began before"


def test_elastic_jobs_keep_their_work() -> None:
    sizes = [("0-3", BEGIN_S + 40.0, 32)]
    row = listed(1, BEGIN_S, 100.0, t_run=BEGIN_S, t_cleanup=BEGIN_S + 100.0, ncores=8, sizes=sizes)
    found = study((row, spec("1-4", elastic=True)))
    assert found.trace.jobs[0].work == 40 * 32 + 60 * 8
    assert found.results[0].jobs.end == [1760 / 32]


def test_the_configuration_in_force_decides_and_another_may() -> None:
    both = (
        ran(1, 0, 0, 100, 3, queue="debug"),
        ran(2, 10, 100, 100, queue="debug"),
        ran(3, 20, 20, 50, 1, duration=60.0, queue="debug"),
    )
    policies = (("easy", ("default",)),)
    found = study(*both, config=CONFIG, policies=policies)
    assert starts(found) == [[0.0, 100.0, 20.0]]
    batch = tuple((row | {"queue": "batch"}, asked) for row, asked in both)
    assert starts(study(*batch, config=CONFIG, policies=policies)) == [[0.0, 100.0, 200.0]], "its queue has fifo"


def test_another_configuration(tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    path.write_text("[policy.limits]\njob-size.max.nnodes = 3\n")
    found = study(change=Change(config=path))
    assert found.results[1].jobs.state == ["completed", "denied", "completed"]
    path.write_text('[[resource.config]]\nhosts = "m[0-1]"\ncores = "0-7"\n')
    assert study(change=Change(config=path)).results[1].targets == 2
    with pytest.raises(InvalidValue, match=r"--nodes adds to the recorded machine, and .*new.toml defines another"):
        study(change=Change(config=path, nodes=1))


def test_another_configuration_may_lack_a_queue_that_had_a_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new.toml"
    path.write_text("[queues.batch]\n")
    policies = (("easy;debug=fifo;batch=fifo", ()),)
    found = study(change=Change(config=path), config=CONFIG, policies=policies)
    assert [result.policy for result in found.results] == ["easy;debug=fifo;batch=fifo", "easy;batch=fifo"]
    assert "changed: no queue debug" in found.notes
    monkeypatch.setattr(commands, "run", lambda *given, **more: pytest.fail("nothing is simulated"))
    with pytest.raises(InvalidValue, match="queue 'debug' has a policy in 'easy;debug=fifo', but is not configured"):
        study(change=Change(config=path, policies=("easy;debug=fifo",)), config=CONFIG, policies=policies)
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    with pytest.raises(InvalidValue, match="ZeroDivisionError"):
        study(change=Change(policies=(str(broken),)))


def test_several_schedulers_are_one_with_the_policies_of_their_queues() -> None:
    config = {
        "resource": {"groups": {"fast": "0"}},
        "queues": {"quick": {"group": "fast"}, "slow": {}},
    }  # fmt: skip
    policies = (("firstfit", ("fast",)), ("fifo", ("default",)))
    assert study(ran(1, 0, 0, 5, 1, queue="quick"), config=config, policies=policies).results[0].policy == (
        "fifo;quick=firstfit"
    )


def test_what_a_policy_that_is_not_ours_raises_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(WRONG)
    with pytest.raises(InvalidValue, match=rf"policy {path} raised ZeroDivisionError: .*wrong.py"):
        study(change=Change(policies=(str(path),)))


def test_errors_name_value_limit_and_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidValue, match="no policy 'eazy'"):
        Change(policies=("eazy",))
    with pytest.raises(LimitExceeded, match=r"--nodes \+262145: at most 262144 can be added"):
        Change(nodes=commands.ADDED_TARGETS_MAX + 1)
    with pytest.raises(InvalidValue, match="label 'as it was' is that of the record itself: give another one"):
        Change(policies=("easy",), labels=("as it was",))
    with pytest.raises(InvalidValue, match="label 'new' names no change: give --policy, --config, --nodes or --with"):
        Change(labels=("new",))
    with pytest.raises(InvalidValue, match="--without all: there would be no target left of 4: leave some"):
        study(change=Change(without="all"))
    with pytest.raises(InvalidValue, match="unknown ranks 9: the ranks here are 0-3"):
        study(change=Change(without="2-3,9"))
    with pytest.raises(InvalidValue, match="cannot be written: there is no directory"):
        study(change=Change(html=tmp_path / "none" / "x.html"))
    never = (listed(7, BEGIN_S, None, result="CANCELED"), spec(1))
    with pytest.raises(InvalidValue, match=r"no job of the 1 recorded since then has run: .*give an earlier --since"):
        study(never)


WRONG = """
class Wrong:
    name = "wrong"

    def schedule(self, view, now_s):
        return 1 / 0
"""

CONFIGURED = """
[queues.batch]
policy = "fifo"
[policy]
jobspec.defaults.system.queue = "batch"
"""


@pytest.mark.slow
async def test_an_instance_keeps_its_record_machine_and_configuration(
    world: Any, timed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statedir = tmp_path / "state"
    site = await world.instance(fake="2x4", schedulers=("easy",), statedir=statedir, config=CONFIGURED)
    client, asker = await world.client(site), world.second(site)
    await asker.ok("resource.drain", {"targets": "1", "reason": "test"})
    ids = [await client.submit(timed("0.2s", nodes=1, exclusive=True, duration_s=60.0)) for _ in range(2)]
    for jobid in ids:
        await client.wait(jobid)
    while len((await asker.ok("job-manager.list", {"states": ["INACTIVE"]}))["jobs"]) < len(ids):
        await asyncio.sleep(LOOK_S)
    while len(read_record(None, statedir, None, "a test").unusable) < 1:  # it is written a second later
        await asyncio.sleep(LOOK_S)
    await world.stop(site)
    record = read_record(None, statedir, None, "a test")
    assert [job["id"] for job, _ in record.jobs] == sorted(ids)
    assert record.resources is not None
    assert (len(record.resources), record.resources.count("core"), record.policies) == (2, 8, [["easy", []]])
    assert record.config["queues"]["batch"]["policy"]["scheduler"]["policy"] == "fifo"
    ((_, _, targets),) = record.unusable
    assert str(targets) == "1"
    history = History(
        record.jobs,
        RecordPeriod(None, record.until_s),
        record.resources,
        record.config,
        record.policies,
        record.unusable,
    )
    found = what_if(history, Change(policies=("easy",)), lambda: 0.0)
    assert found.results[0].policy == "easy"
    assert (found.nearness.jobs, found.nearness.near) == (2, 2)
    assert read_record(None, statedir, record.until_s + 60.0, "a test").jobs == []
    monkeypatch.setattr(recording, "RECORD_JOBS_MAX", 1)
    with pytest.raises(LimitExceeded, match="2 jobs ended in this time: the limit is 1: give a later --since"):
        read_record(None, statedir, None, "a test")
    monkeypatch.undo()
    page = tmp_path / "page.html"
    done = await at_terminal("what-if", "--statedir", str(statedir), "--policy", "fifo", "--html", str(page), "--json")
    assert json.loads(done)["as_it_was"] == found.nearness._asdict()
    assert "as it was: median wait" in page.read_text()
    assert len((await at_terminal("sim", "export", "--statedir", str(statedir))).splitlines()) == 1 + len(ids)


async def at_terminal(*words: str) -> str:
    """Return what a command prints."""
    done = await asyncio.to_thread(CliRunner().invoke, main, list(words))
    assert done.exit_code == 0, done.output
    return done.stdout


class Recorder(ByHand):
    """A store, written by hand, as a running instance has it."""

    def keep(self, where: tuple[str, str], value: dict[str, Any]) -> None:
        self.store.add("saved", (*where, json.dumps(value).encode()))
        self.flush()


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    found = Recorder(tmp_path)
    monkeypatch.setattr(recording, "DATABASE_NAME", "state")
    yield found
    found.close()


def test_what_0_1_0_kept_is_no_machine(recorder: Recorder, tmp_path: Path) -> None:
    recorder.keep((KIND, RANKS), {"R": {"core": "0"}})
    assert read_record(None, tmp_path, None, "a test").resources is None
    recorder.keep((KIND, RANKS), {"R": R.to_json()})
    recorder.keep(CONFIGURED_ROW, {"config": {}, "policies": []})
    assert read_record(None, tmp_path, None, "a test").resources == R


def test_files_of_policies_are_kept_as_they_are_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept: list[Any] = []
    settings = SimpleNamespace(
        schedulers=[SchedulerSettings("./a.py"), SchedulerSettings("easy|b.py", groups=("fast",))],
        config=SimpleNamespace(name="etc/site.toml"),
    )
    store = SimpleNamespace(add=lambda table, values: kept.append(json.loads(values[-1])))
    raw = {"queues": {"x": {"policy": "fair:backfill=./c.py", "plugins": ["d.py:y=z.yaml"]}, "y": {}}}
    keeper: Any = SimpleNamespace(settings=settings, store=store)
    Assembly._keep_config(keeper, raw)
    (row,) = kept
    assert row["policies"] == [[f"{tmp_path}/a.py", []], [f"easy|{tmp_path}/b.py", ["fast"]]]
    assert row["config"]["queues"] == {
        "x": {
            "policy": {"scheduler": {"policy": f"fair:backfill={tmp_path}/etc/c.py"}},
            "plugins": [f"{tmp_path}/etc/d.py:y={tmp_path}/etc/z.yaml"],
        },
        "y": {},
    }


@pytest.mark.parametrize(
    "row",
    [
        {"config": {}, "policies": [["./own.py:x=1", []]]},
        {"config": {}, "policies": [["fifo", []], ["fair:backfill=own.py", ["fast"]]]},
        {"config": {}, "policies": [["fifo|./own.py", []]]},
        {"config": {}, "policies": [["fifo;batch=./own.py", []]]},
        {"config": {"queues": {"batch": {"policy": {"scheduler": {"policy": "./own.py"}}}}}, "policies": []},
        {"config": {"queues": {"batch": {"plugins": ["./own.py"]}}}, "policies": []},
    ],
)
def test_code_that_the_record_of_another_user_names_is_not_executed(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: dict[str, Any]
) -> None:
    recorder.keep(CONFIGURED_ROW, row)
    assert read_record(None, tmp_path, None, "a test").config == row["config"]
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(Refused, match=r"the record names the policy .*own\.py, .*: run this as that user"):
        read_record(None, tmp_path, None, "a test")
    assert read_record(None, tmp_path, None, "a test", is_run=False).config == row["config"]
    recorder.keep(CONFIGURED_ROW, {"config": {}, "policies": [["fair:backfill=easy", []]]})
    assert read_record(None, tmp_path, None, "a test").policies == [["fair:backfill=easy", []]]


def test_a_record_is_of_one_moment(recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder.keep(CONFIGURED_ROW, {"config": {}, "policies": [["fifo", []]]})
    read = recording.read_active

    def meanwhile(*given: Any) -> Any:
        recorder.keep(CONFIGURED_ROW, {"config": {}, "policies": [["easy", []]]})
        return read(*given)

    monkeypatch.setattr(recording, "read_active", meanwhile)
    assert read_record(None, tmp_path, None, "a test").policies == [["fifo", []]]


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=f"{tmp_path} has no state of an instance: name a directory of --statedir"):
        read_record(None, tmp_path, None, "a test")
    with pytest.raises(Refused, match="tcp://far:1 may be on another machine, and a test reads the instance's file"):
        read_record("tcp://far:1", None, None, "a test")

"""Jobs with work, of several parts, elastic, and under switches: when they end, what they had, how far they reach."""

import json

import pytest

from fluxsched.config.inventory import fake_resources
from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.sched.policies.backfill import FirstFit
from fluxsched.sched.policy import Shrink
from fluxsched.sim.report import report
from fluxsched.sim.result import Columns, beside_start_core_s, busy_steps, used_core_s, write_csv
from fluxsched.sim.simulation import Sizes, largest_hops, run
from fluxsched.sim.site import with_switches
from fluxsched.sim.traces import Ask, Trace, TraceJob, read_lines


def trace_of(*rows):
    header = {"trace": 1, "machine": {"targets": 8, "cores": 4}}
    trace = read_lines(map(json.dumps, (header, *rows)), "t")
    assert not trace.bad, trace.faults
    return trace


def test_a_job_with_work_ends_when_it_has_had_it():
    trace = trace_of({"submit": 0, "work": 960, "nodes": 2, "nslots": 2, "cores": 4})
    assert run(trace).jobs.end == [120.0]


def test_its_limit_comes_first():
    result = run(trace_of({"submit": 0, "work": 960, "cores": 4, "duration": 100}))
    assert (result.jobs.end, result.jobs.state) == ([100.0], ["timeout"])


def test_parts_start_together():
    parts = [{"label": "lead", "nodes": 1}, {"label": "work", "nodes": 4, "cores": 4}]
    trace = trace_of({"submit": 0, "work": 800, "parts": parts}, {"submit": 0, "run": 1, "nodes": 4, "nslots": 4})
    result = run(trace, placements=True)
    assert (result.jobs.procs, result.jobs.start) == ([20, 4], [0.0, 40.0])


WORKED = TraceJob(1, 0.0, 0.0, 100.0, Ask(nodes="1-4", exclusive=True, elastic=True), work=400.0)


def test_growing_and_shrinking_change_the_end():
    machine, sizes = fake_resources("4x4"), Sizes([WORKED])
    assert sizes.began(0, machine.restrict(Idset.parse("0-1")), 10.0, 100.0) == 60.0
    assert sizes.grew(0, machine.restrict(Idset.parse("2-3")), 20.0) == 40.0
    leaves, end_s = sizes.shrank(0, Idset.parse("1-3"), 30.0)
    assert (leaves.ranks, end_s) == (Idset.parse("1-3"), 70.0)
    assert sizes.ended(0, 70.0)
    assert [(each.when_s, each.until_s, each.change) for each in sizes.resizes] == [(20.0, 70.0, 8), (30.0, 70.0, -12)]
    assert not sizes.running


def test_what_it_had_above_and_below_its_size_at_the_start():
    sizes = Sizes([WORKED])
    machine = fake_resources("4x4")
    sizes.began(0, machine.restrict(Idset.parse("0-1")), 10.0, 100.0)
    sizes.grew(0, machine.restrict(Idset.parse("2-3")), 20.0)
    sizes.shrank(0, Idset.parse("1-3"), 30.0)
    sizes.ended(0, 70.0)
    jobs = Columns([1], [0.0], [10.0], [70.0], [8], [None], [None], ["completed"], resizes=sizes.resizes)
    assert used_core_s(jobs, 70.0) == WORKED.work
    assert busy_steps(jobs) == [(10.0, 8), (20.0, 16), (30.0, 4), (70.0, 0)]
    assert beside_start_core_s(jobs, 70.0) == {0: (80.0, 160.0)}
    assert beside_start_core_s(jobs, 25.0) == {0: (40.0, 0.0)}


def test_an_elastic_job_takes_what_is_idle_and_gives_it_back(tmp_path):
    """Two jobs that begin at 0 and 30; the second one needs half the machine."""
    trace = trace_of(
        {"submit": 0, "work": 3200, "nodes": "2-8", "cores": 4, "exclusive": True, "elastic": True, "user": 1},
        {"submit": 30, "run": 40, "nodes": 4, "nslots": 4, "cores": 4, "exclusive": True, "user": 2},
    )
    result = run(trace, "easy", check=True, accounts=True)
    assert result.jobs.start == [0.0, 30.0]
    (shrunk, *grown) = result.jobs.resizes
    assert (shrunk.when_s, shrunk.change, sum(each.change for each in grown)) == (30.0, -16, 16)
    ended_s = max(end for end in result.jobs.end if end is not None)
    used = {course.name: course.used_s for course in result.accounts}
    assert used["default/1"] == pytest.approx(3200.0)
    assert used["default/2"] == pytest.approx(640.0)
    assert result.utilisation_of["core"] == pytest.approx(3840.0 / (32 * ended_s))
    summary = result.summary
    assert (summary.grows, summary.shrinks) == (len(grown), 1)
    assert summary.shrunk_core_s == pytest.approx(16 * (grown[0].when_s - 30.0))
    write_csv([run(trace_of({"submit": 0, "run": 1}), "easy"), result], tmp_path / "jobs.csv")
    lines = (tmp_path / "jobs.csv").read_text().splitlines()
    assert lines[0].endswith(",lost,grown,shrunk,hops")
    assert [line.split(",")[-3:] for line in lines[1:]] == [["", "", ""], ["0", "960", ""], ["", "", ""]]


def test_a_job_without_work_keeps_its_end():
    sizes = Sizes([WORKED._replace(work=None, run_s=50.0)])
    machine = fake_resources("4x4")
    assert sizes.began(0, machine.restrict(Idset.parse("0")), 10.0, 100.0) == 60.0
    assert sizes.grew(0, machine.restrict(Idset.parse("1-3")), 20.0) == 60.0
    assert sizes.ended(0, 60.0)


# ---- switches


@pytest.mark.parametrize(("source", "hops"), [("8", 2), ("4", 4), ("2x2", 6), ("1x2x2", 8)])
def test_made_up_switches(source, hops):
    machine = with_switches(fake_resources("8x1"), source)
    assert largest_hops(machine.topology, machine) == hops
    assert largest_hops(machine.topology, machine.restrict(Idset.parse("3"))) is None
    names = [switch.name for switch in machine.topology.switches.values()]
    assert len(names) == len(set(names))


def test_switches_of_files(tmp_path):
    conf, toml = tmp_path / "topology.conf", tmp_path / "site.toml"
    conf.write_text("SwitchName=a Nodes=fake[0-3]\nSwitchName=b Nodes=fake[4-9]\nSwitchName=top Switches=a,b\n")
    toml.write_text('[[topology.switch]]\nname = "a"\nhosts = "fake[0-7]"\n')
    assert _hops(str(conf)) == [4, 2]
    assert _hops(str(toml)) == [2, 2]
    conf.write_text("SwitchName=a Nodes=node[0-3]\n")
    with pytest.raises(InvalidValue, match="none of its hosts is a target here"):
        _hops(str(conf))


def _hops(source):
    trace = trace_of(
        {"submit": 0, "run": 1, "nodes": 5, "nslots": 5},
        {"submit": 10, "run": 1, "nodes": 2, "nslots": 2, "max-hops": 2},
    )
    return run(trace, topology=source).jobs.hops


def test_hops_in_the_report():
    trace = trace_of({"submit": 0, "run": 1, "nodes": 5, "nslots": 5}, {"submit": 2, "run": 1, "nodes": 2, "nslots": 2})
    lines = [line.split() for line in report(trace, [run(trace, topology="4")])]
    assert ["hops", "mean", "3.000"] in lines
    assert ["hops", "max", "4"] in lines


def test_hops_are_within_parts():
    machine = with_switches(fake_resources("8x1"), "4")
    held = ResourceSet.parse(
        machine.to_json() | {"scheduling": {"writer": "fluxsched", "parts": {"lead": "0", "work": "4-7"}}}
    )
    assert largest_hops(machine.topology, held) == 2


@pytest.mark.parametrize("source", ["1x1x1x1x1x1x1x1", "1"])
def test_made_up_switches_have_a_limit(source):
    with pytest.raises(LimitExceeded):
        with_switches(fake_resources("40000x1"), source)


def _bad():
    yield {"run": 1, "work": 3}, "run and work cannot both be given"
    yield {"work": -1}, "work time -1.0 is not"
    yield {"work": 3, "nodes": "8-4"}, "max 4 is less than min 8"
    yield {"work": 3, "parts": []}, "parts is not a list of parts"
    yield {"work": 3, "parts": [1]}, "part 1 is not an object"
    yield {"work": 3, "parts": [{"size": 1}]}, "part 1 has unknown key 'size': a part has label, nodes"
    yield {"work": 3, "parts": [{"nodes": 1}] * 9}, "the limit is 8"
    yield {"work": 3, "parts": [{"nodes": 1}], "nodes": 3}, "nodes cannot be combined with parts"
    yield {"work": 3, "elastic": 1}, "elastic is 1, neither true nor false"


@pytest.mark.parametrize(
    ("job", "why"),
    [(WORKED._replace(run_s=1.0), "it has a run time and work"), (WORKED._replace(ask=Ask(parts="")), "not JSON")],
)
def test_jobs_that_are_made_are_checked_too(job, why):
    with pytest.raises(InvalidValue, match=why):
        Trace.of([job])


@pytest.mark.parametrize(("keys", "why"), list(_bad()))
def test_what_is_wrong_makes_a_line_bad(keys, why):
    trace = read_lines([json.dumps({"submit": 0, **keys})], "t")
    assert (trace.bad, len(trace.jobs)) == (1, 0)
    assert why in trace.faults[0].why


class Confused(FirstFit):
    """It takes everything from elastic jobs."""

    name = "confused"

    def schedule(self, view, now_s):
        yield from super().schedule(view, now_s)
        for jobid, held in view.preemptions.elastic.items():
            yield Shrink(jobid, held.elastic.held, "I want it all")


def test_the_report_says_what_was_wrong_with_a_shrink_that_was_refused():
    trace = trace_of({"submit": 0, "work": 960, "nodes": "2-4", "elastic": True}, {"submit": 1, "run": 1, "nodes": 8})
    result = run(trace, Confused())
    assert "policy 'confused': job ƒ2 cannot shrink: it would have 0 nodes, and asks for 2-4" in report(trace, [result])

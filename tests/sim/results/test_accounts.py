"""How accounts shared a machine, against what is worked out by hand."""

import io

import pytest

from fluxsched.sched.fair.accounts import Bank, FairSettings
from fluxsched.sim import Ask, Trace, TraceJob, run
from fluxsched.sim.report import as_json, report
from fluxsched.sim.result import NO_ROW, Preemption, courses, write_courses


def job(number, submit_s, run_s, slots, user, bank=None):
    return TraceJob(number, submit_s, run_s, run_s, Ask(slots), user, bank=bank)


def by_name(result, fair=None):
    assert result.held is not None
    return {each.name: each for each in courses(result.jobs, result.held, fair or FairSettings(), result.end_s)}


@pytest.fixture
def two():
    """Four cores: ann has them until 10, while bob waits for two from 4 on."""
    trace = Trace.of([job(1, 0, 10, 4, "ann"), job(2, 4, 6, 2, "bob")])
    return run(trace, "fifo", procs=4, accounts=True, check=True)


def test_usage_and_share_over_time(two):
    found = by_name(two)
    ann, bob = found["default/ann"], found["default/bob"]
    assert ann.usage == [(0, 4), (10, 0)]
    assert ann.share == [(0, 4), (4, 2), (10, 0)]
    assert bob.usage == [(10, 2), (16, 0)]
    assert bob.share == [(4, 2), (10, 4), (16, 0)]
    assert list(found) == ["default", "default/ann", "default/bob"]


def test_the_shortfall_is_what_was_its_and_wanted_and_not_had(two):
    found = by_name(two)
    assert found["default/bob"].shortfall_s == 2 * 6  # two of the machine are its from 4 to 10
    assert found["default/ann"].shortfall_s == 0
    assert found["default"].shortfall_s == 0  # its four are in use
    assert (found["default/ann"].used_s, found["default/ann"].share_s) == (40, 4 * 4 + 6 * 2)
    assert (found["default/bob"].wait_mean_s, found["default/bob"].jobs) == (6, 1)


def test_an_account_falls_short_of_no_more_than_it_wants():
    trace = Trace.of([job(1, 0, 10, 4, "ann"), job(2, 0, 10, 1, "bob")])
    assert by_name(run(trace, "fifo", procs=4, accounts=True))["default/bob"].shortfall_s == 10  # of a share of 2


def test_weights_and_banks_are_those_of_the_settings():
    rows = (("ann", "physics"), ("bob", "optics"), ("eve", "x"))
    trace = Trace.of([job(at, 0, 10, 1, user, bank) for at, (user, bank) in enumerate(rows)])
    fair = FairSettings(banks={"physics": Bank(3.0), "optics": Bank(1.0, parent="physics", users={"bob": 2.0})})
    found = by_name(run(trace, "fifo", procs=8, accounts=True), fair)
    shares = {name: course.share[0][1] for name, course in found.items()}
    assert shares == {
        "physics": 6, "x": 2, "x/eve": 2, "physics/ann": 3, "physics/optics": 3, "physics/optics/bob": 3,
    }  # fmt: skip


def test_gpus_weigh_and_targets_that_are_gone_do_not(four_nodes, tmp_path):
    site = tmp_path / "site"
    site.write_text('{"at": 5, "do": "offline", "targets": "0"}\n')
    trace = Trace.of([TraceJob(1, 0, 10, 10, Ask(1, 1, 1), "ann")])
    result = run(trace, "fifo", resources=four_nodes, site=site, accounts=True)
    ann = by_name(result)["default/ann"]
    assert ann.usage[0] == (0, 11)
    assert ann.share == [(0, 28), (5, 26), (10, 0)]


def test_a_preempted_job_uses_waits_and_uses_again(two):
    two.jobs.preemptions.append(Preemption(1, 5.0, 7.0, 2, NO_ROW, True))
    bob = by_name(two)["default/bob"]
    assert bob.usage == [(5, 2), (7, 0), (10, 2), (16, 0)]
    assert bob.shortfall_s == 2 * 4
    assert (bob.preempted, bob.lost_core_s) == (1, 4)


def test_denied_jobs_and_what_was_not_submitted_count_for_nothing():
    trace = Trace.of([job(1, 0, 10, 1, "ann"), job(2, 0, 1, 9, "bob"), job(3, 50, 1, 1, "eve")])
    found = by_name(run(trace, "fifo", procs=2, until_s=20, accounts=True))
    assert found["default/bob"].usage == found["default/eve"].usage == []
    assert found["default/ann"].share == [(0, 2), (10, 0)]


def test_a_policy_that_keeps_accounts_has_them_in_its_result():
    trace = Trace.of([job(1, 0, 10, 4, "ann"), job(2, 4, 6, 2, "bob")])
    assert [each.name for each in run(trace, "fair", procs=4).accounts] == ["default", "default/ann", "default/bob"]
    assert run(trace, "easy", procs=4).accounts == []


def test_they_are_told_on_paper_and_to_programs(two):
    lines = list(report(Trace.of([job(1, 0, 1, 1, "ann")]), [two], "bank"))
    head = next(at for at, line in enumerate(lines) if line.startswith("fifo: account"))
    assert lines[head].split() == [
        "fifo:", "account", "jobs", "usage", "share", "shortfall", "[h]", "wait", "mean", "[s]", "preempted", "lost",
        "[core", "h]",
    ]  # fmt: skip
    assert lines[head + 2].split() == ["default/ann", "1", "2.500", "1.750", "0.000", "0.000", "0", "0.000"]
    (told,) = as_json(Trace.of([job(1, 0, 1, 1, "ann")]), [two])["policies"]
    bob = told["accounts"][2]
    assert (bob["account"], bob["shortfall_s"], bob["wait_mean_s"]) == ("default/bob", 12, 6)
    assert (bob["usage"][0], bob["usage"][-1], bob["share"][-1]) == (0, 2, 4)


def test_they_become_csv(two):
    file = io.StringIO()
    write_courses([("fifo", two.accounts)], file)
    lines = file.getvalue().splitlines()
    assert lines[0] == "policy,account,time,usage,share"
    assert [line for line in lines if "/bob" in line] == [
        "fifo,default/bob,4,0,2", "fifo,default/bob,10,2,4", "fifo,default/bob,16,0,0"
    ]  # fmt: skip


def test_all_kinds_of_resources_are_used(four_nodes):
    trace = Trace.of([TraceJob(1, 0, 10, 10, Ask(1, 1, 1), "ann"), TraceJob(2, 0, 5, 5, Ask(2), "bob")])
    result = run(trace, "fifo", resources=four_nodes, accounts=True)
    assert result.utilisation_of == {"core": 20 / 80, "gpu": 0.5}
    assert run(trace, "fifo", resources=four_nodes).utilisation_of == {}

"""What a page draws of a study: the figures of the report, and everything bounded."""

import json

import pytest

from fluxsched.sim import Ask, Trace, TraceJob, generate, report, run
from fluxsched.sim.report import drawing
from fluxsched.sim.result import Columns, Cost, Preemption, Resizing, Result, percentile, stretches


@pytest.fixture(scope="module")
def study():
    trace = generate(jobs=80, procs=16, seed=2, load=1.2)
    return trace, [run(trace, policy, placements=True) for policy in ("fifo", "firstfit")]


def test_it_says_what_the_table_of_jobs_says(study):
    trace, results = study
    drawn = json.loads(json.dumps(drawing(trace, results)))
    for result, policy in zip(results, drawn["policies"], strict=True):
        bars = policy["bars"]
        assert [drawn["jobs"]["row"][at] for at in bars["at"]] == list(range(80))
        assert bars["start"] == pytest.approx(result.jobs.start, abs=1e-3)
        assert bars["end"] == pytest.approx(result.jobs.end, abs=1e-3)
        assert bars["ranks"] == result.jobs.ranks
        assert policy["left_out"] == 0
        median = percentile(sorted(result.wait), 0.5)
        assert policy["quantiles"][report.QUANTILES // 2] == pytest.approx(median, abs=1e-3)
    names = drawn["users"]
    assert [names[at] for at in drawn["jobs"]["user"]] == [str(user) for user in results[0].jobs.user]
    figure = {"title": "jobs completed", "group": "Jobs", "better": 0, "texts": ["80", "80"], "numbers": [80, 80]}
    assert drawn["figures"][0] == figure
    assert sum(each["jobs"] for each in drawn["by_size"]) == 80


def test_waits_are_by_powers_of_two_of_cores():
    jobs = [TraceJob(at, float(at), 50.0, 60.0, Ask(size)) for at, size in enumerate((1, 2, 3, 4, 5, 8, 8))]
    drawn = drawing(trace := Trace.of(jobs), [run(trace, "fifo", procs=8, placements=True)])
    assert [(each["label"], each["jobs"]) for each in drawn["by_size"]] == [("1", 1), ("2", 1), ("3–4", 2), ("5–8", 3)]
    assert drawn["by_size"][0]["waits"] == [[0, 0, 1]]


def test_jobs_that_never_started_are_not_drawn():
    trace = Trace.of([TraceJob(1, 0.0, 5.0, 9.0, Ask(2)), TraceJob(2, 0.0, 5.0, 9.0, Ask(20))])
    drawn = drawing(trace, [run(trace, "fifo", procs=4, placements=True)])
    assert drawn["jobs"]["id"] == ["1"]
    assert drawn["by_size"][-1]["waits"] == [None]
    assert drawn["refusals"]


def test_what_is_drawn_is_bounded(study, monkeypatch):
    for limit, value in (("BARS_MAX", 7), ("POINTS_MAX", 9), ("USERS_MAX", 3), ("SIZE_CLASSES_MAX", 2)):
        monkeypatch.setattr(report, limit, value)
    trace, results = study
    drawn = drawing(trace, results)
    assert len(drawn["jobs"]["id"]) <= 7 * len(results)
    for policy, result in zip(drawn["policies"], results, strict=True):
        assert policy["left_out"] == 80 - len(policy["bars"]["at"]) > 0
        work = [(end - start) * procs for start, end, procs in zip(
            result.jobs.start, result.jobs.end, result.jobs.procs, strict=True)]  # fmt: skip
        rows = [drawn["jobs"]["row"][at] for at in policy["bars"]["at"]]
        assert set(sorted(range(80), key=work.__getitem__)[-7:]) <= set(rows)
        assert len(policy["used"]) <= 9
        assert len(policy["waiting"]) <= 9
    assert len(drawn["by_user"]) == 3
    assert [each["label"] for each in drawn["by_size"]][-1] == "over 2"


def resized():
    """Jobs 1 and 2; the second one ran twice, and both times its size changed."""
    sizes = [
        Resizing(1, 4.0, 9.0, 8, "4-5"), Resizing(1, 4.0, 9.0, 4, "6"), Resizing(1, 6.0, 9.0, -8, "4-5"),
        Resizing(1, 15.0, 20.0, -4, "1"),
    ]  # fmt: skip
    return Columns(
        [1, 2], [0.0, 0.0], [1.0, 9.0], [None, 20.0], [4, 8], [None, None], [None, None], ["running", "completed"],
        ["7", "0-1"], preemptions=[Preemption(1, 2.0, 9.0, 4, 0, True, "2")], resizes=sizes,
    )  # fmt: skip


def test_each_attempt_and_each_size_is_a_stretch():
    found = list(stretches(resized(), (0, 1)))
    assert found[0] == (0, 1.0, None, 4, "7")
    assert [each[1:] for each in found[1:]] == [
        (2.0, 4.0, 4, "2"), (4.0, 6.0, 16, "2,4-6"), (6.0, 9.0, 8, "2,6"), (9.0, 15.0, 8, "0-1"), (15.0, 20.0, 4, "0"),
    ]  # fmt: skip


def test_bars_say_sizes_as_they_change():
    drawn = report._policy(Result("easy", "t", resized(), [(0.0, 32)], 8, Cost(0, 0, 0.0, [], 0)), [0, 1], 25.0)
    assert drawn["bars"]["at"] == [0, 1, 1, 1, 1, 1]
    assert drawn["bars"]["ranks"] == ["7", "2", "2,4-6", "2,6", "0-1", "0"]
    assert drawn["bars"]["procs"] == [4, 4, 16, 8, 8, 4]
    assert drawn["left_out"] == 0

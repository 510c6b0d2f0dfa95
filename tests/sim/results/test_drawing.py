"""What a page draws of a study: the figures of the report, and everything bounded."""

from __future__ import annotations

import json

import pytest

from fluxsched.sim import Ask, Trace, TraceJob, generate, run
from fluxsched.sim.results import drawing as module
from fluxsched.sim.results.drawing import drawing
from fluxsched.sim.results.metrics import percentile


@pytest.fixture(scope="module")
def study():
    trace = generate(jobs=80, procs=16, seed=2, load=1.2)
    return trace, [run(trace, policy, placements=True) for policy in ("fifo", "firstfit")]


def test_it_says_what_the_table_of_jobs_says(study) -> None:
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
        assert policy["quantiles"][module.QUANTILES // 2] == pytest.approx(median, abs=1e-3)
    names = drawn["users"]
    assert [names[at] for at in drawn["jobs"]["user"]] == [str(user) for user in results[0].jobs.user]
    assert drawn["figures"][0] == ["jobs completed", "80", "80"]
    assert sum(each["jobs"] for each in drawn["by_size"]) == 80


def test_waits_are_by_powers_of_two_of_cores() -> None:
    jobs = [TraceJob(at, float(at), 50.0, 60.0, Ask(size)) for at, size in enumerate((1, 2, 3, 4, 5, 8, 8))]
    drawn = drawing(trace := Trace.of(jobs), [run(trace, "fifo", procs=8, placements=True)])
    assert [(each["label"], each["jobs"]) for each in drawn["by_size"]] == [("1", 1), ("2", 1), ("3–4", 2), ("5–8", 3)]
    assert drawn["by_size"][0]["waits"] == [[0, 0, 1]]


def test_jobs_that_never_started_are_not_drawn() -> None:
    trace = Trace.of([TraceJob(1, 0.0, 5.0, 9.0, Ask(2)), TraceJob(2, 0.0, 5.0, 9.0, Ask(20))])
    drawn = drawing(trace, [run(trace, "fifo", procs=4, placements=True)])
    assert drawn["jobs"]["id"] == ["1"]
    assert drawn["by_size"][-1]["waits"] == [None]
    assert drawn["refusals"]


def test_what_is_drawn_is_bounded(study, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, value in (("BARS_MAX", 7), ("POINTS_MAX", 9), ("USERS_MAX", 3), ("SIZE_CLASSES_MAX", 2)):
        monkeypatch.setattr(module, limit, value)
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


def test_attempts_that_were_preempted_are_bars_too() -> None:
    assert module._attempt(module.Preemption(5, 1.0, 2.5, 4, -1, True, "0-3"), [2, 5]) == [1, 1, 2.5, "0-3"]

"""The limits of the simulator, each reached."""

import json
from math import exp
from types import SimpleNamespace

import pytest

from fluxsched.core.idset import Idset
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.sim import Ask, Trace, TraceJob, generate, plots, replay, report
from fluxsched.sim import site as site_events
from fluxsched.sim import synthetic as lublin
from fluxsched.sim.commands import LABEL_CHARS_MAX, StudyOptions
from fluxsched.sim.traces import FAULT_CHARS_MAX, JOBS_MAX, URGENCY_MAX, read_lines
from fluxsched.system.clock import seeded


def test_labels_have_a_length(tmp_path):
    StudyOptions(tmp_path / "t", labels=("x" * LABEL_CHARS_MAX,))
    with pytest.raises(InvalidValue, match=f"1 to {LABEL_CHARS_MAX} printable"):
        StudyOptions(tmp_path / "t", labels=("x" * (LABEL_CHARS_MAX + 1),))


def test_a_trace_has_so_many_jobs(monkeypatch):
    assert JOBS_MAX == lublin.JOBS_MAX
    monkeypatch.setattr(lublin, "JOBS_MAX", 2)
    assert len(generate(2, 4).jobs) == 2
    with pytest.raises(LimitExceeded, match="3 jobs exceed the limit of 2"):
        generate(3, 4)


def test_the_highest_urgency_and_what_is_repeated_of_a_bad_line():
    job = {"submit": 0, "run": 1, "urgency": URGENCY_MAX}
    lines = [json.dumps(job), json.dumps({**job, "urgency": URGENCY_MAX + 1, "user": "x" * FAULT_CHARS_MAX})]
    trace = read_lines(lines, "t")
    assert (len(trace.jobs), trace.bad, len(trace.faults[0].text)) == (1, 1, FAULT_CHARS_MAX)


def test_run_times_and_arrivals_of_the_model_are_bounded(monkeypatch):
    monkeypatch.setattr(lublin, "RUN_LOG_MAX", 3.0)
    assert all(job.run_s <= exp(3.0) + 1 for job in generate(300, 16, 1).jobs)
    drawn = []
    chance = seeded(1)
    monkeypatch.setattr(lublin, "ARRIVAL_LOG_MAX", 4.5)
    source = SimpleNamespace(gammavariate=lambda *shape: drawn.append(v := chance.gammavariate(*shape)) or v)
    arrivals = lublin._arrivals(source)
    [next(arrivals) for _ in range(50)]
    assert any(value > 4.5 for value in drawn), "some were drawn again"


def test_a_site_file_has_a_size(tmp_path, four_nodes, monkeypatch):
    line = '{"at": 1, "do": "drain", "targets": "0"}\n'
    (tmp_path / "s").write_text(line)
    monkeypatch.setattr(site_events, "SITE_BYTES_MAX", len(line))
    assert len(site_events.read_site(tmp_path / "s", four_nodes)) == 1
    (tmp_path / "s").write_text(line + "\n")
    with pytest.raises((InvalidValue, LimitExceeded)):
        site_events.read_site(tmp_path / "s", four_nodes)


def test_a_replay_submits_and_lists_so_many_at_once(monkeypatch):
    monkeypatch.setattr(replay, "SUBMIT_JOBS_MAX", 2)
    monkeypatch.setattr(replay, "LIST_JOBS_MAX", 2)
    sizes = []

    class Live:
        count = 0

        def submit_each(self, jobspecs):
            sizes.append(("submit", len(jobspecs)))
            self.count += len(jobspecs)
            return list(range(self.count - len(jobspecs), self.count))

        def wait(self, jobid):
            return {}

        def rpc(self, topic, payload=None):
            if topic == "job-manager.list":
                assert payload is not None
                sizes.append(("list", len(payload["ids"])))
                return {"jobs": [{"id": jobid, "t_submit": 1.0} for jobid in payload["ids"]]}
            entry = {"rank": "0", "children": {"core": "0"}}
            return {"queues": [], "all": {"execution": {"R_lite": [entry]}}}

    clock = SimpleNamespace(wall_s=lambda: 1.0, sleep=lambda delay_s: None)
    replay.replay(Live(), Trace.of([TraceJob(n, 0.0, 1.0, 1.0, Ask()) for n in range(3)]), 1.0, clock)
    assert sizes == [("submit", 2), ("submit", 1), ("list", 2), ("list", 1)]


def test_plots_draw_a_bounded_amount(monkeypatch):
    pytest.importorskip("matplotlib", reason="plots are an extra: fluxsched[plots]")
    from fluxsched.sim import run

    monkeypatch.setattr(plots, "STEPS_DRAWN_MAX", 6)
    monkeypatch.setattr(report, "BARS_MAX", 7)
    monkeypatch.setattr(plots, "GANTTS_MAX", 1)
    trace = generate(jobs=60, procs=16, seed=1, load=1.0)
    results = [run(trace, policy, placements=True) for policy in ("fifo", "firstfit")]
    figure = plots.draw(trace, results)
    waiting = next(axes for axes in figure.axes if axes.get_ylabel() == "jobs waiting")
    assert len(waiting.lines[0].get_xdata()) <= 7
    [targets] = [axes for axes in figure.axes if axes.get_ylabel() == "target"]
    jobs = results[0].jobs
    assert jobs.ranks is not None
    runs = [len(list(Idset.parse(ranks).runs())) for ranks in jobs.ranks if ranks is not None]
    assert 7 <= len(targets.collections[0].get_paths()) <= sum(sorted(runs)[-7:])


def test_a_long_time_is_drawn_in_days():
    limit_s = plots.HOURS_MAX * plots.HOUR_S
    scales = [plots.TimeScale.of([SimpleNamespace(end_s=end_s)]) for end_s in (limit_s, limit_s + 1)]
    assert [scale.name for scale in scales] == ["hours", "days"]

"""A trace against an instance: a made-up one that keeps its own time."""

import pytest

from fluxsched.core.quantities import parse_duration
from fluxsched.errors import InvalidValue, RPCError
from fluxsched.sim import Ask, Trace, TraceJob, run
from fluxsched.sim.replay import replay


class Clock:
    """Time passes only where somebody sleeps."""

    now_s = 1000.0

    def wall_s(self):
        return self.now_s

    def sleep(self, delay_s):
        assert delay_s > 0
        self.now_s += delay_s


class Instance:
    """Endless resources: every job starts when it comes, but jobs of nine slots, which it refuses."""

    def __init__(self, clock, *queues):
        self.clock = clock
        self.queues = queues
        self.rows = {}
        self.submitted = []

    def submit_each(self, jobspecs):
        return [self._submit(spec) for spec in jobspecs]

    def _submit(self, spec):
        if spec["resources"][0]["count"] == 9:
            return RPCError("nine is too many")
        system = spec["attributes"]["system"]
        self.submitted.append(system.get("queue"))
        run_s = parse_duration(system["exec"]["test"]["run_duration"])
        limit_s = system.get("duration") or run_s
        jobid = len(self.rows) + 100
        now_s = self.clock.now_s
        result = "COMPLETED" if run_s <= limit_s else "TIMEOUT"
        end_s = now_s + min(run_s, limit_s)
        row = {"id": jobid, "t_submit": now_s, "t_run": now_s, "t_cleanup": end_s, "result": result, "ranks": "0"}
        self.rows[jobid] = row
        return jobid

    def wait(self, jobid):
        self.clock.now_s = max(self.clock.now_s, self.rows[jobid]["t_cleanup"])
        return {}

    def rpc(self, topic, payload=None):
        if topic == "job-manager.queue-list":
            return {"queues": list(self.queues)}
        if topic == "job-manager.list":
            assert payload is not None
            return {"jobs": [self.rows[jobid] for jobid in reversed(payload["ids"])]}
        return {"all": {"execution": {"R_lite": [{"rank": "0-3", "children": {"core": "0-1"}}]}}}


def test_times_are_those_of_the_trace_again(trace_of):
    wrong = Ask(jobspec="{}")
    trace = trace_of((0, 60, 120, 1), (100, 90, 30, 2), (100, 5, None, 9), (200, 0, None, 1), (200, 1, 1, wrong))
    clock = Clock()
    seen = []
    result = replay(Instance(clock), trace, 10.0, clock, lambda *told: seen.append(told))
    assert result.jobs.submit[:2] == pytest.approx([0, 100])
    assert result.jobs.end[:2] == pytest.approx([60, 130])
    assert result.jobs.state == ["completed", "timeout", "denied", "completed", "denied"]
    assert result.jobs.notes[2] == "nine is too many"
    assert (result.targets, result.cores) == (4, 8)
    assert seen[-1][:2] == (5, 5)
    assert clock.now_s == pytest.approx(1020)


def test_a_speed_is_positive(trace_of):
    for speed in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidValue, match="not a positive number"):
            replay(Instance(Clock()), trace_of((0, 1, 1, 1)), speed, Clock())


def test_simulated_and_replayed_tables_compare(trace_of):
    trace = trace_of((0, 60, 120, 1), (100, 90, 90, 2))
    clock = Clock()
    live = replay(Instance(clock), trace, 4.0, clock)
    simulated = run(trace, "fifo", procs=4)
    assert live.jobs.start == pytest.approx(simulated.jobs.start)
    assert live.jobs.end == pytest.approx(simulated.jobs.end)


def test_jobs_go_to_the_queues_that_the_instance_has():
    queues = ("gpu", 3, "tape", None)
    trace = Trace.of(TraceJob(at, 0.0, 1.0, 9.0, Ask(), queue=queue) for at, queue in enumerate(queues))
    clock = Clock()
    instance = Instance(clock, "gpu", "3")
    replay(instance, trace, 1.0, clock)
    assert instance.submitted == ["gpu", "3", None, None]

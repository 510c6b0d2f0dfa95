"""Our own trace: what SWF cannot say, with the same manners about what is unknown or wrong."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.errors import InvalidValue
from fluxsched.sim import Ask, Machine, Trace, TraceJob, run
from fluxsched.sim.traces import RESULTS, TIME_MAX_S, print_lines, read_lines
from tests.generated.share import examples

JOB = {"submit": 5, "run": 10.5}


def read(*objects):
    return read_lines([json.dumps(obj) if not isinstance(obj, str) else obj for obj in objects], "t")


def test_a_header_and_jobs():
    trace = read(
        {"trace": 1, "name": "x", "machine": {"targets": 4, "cores": 2, "gpus": 1}},
        "",
        {**JOB, "job": "a", "duration": 60, "nslots": 2, "cores": 3, "gpus": 1, "nodes": 2, "exclusive": True,
         "user": "ann", "queue": "q", "constraint": {"properties": ["ssd"]}, "urgency": 20,
         "preceding": 4, "think": 2.5, "bank": "physics", "preemptible-after": 30, "requeue": 2},
        {**JOB, "submit": 1},
    )  # fmt: skip
    assert trace.machine == Machine(4, 2, 1)
    assert trace.header == {"name": "x"}
    assert trace.jobs == [
        TraceJob(4, 1.0, 10.5, None, Ask()),
        TraceJob(
            "a", 5.0, 10.5, 60.0, Ask(2, 3, 1, 2, True, '{"properties": ["ssd"]}'), "ann", "q", urgency=20, preceding=4,
            think_s=2.5, bank="physics", preemptible_after_s=30.0, requeue=2,
        ),
    ]  # fmt: skip


def test_a_jobspec_says_it_all():
    (job,) = read({**JOB, "jobspec": {"version": 1}}).jobs
    assert job.ask == Ask(jobspec='{"version": 1}')
    assert read({**JOB, "jobspec": {}, "cores": 2}).faults[0].why.startswith("cores cannot be combined with jobspec")


@pytest.mark.parametrize(
    ("obj", "why"),
    [
        ("{nope", "not JSON"),
        ("[1]", "not a JSON object"),
        ("[" * 10000, "not JSON"),
        ({**JOB, "core": 2}, "unknown key core: a job has"),
        ({**JOB, "cores": 0}, "job 2: 1 slots of"),
        ({**JOB, "cores": "2"}, "cores is '2', not a count"),
        ({**JOB, "cores": True}, "cores is 'True', not a count"),
        ({**JOB, "run": "x"}, "run is 'x', not a number of seconds"),
        ({**JOB, "preemptible-after": "1h"}, "preemptible-after is '1h', not a number of seconds"),
        ({**JOB, "preemptible-after": -1}, "job 2: preemptible-after time -1.0"),
        ('{"submit": 0, "run": 1, "preemptible-after": NaN}', "job 2: preemptible-after time nan"),
        ({**JOB, "requeue": 101}, "job 2: requeue 101 is not a number within 0-100"),
        ({**JOB, "requeue": -1}, "requeue is '-1', not a count"),
        ({**JOB, "bank": "a\nb"}, "job 2: bank: "),
        ({**JOB, "bank": "\x1b[31m"}, "job 2: bank: "),
        ({**JOB, "bank": "x" * 256}, "job 2: bank: 256 characters, the limit is 255"),
        ({**JOB, "bank": ["a"]}, "bank is \"['a']\", neither a number nor a text"),
        ({**JOB, "run": -1}, "job 2: run time -1.0"),
        ({**JOB, "run": 10**400}, "run is 10000000000000000000..., beyond the range of a double"),
        ({**JOB, "user": 1.5}, "user is '1.5', neither"),
        ({**JOB, "constraint": "ssd"}, "constraint is not an object"),
        ({**JOB, "constraint": {"propertys": ["ssd"]}}, 'constraint {"propertys": ["ssd"]}: '),
        ({**JOB, "max-hops": -2}, "max-hops is '-2', not a count"),
        ({**JOB, "urgency": 32}, "urgency 32 is not 0 (held) to 31 (expedited): leave it out for 16"),
        ({**JOB, "urgency": -1}, "urgency -1 is not 0"),
        ({**JOB, "urgency": "high"}, "urgency 'high' is not 0"),
    ],
)
def test_what_cannot_be_read_is_bad(obj, why):
    trace = read(JOB, obj)
    assert (trace.bad, trace.left_out, len(trace.jobs)) == (1, 0, 1)
    assert trace.faults[0].why.startswith(why)
    assert trace.faults[0].line == 2


def test_a_job_without_run_time_is_left_out():
    trace = read(JOB, {"submit": 1, "run": None}, {"run": 1})
    assert (trace.bad, trace.left_out, len(trace.jobs)) == (0, 2, 1)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"trace": 2}, "t:1: version 2 of a trace"),
        ({"trace": 1, "machine": {"cores": 3}}, "t:1: machine needs targets"),
        ({"trace": 1, "machine": {"targets": -3}}, "t:1: targets is '-3'"),
    ],
)
def test_a_wrong_header_is_an_error(header, why):
    with pytest.raises(InvalidValue, match=why):
        read(header, JOB)


asks = st.builds(
    Ask,
    st.integers(1, 99),
    st.integers(1, 99),
    st.integers(0, 9),
    st.none() | st.integers(1, 99) | st.just("2-8"),
    st.booleans(),
    st.none() | st.just('{"properties": ["a"]}'),
    st.none(),
    st.booleans(),
    st.none() | st.just(4),
    st.none(),
) | st.sampled_from((Ask(jobspec='{"version": 1}'), Ask(elastic=True, parts='[{"nodes": 1}, {"nodes": "2-4"}]')))
names = st.none() | st.integers(0, 9) | st.text(max_size=5)
rows = st.builds(
    TraceJob, st.integers(0, 9) | st.text(max_size=5), st.floats(0, 1e9), st.floats(0, 1e9),
    st.none() | st.floats(0.1, 1e9), asks, names, names, names, st.none() | st.floats(0, 1e9), st.integers(0, 31),
    names, st.none() | st.floats(0, 1e9), st.none() | st.text("abc/-", min_size=1), st.none() | st.floats(0, 1e9),
    st.integers(0, 100), st.none(), st.sampled_from((None, *RESULTS)), st.just(0.0),
)  # fmt: skip
worked = rows.map(lambda job: job._replace(run_s=0.0, work=600.0))


@settings(max_examples=examples(50))
@given(st.lists(rows | worked, max_size=4), st.none() | st.builds(Machine, *[st.integers(1, 99)] * 3))
def test_what_is_printed_reads_back(jobs, machine):
    trace = Trace.of(jobs, machine=machine)
    again = read_lines(print_lines(trace), "t")
    assert (again.jobs, again.machine, again.bad) == (trace.jobs, machine, 0)


def test_jobs_that_are_made_are_checked_too():
    with pytest.raises(InvalidValue, match="job 7: urgency 99 is not 0"):
        Trace.of([TraceJob(7, 0.0, 1.0, 1.0, Ask(), urgency=99)])
    with pytest.raises(InvalidValue, match="job 7: result 'FINE' is not one of COMPLETED"):
        Trace.of([TraceJob(7, 0.0, 1.0, 1.0, Ask(), result="FINE")])


@pytest.mark.parametrize("key", ["submit", "run", "duration", "think", "preemptible-after"])
def test_a_time_has_a_limit(key):
    trace = read({**JOB, key: TIME_MAX_S}, {**JOB, key: 1e300})
    assert (len(trace.jobs), trace.bad) == (1, 1)
    assert "1e+300 is not a number of seconds of 0 or more, to 1,000,000,000,000" in trace.faults[0].why


def test_a_bound_of_0_hops_is_refused():
    trace = read(JOB, {**JOB, "max-hops": 0})
    assert [job.ask.max_hops for job in trace.jobs] == [None, 0]
    result = run(trace, "easy", nodes=2)
    assert result.jobs.state == ["completed", "denied"]
    assert "max-hops: 0 is not an even number" in str(result.jobs.notes[1])

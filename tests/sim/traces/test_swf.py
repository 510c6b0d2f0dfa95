"""SWF 2.2: -1 is unknown and nothing else, floats are legal, what cannot be read is counted and shown."""

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.sim import Ask, Machine, Trace, TraceJob, read_trace, traces, write_trace
from fluxsched.sim.traces import COLUMNS, parse_line, print_swf, read_swf, with_banks
from tests.generated.share import examples

HEAD = ["; Version: 2.2", ";  MaxProcs: 16", "; Note: first", "; Note: second", ";", "; no key here"]
WHOLE = "7 10 5 60 4 -1 -1 8 120 -1 1 3 2 -1 1 -1 -1 -1"


def line(**fields):
    known = {"job": 1, "submit_s": 0, "run_s": 60, "procs_requested": 4}
    return " ".join(str({**known, **fields}.get(name, -1)) for name in COLUMNS)


def test_a_whole_line():
    trace = read_swf([*HEAD, WHOLE], "t")
    assert trace.header == {"Version": "2.2", "MaxProcs": "16", "Note": "first"}
    assert trace.machine == Machine(16)
    assert trace.jobs == [
        TraceJob(7, 10.0, 60.0, 120.0, Ask(8), user=3, queue=1, group=2, wait_s=5.0, result="COMPLETED")
    ]
    assert (trace.bad, trace.left_out, trace.faults) == (0, 0, ())


def test_minus_one_stays_unknown():
    (job,) = read_swf([line()], "t").jobs
    assert (job.limit_s, job.user, job.queue, job.group, job.wait_s) == (None,) * 5
    record = parse_line(line())
    assert [name for name, value in zip(COLUMNS, record, strict=True) if value is not None] == [
        "job", "submit_s", "run_s", "procs_requested",
    ]  # fmt: skip


def test_processors_are_those_requested_else_those_allocated():
    trace = read_swf([line(procs=2), line(procs=2, procs_requested=-1), line(procs_requested=0, procs=3)], "t")
    assert [job.ask.nslots for job in trace.jobs] == [4, 2, 3]


@pytest.mark.parametrize(
    ("fields", "job"),
    [
        ({"submit_s": "1.5", "run_s": "2e1", "procs_requested": "4.0"}, (1.5, 20.0, 4)),
        ({"run_s": 0}, (0.0, 0.0, 4)),
        ({"limit_s": 0}, (0.0, 60.0, 4)),
        ({"memory_kib": "17.25"}, (0.0, 60.0, 4)),
    ],
)
def test_floats_and_zero_run_times_are_legal(fields, job):
    (found,) = read_swf([line(**fields)], "t").jobs
    assert (found.submit_s, found.run_s, found.ask.nslots) == job
    assert found.limit_s is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1 2 3", "3 fields, not 18"),
        ("", None),
        (WHOLE + " 1", "19 fields, not 18"),
        ("9" * 5000, "too many fields, not 18"),
        (line(run_s="x"), "field 4 (run_s) is not a number"),
        (line(run_s="nan"), "field 4 (run_s) is nan: only -1 is unknown"),
        (line(wait_s="inf"), "field 3 (wait_s) is inf: only -1 is unknown"),
        (line(run_s=-5), "field 4 (run_s) is -5: only -1 is unknown"),
        (line(run_s=-0.5), "field 4 (run_s) is -0.5: only -1 is unknown"),
    ],
)
def test_what_cannot_be_read_is_bad(text, why):
    trace = read_swf(["; MaxProcs: 4", text, WHOLE], "t")
    assert len(trace.jobs) == 1
    assert [fault.why for fault in trace.faults] == ([why] if why else [])
    assert (trace.bad, trace.left_out) == (1 if why else 0, 0)
    assert all(fault.line == 2 and fault.is_bad and len(fault.text) <= 60 for fault in trace.faults)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"run_s": -1}, "run not known"),
        ({"submit_s": -1, "run_s": -1}, "submit and run not known"),
        ({"procs_requested": -1}, "procs not known"),
        ({"procs_requested": 0, "procs": 0}, "0 processors"),
        ({"procs_requested": 2.5}, "2.5 processors"),
        ({"job": -1}, "job not known"),
        ({"status": 3}, "part of a checkpointed job"),
    ],
)
def test_what_cannot_be_simulated_is_left_out(fields, why):
    trace = read_swf([WHOLE, line(**fields)], "t")
    assert (len(trace.jobs), trace.bad, trace.left_out) == (1, 0, 1)
    assert [(fault.line, fault.why, fault.is_bad) for fault in trace.faults] == [(2, why, False)]


def test_a_thousand_bad_lines_are_counted_and_a_hundred_kept():
    trace = read_swf(["bad"] * 1000 + [WHOLE], "t")
    assert (trace.bad, len(trace.faults)) == (1000, traces.FAULTS_KEPT_MAX)


def test_too_many_jobs_are_refused():
    found = traces.Collector("t", limit=1)
    job = TraceJob(1, 0.0, 1.0, None, Ask())
    found.add(job)
    with pytest.raises(LimitExceeded, match="more than 1 jobs"):
        found.add(job)


def test_the_preceding_job_and_the_time_to_think():
    trace = read_swf([WHOLE, line(job=8, submit_s=20, preceding=7, think_s=2.5), line(job=9, submit_s=30)], "t")
    assert [(job.preceding, job.think_s) for job in trace.jobs] == [(None, None), (7, 2.5), (None, None)]
    assert read_swf(print_swf(trace), "t").jobs == trace.jobs


def test_order_is_by_submission_then_by_line():
    trace = read_swf([line(job=9, submit_s=5), line(job=3, submit_s=1), line(job=1, submit_s=5)], "t")
    assert [job.job for job in trace.jobs] == [3, 9, 1]


@pytest.mark.parametrize("name", ["t.swf", "t.swf.gz", "anything", "t.jsonl"])
def test_files_plain_and_gzipped(tmp_path, name):
    trace = read_swf(["; MaxProcs: 16", WHOLE], "t")
    write_trace(trace, tmp_path / name)
    again = read_trace(tmp_path / name)
    assert (again.jobs, again.machine) == (trace.jobs, trace.machine)
    assert ((tmp_path / name).read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")


def test_a_pipe_is_read_too(tmp_path):
    import os
    import threading

    os.mkfifo(tmp_path / "pipe")
    packed = gzip.compress(f"; MaxProcs: 16\n{WHOLE}\n".encode())
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(packed,))
    writer.start()
    assert len(read_trace(tmp_path / "pipe").jobs) == 1
    writer.join()


def test_files_that_are_no_traces(tmp_path):
    with pytest.raises(InvalidValue, match="No such file"):
        read_trace(tmp_path / "none")
    (tmp_path / "empty").write_text("; Version: 2.2\n1 2 3\n")
    with pytest.raises(InvalidValue, match="no job that can be simulated: line 2: 3 fields"):
        read_trace(tmp_path / "empty")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"; x\n" * 1000)[:-20])
    with pytest.raises(InvalidValue, match="cannot be read"):
        read_trace(tmp_path / "cut.gz")


@pytest.mark.parametrize(("by", "bank"), [("user", "4"), ("group", "5"), ("queue", None)])
def test_a_field_that_stands_for_the_bank(by, bank):
    job = TraceJob(1, 0.0, 1.0, 1.0, Ask(), user=4, group=5)
    trace = with_banks(Trace.of([job, job._replace(job=2, bank="mine")]), by)
    assert [each.bank for each in trace.jobs] == [bank, "mine"]


def test_a_field_that_cannot_stand_for_the_bank():
    trace = Trace.of([TraceJob(1, 0.0, 1.0, 1.0, Ask(), user="a\nb")])
    with pytest.raises(InvalidValue, match="user as bank: "):
        with_banks(trace, "user")
    with pytest.raises(InvalidValue, match="bank 'job' is not one of user, group, queue"):
        with_banks(trace, "job")


numbers = st.integers(0, 10**9) | st.floats(0, 1e9)
jobs = st.lists(
    st.builds(
        TraceJob, st.integers(0, 10**6), numbers.map(float), numbers.map(float),
        st.none() | st.floats(1, 1e9), st.integers(1, 10**6).map(Ask), st.none() | st.integers(0, 99),
        st.none() | st.integers(0, 99), st.none() | st.integers(0, 99), st.none() | numbers.map(float), st.just(16),
        st.none() | st.integers(0, 99), st.none() | numbers.map(float), st.none(), st.none(), st.just(0), st.none(),
        st.sampled_from((None, "COMPLETED", "FAILED", "CANCELED")), st.just(0.0),
    ),
    max_size=5,
)  # fmt: skip


@settings(max_examples=examples(50))
@given(jobs)
def test_what_is_printed_reads_back(rows):
    trace = Trace.of(rows)
    assert read_swf(print_swf(trace), "t").jobs == trace.jobs

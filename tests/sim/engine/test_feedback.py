"""Jobs that follow others: submitted when the preceding job is over and its user has thought, and only if asked for."""

from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.cli.main import main
from fluxsched.sim import Ask, Trace, TraceJob, generate, run
from fluxsched.sim.traces import followers


def job(
    name, submit_s, run_s, procs = 1, after = None,
    think_s = None,
):  # fmt: skip
    return TraceJob(name, submit_s, run_s, 100.0, Ask(procs), preceding=after, think_s=think_s)


def simulate(*jobs, **options):
    return run(Trace.of(jobs), "fifo", procs=2, check=True, **options)


CHAIN = (job(1, 0.0, 10.0, 2), job(2, 3.0, 5.0, 1, 1, 4.0), job("c", 7.0, 1.0, 2, 2), job(4, 8.0, 2.0, 1))


def test_a_job_is_submitted_when_its_user_has_thought():
    table = simulate(*CHAIN, feedback=True).jobs
    assert table.submit == [0.0, 14.0, 19.0, 8.0]  # after 10 + 4; without a time to think; as the trace says
    assert table.start == [0.0, 14.0, 19.0, 10.0]
    assert set(table.state) == {"completed"}


def test_by_default_the_trace_says_when():
    table = simulate(*CHAIN).jobs
    assert table.submit == [0.0, 3.0, 7.0, 8.0]
    assert table.start == [0.0, 10.0, 15.0, 16.0]


def test_a_job_that_is_denied_is_over():
    table = simulate(job(1, 5.0, 1.0, 99), job(2, 6.0, 1.0, 1, 1, 2.0), feedback=True).jobs
    assert (table.state, table.submit) == (["denied", "completed"], [5.0, 7.0])


def test_who_is_not_before_a_job_does_not_precede_it():
    jobs = [job(1, 0.0, 1.0, after=1), job(2, 1.0, 1.0, after=3), job(3, 2.0, 1.0, after=99), job(3, 3.0, 1.0, after=3)]
    assert followers(jobs) == {2: [3]}
    assert simulate(*jobs, feedback=True).jobs.submit == [0.0, 1.0, 2.0, 3.0]


def test_what_has_not_been_submitted_by_then_does_not_wait():
    result = simulate(*CHAIN, feedback=True, until_s=12.0)
    assert result.jobs.state == ["completed", "unsubmitted", "unsubmitted", "completed"]
    assert result.summary.queue_max == 1


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9), st.integers(1, 3), st.integers(0, 9),
                          st.one_of(st.none(), st.integers(0, 5))), max_size=12))  # fmt: skip
def test_no_job_overtakes_the_one_it_follows(rows):
    jobs = [
        job(at, float(submit), float(run_s), procs, after, float(think))
        for at, (submit, run_s, procs, think, after) in enumerate(rows)
    ]
    trace = Trace.of(jobs)
    table = run(trace, "easy", procs=2, feedback=True).jobs
    for before, behind in followers(trace.jobs).items():
        end_s = table.end[before] if table.end[before] is not None else table.submit[before]
        for at in behind:
            assert table.submit[at] == end_s + (trace.jobs[at].think_s or 0.0)


def test_a_trace_without_preceding_jobs_gives_the_same_schedule():
    trace = generate(jobs=100, procs=16, seed=3, load=1.2)
    assert run(trace, "easy", feedback=True).jobs == run(trace, "easy").jobs


def test_on_the_command_line(tmp_path):
    path = tmp_path / "t.swf"
    path.write_text("1 0 -1 10 1 -1 -1 1 20 -1 1 1 1 -1 1 -1 -1 -1\n2 1 -1 5 1 -1 -1 1 20 -1 1 1 1 -1 1 -1 1 7\n")
    words = ["sim", str(path), "--procs", "2", "--policy", "fifo", "--jobs-out", str(tmp_path / "j.csv")]
    for more, want in (([], "2,1,1,6"), (["--feedback"], "2,17,17,22")):
        assert CliRunner().invoke(main, [*words, *more]).exit_code == 0
        assert (tmp_path / "j.csv").read_text().splitlines()[2].startswith(want)

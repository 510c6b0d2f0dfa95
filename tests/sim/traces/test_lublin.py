"""Made-up workloads: seeded, within the model's bounds, and about as the model's authors describe them."""

import pytest

from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.sim import Machine, generate
from fluxsched.sim.synthetic import LIMITS_S, _cycle


@pytest.fixture(scope="module")
def thousand():
    return generate(jobs=1000, procs=128, seed=1)


def test_the_same_seed_gives_the_same_trace(thousand):
    assert generate(jobs=1000, procs=128, seed=1) == thousand
    assert generate(jobs=1000, procs=128, seed=2).jobs != thousand.jobs


def test_sizes_and_times_are_within_bounds(thousand):
    assert thousand.machine == Machine(128)
    assert thousand.jobs[0].submit_s == 0
    submits = [job.submit_s for job in thousand.jobs]
    assert submits == sorted(submits)
    for job in thousand.jobs:
        assert 1 <= job.ask.nslots <= 128
        assert 1 <= job.run_s <= 172_800
        assert job.limit_s is not None
        assert job.run_s <= job.limit_s
        assert job.limit_s in LIMITS_S


def test_a_quarter_is_serial_and_most_are_powers_of_two(thousand):
    sizes = [job.ask.nslots for job in thousand.jobs]
    assert 0.20 < sizes.count(1) / 1000 < 0.29
    assert 0.75 < sum(size & (size - 1) == 0 for size in sizes) / 1000 < 0.92


def test_nights_are_quiet(thousand):
    weights = _cycle()
    assert sum(weights) == pytest.approx(48, rel=0.02)
    assert max(weights) == max(weights[24:34])
    assert min(weights) == min(weights[4:14])


@pytest.mark.parametrize("load", [0.3, 1.0, 3.0])
def test_the_load_is_what_was_asked_for(load):
    trace = generate(jobs=500, procs=64, seed=5, load=load)
    work = sum(job.ask.nslots * job.run_s for job in trace.jobs)
    assert work / (64 * (trace.jobs[-1].submit_s - trace.jobs[0].submit_s)) == pytest.approx(load, rel=0.02)


def test_nodes_of_cores():
    trace = generate(jobs=20, nodes=4, cores=8, seed=1)
    assert trace.machine == Machine(4, 8)
    assert max(job.ask.nslots for job in trace.jobs) <= 32
    assert {job.ask.nslots for job in generate(jobs=20, procs=1, seed=1).jobs} == {1}


def test_users_are_dealt_out_to_banks():
    plain, dealt = generate(jobs=200, seed=2, users=7), generate(jobs=200, seed=2, users=7, banks=3)
    assert [job._replace(group=None, bank=None) for job in dealt.jobs] == plain.jobs
    assert {(job.user, job.group, job.bank) for job in dealt.jobs} == {
        (user, (user - 1) % 3 + 1, f"bank{(user - 1) % 3 + 1}") for user in range(1, 8)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"jobs": 0}, "jobs 0 is not a count of at least 1"),
        ({"procs": 0}, "procs 0 is not a count of at least 1"),
        ({"nodes": 1, "cores": 0}, "cores 0 is not a count of at least 1"),
        ({"users": 0}, "users 0 is not a count of at least 1"),
        ({"banks": 0}, "banks 0 is not a count of at least 1"),
        ({"load": 0}, "load 0 is not a number above 0: give the demand as a fraction of the machine, such as 0.8"),
        ({"load": float("inf")}, "load inf is not"),
        ({"load": float("nan")}, "load nan is not"),
        ({"procs": 4, "nodes": 4}, "procs and nodes are mutually exclusive: each defines the machine"),
        ({"cores": 4}, "cores and gpus are per node: give the number of nodes"),
    ],
)
def test_what_makes_no_sense_is_refused(options, why):
    with pytest.raises(InvalidValue, match=f"^{why}"):
        generate(**options)


def test_a_trace_that_is_too_long_is_refused():
    with pytest.raises(LimitExceeded):
        generate(jobs=10**9)


def test_some_jobs_are_elastic_and_all_others_stay_as_they_are():
    plain = generate(jobs=300, nodes=16, cores=4, seed=3).jobs
    mixed = generate(jobs=300, nodes=16, cores=4, seed=3, elastic=0.3, parts=0.1, max_hops=4).jobs
    changed = [job for job, before in zip(mixed, plain, strict=True) if job != before]
    assert 60 < len(changed) < 150
    for job, before in zip(mixed, plain, strict=True):
        if job != before:
            assert job.work == before.ask.nslots * before.run_s
            assert (job.ask.elastic, job.ask.max_hops, job.submit_s) == (True, 4, before.submit_s)
    assert {job.ask.parts is None for job in changed} == {True, False}
    with pytest.raises(InvalidValue, match="not fractions of the jobs, at most 1 together"):
        generate(jobs=3, elastic=0.7, parts=0.7)
    with pytest.raises(InvalidValue, match="max-hops: 3 is not an even number"):
        generate(jobs=3, elastic=0.7, max_hops=3)
    with pytest.raises(InvalidValue, match="bounds elastic jobs alone, and there are none"):
        generate(jobs=3, max_hops=4)

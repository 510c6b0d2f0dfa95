"""What `job why` says of a job for which nothing is preempted: the share, the age, the rate, or no victims."""

import pytest

from tests.sched.site import beneficiaries


def why(site, jobid):
    return site.scheduler.why(jobid, site.now_s).reason


@pytest.fixture
def full(shared):
    """User a holds all 8 cores by 4 jobs, which may be preempted `after` so many seconds; b asks for some."""

    def build(asks, after=0.0, bank=None, **fair):
        site = shared(8, **fair)
        site.submit("a", 2, jobs=4, after=after, bank=bank)
        assert len(site.starts(10.0)) == 4
        (jobid,) = site.submit("b", asks)
        site.starts()
        return site, jobid

    return build


def test_an_account_that_would_be_above_its_share(full):
    site, jobid = full(6)
    text = "no job is preempted for it: with it account default/b would use 6 of its share of 4"
    assert why(site, jobid).endswith(f"; {text}")


def test_shares_are_said_to_a_tenth(full):
    site, jobid = full(6)
    site.submit("c", 1)
    site.starts()
    assert "of its share of 2.7" in why(site, jobid)


def test_victims_that_are_not_preemptible(full):
    site, jobid = full(2, after=None)
    assert why(site, jobid).endswith("; no running job is preemptible")


def test_victims_that_are_too_young(full):
    site, jobid = full(2, after=60.0)
    site.starts(25.0)
    text = "the jobs that could be preempted for it are protected for another 45s (preemptible-after)"
    assert why(site, jobid).endswith(f"; {text}")


@pytest.mark.parametrize(
    ("rate", "said"), [(0, "the rate of preemptions is 0"), (1, "at most 1 in 1m: the next one in")]
)
def test_the_rate(full, rate, said):
    site, jobid = full(2, rate=rate)
    if rate:
        (jobid,) = site.submit("c", 2)
        site.starts(12.0)
    assert said in why(site, jobid)


def test_nothing_is_said_of_a_job_for_which_others_go(full):
    site, jobid = full(2)
    assert beneficiaries(site.scheduler)
    assert why(site, jobid) == "starts when 1 preempted job is gone"

"""Plans by counting: what one reservation leaves to others, as jobs begin and from pass to pass."""

from math import inf

import pytest

from fluxsched.sched.decisions import Reservation, Start
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.plan.counted import CountedPlan
from fluxsched.sched.plan.running import NEEDS_MAX, RunningJobs
from fluxsched.sched.pool.placement import WORST_FIT, Shape
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.queue import PendingJobs, Waiting
from tests.sched.site import make_r, request_of


class Six:
    """Six cores, four of them busy until 100.0, and a plan at 0.0 that has a job of five."""

    def __init__(self, resources):
        self.request_of = request_of
        self.pool, self.queue = Pool(), PendingJobs()
        self.pool.add(resources, resources.ranks)
        self.ledger = Ledger([self.pool])
        self.running = RunningJobs(self.pool, self.ledger)
        self.running.follow()
        self.plan = CountedPlan(self.pool, self.running, 0.0, inf)
        self.start(self.job(1, 4, 100.0))
        self.plan = CountedPlan(self.pool, self.running, 0.0, inf)
        self.head = self.job(2, 5, 50.0)
        assert self.plan.reserve(self.head).start_s == 100.0

    def job(self, jobid, slots, limit_s):
        job = Waiting(jobid, 16, 1000, 0.0, Shape(self.request_of(slots=slots)), limit_s)
        self.queue.add(job)
        return job

    def fits(self, job):
        return self.plan.place(job, WORST_FIT) is not None

    def start(self, job):
        fit = self.plan.place(job, WORST_FIT)
        assert fit is not None
        holding = self.ledger.commit(Start(job.jobid, fit), self.queue, self.pool, job.duration_s)
        assert holding is not None
        self.running.placed(holding)
        self.plan.began(job, fit)


@pytest.fixture
def six():
    return Six(make_r("0-5", 1))


@pytest.mark.parametrize(("limit_s", "left"), [(100.0, True), (101.0, False)])
def test_who_outlasts_the_reservation_takes_what_it_leaves(six, limit_s, left):
    six.start(six.job(3, 1, limit_s))
    assert six.fits(six.job(4, 1, 200.0)) is left
    assert six.fits(six.job(5, 1, 100.0))


def test_dropping_one_who_is_not_planned_changes_nothing(six):
    six.plan.drop(77)
    assert not six.fits(six.job(3, 2, 101.0))
    assert six.plan.has(six.head.jobid)
    six.plan.drop(six.head.jobid)
    assert not six.plan.has(six.head.jobid)
    assert six.fits(six.job(4, 2, 101.0))


def test_a_plan_begun_anew_has_forgotten_the_last_pass(six):
    long = six.job(3, 2, 101.0)
    assert not six.fits(long)
    assert six.plan.anew(10.0, inf).skips.long == {}
    assert six.fits(long)
    assert six.plan.reserve(six.head).start_s == 100.0
    assert not six.fits(long)


def test_time_goes_on_under_a_reservation(six):
    six.plan.renew(40.0)
    assert not six.fits(six.job(3, 2, 61.0))
    assert six.fits(six.job(4, 2, 60.0))


def test_needs_of_a_bounded_number_of_shapes_are_kept(six):
    six.running.needs.clear()
    for slots in range(1, NEEDS_MAX + 3):
        assert six.running.need(Shape(six.request_of(slots=slots))) == slots
        assert len(six.running.needs) <= NEEDS_MAX
    assert len(six.running.needs) == 2


def test_a_claim_keeps_what_is_free_from_now_on_but_for_what_is_about_to_come_free(six):
    six.plan.waive(2)
    five, short = Reservation(2, 10.0, 60.0, 5, None), six.job(3, 1, 1.0)
    six.running.releases.change(1, end_s=10.0)  # job 1 has 4 cores, and goes
    assert six.plan.claim(six.head, five, [1]) is not None
    assert six.fits(short)
    assert not six.fits(six.job(4, 2, 1.0))
    assert six.plan.claim(six.head, five, []) is not None  # it is claimed already
    six.plan.drop(2)
    assert six.plan.has(2)  # a claim stands
    six.plan.waive(2)
    assert six.plan.claim(six.head, five, []) is not None
    assert not six.fits(short)  # all five have to be free from now on
    six.plan.waive(2)
    assert six.fits(short)
    assert not six.plan.has(2)


def test_what_is_overdue_is_not_taken_to_be_there_for_a_claim(six):
    six.plan.waive(2)
    six.running.releases.change(1, end_s=-1.0)
    assert six.plan.claim(six.head, Reservation(2, 10.0, 60.0, 5, None), []) is not None
    assert not six.fits(six.job(3, 1, 1.0))

"""Limits of a site at submission: waiting jobs of each holder, jobs that are too large or too long."""

from __future__ import annotations

import errno

import pytest

from fluxsched.core.jobfields import EACH, SiteLimit
from fluxsched.errors import Refused
from fluxsched.jobs.queues import QueueConfig

QUEUES = {"batch": QueueConfig("batch"), "debug": QueueConfig("debug")}
EACH_USER = SiteLimit(user=EACH, waiting=2, user_name=EACH)
KIM, ROBIN = 5, 6


@pytest.fixture
def limited(new_world):
    """A world under limits, with a scheduler."""

    def make(*limits, scheduler=True, **options):
        world = new_world(dict(QUEUES), default_queue="batch", limits=limits, **options)
        if scheduler:
            world.scheduler()
        return world

    return make


def submit(world, jobid, spec, user=KIM, **options):
    return world.do("submit", jobid, spec(**options), userid=user)


def refused(world, spec, user=KIM, **options):
    """Why a job is refused; nothing of it is left."""
    before = dict(world.manager.jobs.active)
    with pytest.raises(Refused) as caught:
        submit(world, 999, spec, user, **options)
    assert world.manager.jobs.active == before
    return caught.value.errnum, str(caught.value)


def test_so_many_jobs_of_each_user_may_wait(limited, spec):
    world = limited(EACH_USER)
    submit(world, 1, spec)
    submit(world, 2, spec)
    told = "limit of each user: 2 jobs wait, 2 may: submit when some have started"
    assert refused(world, spec) == (errno.EAGAIN, told)
    submit(world, 3, spec, user=ROBIN)
    world.grant(1)
    submit(world, 4, spec)
    assert refused(world, spec)[1] == told
    world.do("cancel", 2, KIM, "")
    submit(world, 5, spec)
    world.end(1)
    assert refused(world, spec)[1] == told, "the end of a job that ran changes nothing"


def test_what_waits_for_others_or_is_held_counts_too(limited, spec):
    world = limited(EACH_USER)
    submit(world, 1, spec)
    submit(world, 2, spec, dependencies=[{"scheme": "afterok", "value": "1"}])
    world.do("set_urgency", 1, 0, KIM)
    assert refused(world, spec)[0] == errno.EAGAIN


def test_a_restart_and_a_further_attempt_refuse_nothing(limited, spec):
    world = limited(EACH_USER)
    for jobid in (1, 2):
        submit(world, jobid, spec)
    world.grant(1)
    submit(world, 3, spec)
    world.do("started", 1)
    world.do("raise_exception", 1, "requeue", 0, "", KIM)
    world.end(1)
    assert len(world.manager.jobs.active) == 3, "the next attempt waits beside two others"
    again = limited(EACH_USER, scheduler=False)
    again.stored, again.now_s = world.stored, world.now_s + 10
    again.perform(again.manager.restore(world.rows(), again.now_s).effects)
    assert len(again.manager.jobs.active) == 3
    assert "limit of each user: 3 jobs wait, 2 may" in refused(again, spec)[1]


def test_limits_change_while_jobs_wait(limited, spec):
    world = limited()
    for jobid in (1, 2, 3):
        submit(world, jobid, spec)
    world.manager.requests.change_limits([EACH_USER])
    world.manager.check()
    assert "3 jobs wait, 2 may" in refused(world, spec)[1]
    world.grant(1)
    world.grant(2)
    submit(world, 4, spec)
    world.manager.requests.change_limits([])
    submit(world, 5, spec)
    world.manager.check()


@pytest.mark.parametrize(
    ("limit", "options", "told"),
    [
        (SiteLimit(KIM, nodes=2, user_name="kim"), {"nodes": 3}, "limit of user kim: 0 + 3 nodes exceed 2, so the job"),
        (SiteLimit(bank="physics", cores=8), {"ntasks": 9, "bank": "physics"}, "limit of bank physics: 0 + 9 cores"),
        (SiteLimit(queue="debug", gpus=0), {"gpus_per_task": 1, "queue": "debug"}, "limit of queue debug: 0 + 1 gpus"),
        (SiteLimit(queue=EACH, running=0), {}, "limit of each queue: 0 + 1 running jobs exceed 0"),
        (SiteLimit(bank="default", minutes=10), {}, "duration infinity (none was asked for), limit of bank"),
        (SiteLimit(KIM, queue="batch", minutes=10, user_name="5"), {"duration_s": 601.0},
         "duration 601s, limit of user 5 in queue batch 10m: ask for at most 10m"),
    ],
)  # fmt: skip
def test_a_job_beyond_a_limit_by_itself_is_refused(limited, spec, limit, options, told):
    errnum, text = refused(limited(limit), spec, **options)
    assert errnum == errno.EINVAL
    assert told in text


@pytest.mark.parametrize(
    ("limit", "user", "options"),
    [
        (SiteLimit(KIM, running=0, user_name="kim"), ROBIN, {}),
        (SiteLimit(bank="physics", running=0), KIM, {}),
        (SiteLimit(queue="debug", running=0), KIM, {"queue": "batch"}),
        (SiteLimit(KIM, bank="physics", running=0, user_name="kim"), ROBIN, {"bank": "physics"}),
        (SiteLimit(user=EACH, nodes=2, minutes=10, user_name=EACH), KIM, {"nodes": 2, "duration_s": 600.0}),
    ],
)
def test_a_limit_is_about_whom_it_names(limited, spec, limit, user, options):
    submit(limited(limit), 1, spec, user, **options)


def test_a_longer_time_limit_is_refused_as_at_submission(limited, spec):
    world = limited(SiteLimit(bank=EACH, minutes=10))
    submit(world, 1, spec, duration_s=60.0)
    with pytest.raises(Refused, match="duration 11m, limit of each bank 10m: ask for at most 10m"):
        world.do("update", 1, {"attributes.system.duration": 660})
    world.do("update", 1, {"attributes.system.duration": 600})

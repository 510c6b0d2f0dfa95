"""A what-if goes back to the same point as often as it is asked to, with all that jobs had then."""

from fluxsched.sched.preemption import Leaving
from tests.sched.elastic.elastic_site import ElasticSite, jobspec


def waiting_for(nodes):
    """An elastic job has all of so many targets, and one that wants as many waits."""
    site = ElasticSite("easy", f"0-{nodes - 1}")
    site.submit(1, jobspec(f"1-{nodes}"))
    site.run()
    site.submit(2, jobspec(nodes, elastic=False))
    (queue,) = site.scheduler.group("default").queues.values()
    return site, queue.jobs.by_id[2]


def test_a_mark_may_be_gone_back_to_twice():
    """What was left after the first time back is left no more after the second: all of the job can be given."""
    site, job = waiting_for(4)
    group = site.scheduler.group("default")
    elastic = group.ledger.holdings[1].elastic
    assert elastic is not None
    some = Leaving(0.0, (1, 2), 1, 2.0, None, elastic.parts[0])
    with group.preemptions.if_gone(group.pool) as what_if:
        mark = what_if.mark()
        for _ in range(2):
            what_if.back(mark)
            what_if.leave_all([some])
        what_if.back(mark)
        assert not what_if.fits(job.shape)
        what_if.give([1])
        assert what_if.fits(job.shape)

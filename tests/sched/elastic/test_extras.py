"""Extras go for jobs that wait: under fair shares, and for the first who waits where no accounts are kept."""

import pytest

from fluxsched.core.idset import EMPTY
from fluxsched.sched.decisions import Granted, Grown, Raise, Shrunk
from fluxsched.sched.fair.accounts import FairSettings
from tests.sched.elastic.elastic_site import ElasticSite, jobspec, resources
from tests.sched.site import scheduler_of

A, B, C = 1, 2, 3


def fair(ranks, cores=4, **settings):
    return ElasticSite("fair:backfill=easy", ranks, cores, fair=FairSettings(**settings))


def worker_pool(site, after=0.0):
    """A's coordinator and 4-10 workers, on all there is."""
    own = {} if after is None else {"preemptible-after": after}
    site.submit(1, jobspec(1, "4-10", **own), A)
    site.run()


def test_the_vector_of_a_coordinator_and_its_workers():
    site = fair("0-6")
    worker_pool(site)
    assert site.sizes(1) == [7]  # 1 + 6
    site.now_s += 10
    site.submit(2, jobspec(2, elastic=False), B)
    (shrunk,) = site.run()
    assert isinstance(shrunk, Shrunk)
    assert shrunk.for_jobid == 2
    assert shrunk.note == "left to job ƒ3: account default/1 uses 28 of its share of 14"
    assert site.sizes(1) == [5]  # 1 + 4
    site.gone()
    assert site.sizes(1, 2) == [5, 2]
    site.submit(3, jobspec(1, elastic=False), B)
    site.run()
    assert [one.jobid for one in site.raised] == [1]
    site.gone()
    assert site.sizes(1, 2, 3) == [0, 2, 1]  # all 5 went


def test_one_that_may_not_be_preempted_still_gives_its_extras():
    site = fair("0-6", rate=0)
    worker_pool(site, None)
    site.submit(2, jobspec(2, elastic=False), B)
    site.run()
    site.gone()
    site.submit(3, jobspec(1, elastic=False), B)
    assert site.run() == []
    assert site.sizes(1, 2, 3) == [5, 2, 0]


def test_extras_go_before_whole_jobs():
    site = fair("0-7")
    site.submit(1, jobspec(1, "1-4"), A)
    site.run()
    assert site.sizes(1) == [5]
    site.now_s += 1000
    for job in (11, 12, 13):
        site.submit(job, jobspec(1, elastic=False, **{"preemptible-after": 0.0}), A)
    site.run()
    site.now_s += 10
    site.submit(2, jobspec(3, elastic=False), B)  # the young jobs have less to lose, and go all the same last
    site.run()
    assert site.sizes(1) == [2]
    assert not site.raised
    site.gone()
    site.submit(3, jobspec(1, elastic=False), B)
    site.run()
    assert [one.jobid for one in site.raised] == [11]  # they have the same to lose


def with_extras_and_a_whole_job_to_go():
    """Job 2 of B waits for three targets, of which an elastic job of A gives two."""
    site = fair("0-5")
    site.submit(1, jobspec("1-3"), A)
    site.run()
    for job in (11, 12, 13):
        site.submit(job, jobspec(1, elastic=False, **{"preemptible-after": 0.0}), A)
    site.run()
    site.submit(2, jobspec(3, elastic=False), B)
    site.run()
    return site


def test_extras_and_whole_jobs_go_together_and_what_is_not_needed_stays():
    site = with_extras_and_a_whole_job_to_go()
    assert site.sizes(1) == [1]
    assert [one.jobid for one in site.raised] == [11]
    site.gone()
    assert site.sizes(1, 2, 12, 13) == [1, 3, 1, 1]


def test_a_value_of_the_range_is_reached_though_fewer_are_wanted():
    site = fair("0-8")
    site.submit(1, jobspec(1, "4-8:4"), A)
    site.run()
    assert site.sizes(1) == [9]
    site.submit(2, jobspec(1, elastic=False), B)
    site.run()
    assert site.sizes(1) == [5]
    site.gone()
    assert site.sizes(1, 2) == [5, 1]


def test_the_youngest_go_first_and_never_that_of_the_first_task():
    site = fair("0-3")
    site.submit(1, jobspec("1-6"), A)
    site.run()
    site.now_s += 100
    more = resources("4-5")
    site.did(site.scheduler.grown("default", more, more.ranks, EMPTY, site.now_s))
    site.run()
    site.now_s += 100
    site.submit(2, jobspec(3, elastic=False), B)
    site.run()
    assert str(site.leaving[1]) == "1,4-5"


def test_only_those_over_their_share_give_and_only_until_they_are_at_it():
    site = fair("0-7")
    site.submit(1, jobspec("1-3"), A)
    site.run()
    site.submit(2, jobspec("1-5"), B)
    site.run()
    assert site.sizes(1, 2) == [3, 5]
    site.submit(3, jobspec(3, elastic=False), C)  # shares are 8/3
    assert site.run() == []
    site.scheduler.cancel(3)
    site.submit(4, jobspec(2, elastic=False), C)
    site.run()
    site.gone()
    assert sorted(site.sizes(1, 2)) == [2, 4]  # A was over by a part of one, and B by two
    assert site.sizes(4) == [2]


def test_extras_cost_no_budget_and_count_under_no_cap_but_in_usage():
    site = fair("0-9", cap=0.5, budget_min=1000.0)
    site.submit(1, jobspec("2-10"), A)  # firm: 2 of its targets are under the cap of 5
    site.run()
    (row,) = [row for row in site.scheduler.accounts_report(site.now_s).rows if row.path == ("default", "1")]
    assert (site.sizes(1), row.usage, row.firm_usage) == ([10], 40.0, 8.0)
    site.submit(2, jobspec("1-2", **{"preemptible-after": 600.0}), A)
    site.end(1)
    site.run()
    (row,) = [row for row in site.scheduler.accounts_report(site.now_s).rows if row.path == ("default", "1")]
    assert (row.usage, row.firm_usage, row.budget_left_min) == (8.0, 0.0, 1000.0)


@pytest.mark.parametrize(("least", "charge"), [(2, 0.0), (5, 0.0), (6, 120.0), (8, 360.0)])
@pytest.mark.parametrize("is_found", [False, True])
def test_only_minima_beyond_the_share_are_charged(least, charge, is_found):
    """Shares are 20; the elastic job starts with all 9 targets that are free, and is safe for 30 minutes."""
    site = fair("0-9", budget_min=500.0)
    site.submit(2, jobspec(1, elastic=False), B)
    site.run()
    site.submit(1, jobspec(f"{least}-10", **{"preemptible-after": 1800.0}), A)
    site.run()
    assert site.sizes(1) == [9]
    scheduler = site.scheduler
    if is_found:
        scheduler, whole = (scheduler_of("fair:backfill=easy", fair=FairSettings(budget_min=500.0)), resources("0-9"))
        scheduler.grown("default", whole, whole.ranks, EMPTY, site.now_s)
        for jobid, user in ((2, B), (1, A)):
            spec = site.specs[jobid]
            scheduler.hello(jobid, 16, user, 1.0, site.held[jobid], EMPTY, spec, site.now_s)
        list(scheduler.schedule(site.now_s))
    (row,) = [row for row in scheduler.accounts_report(site.now_s).rows if row.path == ("default", "1")]
    assert (row.usage, row.budget_left_min) == (36.0, 500.0 - charge)


def test_a_growing_job_gets_steps_in_fair_order():
    site = fair("0-9")
    site.submit(9, jobspec(6, elastic=False), C)
    site.run()
    site.submit(1, jobspec("1-9"), A)
    site.submit(2, jobspec("3-9"), B)
    site.run()
    assert site.sizes(1, 2) == [1, 3]
    site.end(9)
    site.run()
    assert site.sizes(1, 2) == [5, 5]


PLAIN = ["fifo", "firstfit", "easy", "conservative"]
FAIR = "fair:backfill=easy"


@pytest.mark.parametrize("policy", PLAIN)
def test_without_accounts_extras_go_for_the_first_who_waits_if_that_suffices(policy):
    site = ElasticSite(policy, "0-6")
    worker_pool(site)
    site.submit(2, jobspec(3, elastic=False))
    site.submit(3, jobspec(2, elastic=False))
    site.run()
    assert site.sizes(1) == [7]  # 2 would not be enough for the first
    site.scheduler.cancel(2)
    (shrunk,) = site.run()
    assert isinstance(shrunk, Shrunk)
    assert shrunk.note == "left to job ƒ4: it is the first that waits"
    site.submit(4, jobspec(1, elastic=False))
    assert not [effect for effect in site.run() if isinstance(effect, Granted | Shrunk | Raise)]
    site.gone()
    assert site.sizes(1, 3, 4) == [5, 2, 0]


@pytest.mark.parametrize("policy", PLAIN)
def test_the_place_is_kept_until_all_have_left_it(policy):
    site = ElasticSite(policy, "0-7")
    site.submit(1, jobspec("1-4"))
    site.run()
    site.submit(2, jobspec("1-4"))
    site.run()
    assert site.sizes(1, 2) == [4, 4]
    site.submit(3, jobspec(6, elastic=False))
    site.submit(4, jobspec(1, elastic=False))
    site.run()
    assert site.sizes(1, 2) == [1, 1]
    site.gone(1)
    assert site.sizes(3, 4) == [0, 0]
    site.gone(2)
    assert site.sizes(3, 4) == [6, 0]


def test_the_owner_is_told_what_has_to_go_first():
    site = with_extras_and_a_whole_job_to_go()
    why = "starts when 1 preempted job and extras of 1 elastic job are gone"
    assert site.scheduler.why(2, site.now_s).reason == why
    site.look()
    assert site.scheduler.why(2, site.now_s).reason == why
    site.gone(11)
    assert site.scheduler.why(2, site.now_s).reason == "starts when extras of 1 elastic job are gone"


def test_in_the_pass_in_which_extras_go_for_a_job_others_do_not_grow_where_it_is_to_start():
    site = fair("0-7")
    for jobid, nodes, user in ((1, "1-5", A), (9, 1, B), (2, "2-3", B)):
        site.submit(jobid, jobspec(nodes, elastic=jobid != 9), user)
        site.run()
    assert site.sizes(1, 9, 2) == [5, 1, 2]
    site.end(9)
    site.submit(3, jobspec(2, elastic=False), C)
    site.run()
    assert site.sizes(1, 2, 3) == [4, 2, 0]  # job 2 has left alone what has come free
    site.gone()
    assert site.sizes(1, 2, 3) == [4, 2, 2]


def test_jobs_grow_beside_all_reservations_of_several_queues():
    queues = {"batch": "default", "debug": "default"}
    site = ElasticSite("conservative", "0-7", queues=queues, policies={"debug": "easy"})
    site.submit(1, jobspec(3, elastic=False, duration=100.0))
    site.submit(2, jobspec("1-9", duration=50.0))
    site.run()
    assert site.sizes(1, 2) == [3, 5]
    site.scheduler.free(2, site.held[2].restrict(site.held[2].ranks), True, site.now_s)
    del site.held[2]
    for jobid, queue in ((3, "batch"), (4, "debug"), (5, "batch")):
        site.submit(jobid, jobspec(6, elastic=False, duration=100.0, queue=queue))
    site.submit(6, jobspec("1-9", duration=0.0, queue="batch"))
    site.submit(7, jobspec("1-9", duration=50.0, queue="debug"))
    site.run()
    assert site.sizes(6, 7) == [2, 3]  # what has no end stays where no reservation is


@pytest.mark.parametrize("policy", [*PLAIN, FAIR])
@pytest.mark.parametrize("nodes", ["1-4", 4])
def test_nothing_goes_in_one_group_for_a_job_that_another_one_starts(policy, nodes):
    """A has a group and a target of another, so that it is above its share; the other group has room for B."""
    queues = {"wide": ("default", "other"), "there": "other"}
    site = ElasticSite(policy, "0-3", groups=("default", "other"), queues=queues, fair=FairSettings())
    more = resources("4-7")
    site.did(site.scheduler.grown("other", more, more.ranks, EMPTY, site.now_s))
    safe = {"preemptible-after": 0.0, "queue": "wide"}
    site.submit(1, jobspec(nodes, elastic=nodes != 4, **safe), A)
    site.submit(2, jobspec(1, elastic=False, queue="there"), A)
    site.run()
    assert str(site.held[1].ranks) == "0-3"
    site.submit(3, jobspec(2, elastic=False, queue="wide"), B)
    assert [type(effect) for effect in site.run()] == [Granted]
    site.submit(4, jobspec(2, elastic=False, queue="wide"), C)
    effects = [effect for effect in site.run() if not isinstance(effect, Granted)]
    if nodes == 4:
        assert bool(effects) == bool(site.raised) == (policy == FAIR)
        return
    (shrunk,) = effects
    assert isinstance(shrunk, Shrunk)
    site.gone()
    assert site.sizes(1, 2, 3, 4) == [2, 1, 2, 2]


def test_no_whole_job_goes_in_one_group_where_another_has_extras_enough():
    """A has four jobs in one group, and an elastic one in the other; B wants a target of either, C of the first."""
    queues = {"wide": ("default", "other"), "here": "default", "there": "other"}
    site = ElasticSite("fair:backfill=easy", "0-3", groups=("default", "other"), queues=queues, fair=FairSettings())
    more = resources("4-7")
    site.did(site.scheduler.grown("other", more, more.ranks, EMPTY, site.now_s))
    for jobid in range(1, 5):
        site.submit(jobid, jobspec(1, elastic=False, queue="here", **{"preemptible-after": 0.0}), A)
    site.submit(5, jobspec("1-4", queue="there"), A)
    site.run()
    site.submit(6, jobspec(1, elastic=False, queue="wide"), B)
    (shrunk,) = site.run()
    assert isinstance(shrunk, Shrunk)
    assert (shrunk.jobid, shrunk.for_jobid) == (5, 6)
    site.gone()
    assert site.sizes(1, 2, 3, 4, 5, 6) == [1, 1, 1, 1, 3, 1]
    site.submit(7, jobspec(1, elastic=False, queue="here"), C)
    assert [type(effect) for effect in site.run()] == [Raise]


def test_a_job_that_was_shrunk_does_not_grow_at_once_under_the_next_scheduler():
    for shrunk_s, grows in ((None, True), (941.0, False), (939.0, True)):
        site = ElasticSite("easy", "0-3")
        site.held[1], site.specs[1] = resources("0-1", 4), jobspec("1-3")
        site.scheduler.hello(1, 16, 1000, 1.0, site.held[1], EMPTY, site.specs[1], site.now_s, shrunk_s=shrunk_s)
        assert [type(one) for one in site.look()] == [Grown] * grows, shrunk_s

"""The book of usage: amounts in units of weight, partial frees, foreign allocations, and all that there is."""

import pytest

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.decisions import Granted
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.fair.accounts import Bank, FairSettings
from fluxsched.sched.registry import load
from tests.sched.site import make_r, scheduler_of, spec

GIB = 2**30


def site(groups=("default",), policy="fair", **fair):
    scheduler = scheduler_of(policy, groups, fair=FairSettings(**fair), notify=False)
    assert scheduler.accounts is not None
    return scheduler, scheduler.accounts


def user(book, userid=1, bank="default"):
    return book.tree.root.children[bank].children[str(userid)]


def run(scheduler, now_s=0.0):
    found = [each for each in scheduler.schedule(now_s) if isinstance(each, Granted)]
    scheduler.check()
    return {each.jobid: each.resources for each in found}


def test_a_job_of_cores_a_gpu_and_memory_weighs_16():
    scheduler, book = site()
    r = make_r("0-3", cores=8, gpus=2).to_json()
    r["execution"]["R_lite"][0]["amounts"] = {"memory": 64 * GIB}
    resources = ResourceSet.parse(r)
    scheduler.grown("default", resources, resources.ranks, EMPTY)
    one = {"cores_per_task": 4, "gpus_per_task": 1, "amounts_per_task": {"memory": 8 * GIB}}
    scheduler.alloc(1, 16, 1, 0.0, Jobspec.from_command(["x"], ntasks=1, **one))
    scheduler.alloc(2, 16, 2, 0.0, spec(nodes=3, nslots=2, cores=4, gpus=1))
    run(scheduler)
    assert user(book).all_jobs.usage == 16.0
    assert user(book, 2).all_jobs.usage == 3 * 2 * (4 + 10)


def test_the_dominant_part_counts():
    scheduler, book = site(dominant=True)
    resources = make_r("0-3", cores=10, gpus=5)
    scheduler.grown("default", resources, resources.ranks, EMPTY)
    assert book.tree.measure.total == 40 + 200
    scheduler.alloc(1, 16, 1, 0.0, spec(cores=2, gpus=2))
    run(scheduler)
    assert user(book).all_jobs.usage == pytest.approx(240 * 2 / 20)
    scheduler.went_offline(Idset.of([3]), 1.0)
    assert user(book).all_jobs.usage == pytest.approx(180 * 2 / 15)


def test_a_bank_that_is_not_configured_weighs_1_beside_those_that_are():
    """Inside Flux, where a job in such a bank cannot be refused at submission."""
    scheduler, book = site(banks={"physics": Bank(3.0)})
    for jobid, bank in ((1, "physics"), (2, "elsewhere")):
        jobspec = spec(cores=1, bank=bank)
        assert scheduler.alloc(jobid, 16, 1, 0.0, jobspec) == []
    shares = {account.name: book.tree.share(account) for account in book.tree.root.children.values()}
    assert shares == {"physics": 0.75, "elsewhere": 0.25}


def test_partial_frees_are_booked_and_the_account_stays_active():
    scheduler, book = site()
    resources = make_r("0-3", cores=4)
    scheduler.grown("default", resources, resources.ranks, EMPTY)
    scheduler.alloc(1, 16, 1, 0.0, spec(nodes=3, cores=4))
    held = run(scheduler)[1]
    assert user(book).all_jobs.usage == 12.0
    first = Idset.of([min(held.ranks)])
    scheduler.free(1, held.restrict(first), False, 1.0)
    scheduler.check()
    assert (user(book).all_jobs.usage, user(book).active) == (8.0, 1)
    scheduler.free(1, held.restrict(held.ranks - first), True, 2.0)
    scheduler.check()
    assert (user(book).all_jobs.usage, user(book).active, book.running[user(book)]) == (0.0, 0, 0)


def test_what_is_held_on_others_counts_in_all_that_there_is():
    scheduler, book = site()
    resources = make_r("0-3", cores=4)
    foreign = make_r("7", cores=4)
    scheduler.grown("default", resources, resources.ranks, EMPTY)
    scheduler.hello(9, 16, 2, 0.0, foreign, EMPTY, {**spec(), "attributes": {"system": {"bank": "x"}}}, 5.0)
    assert user(book, 2, "x").all_jobs.usage == 4.0
    assert book.tree.measure.total == 20.0
    scheduler.alloc(1, 16, 1, 0.0, spec(nodes=4, exclusive=True, cores=4))
    held = run(scheduler)[1]
    scheduler.went_offline(Idset.of([0]), 1.0)
    assert book.tree.measure.total == 20.0, "12 are usable, 4 are held on what is down, 4 elsewhere"
    scheduler.free(1, held.restrict(Idset.of([0])), False, 2.0)
    assert book.tree.measure.total == 16.0
    scheduler.shrunk("default", Idset.of([1]), False, 3.0)
    assert book.tree.measure.total == 16.0
    scheduler.free(1, held.restrict(Idset.of([1, 2, 3])), True, 4.0)
    assert book.tree.measure.total == 12.0
    scheduler.free_all(9, 5.0)
    assert book.tree.measure.total == 8.0
    scheduler.went_online(Idset.of([0]), 6.0)
    assert book.tree.measure.total == 12.0
    scheduler.check()


def test_one_tree_spans_groups_and_queues():
    policy, own, _ = load("easy;debug=fair")
    scheduler = Scheduler(policy, ("a", "b"), {"debug": "b", "batch": "a"}, own, notify=False)
    book = scheduler.accounts
    assert book is not None
    for group, ranks in (("a", "0"), ("b", "1")):
        resources = make_r(ranks, cores=4)
        scheduler.grown(group, resources, resources.ranks, EMPTY)
    assert book.tree.measure.total == 8.0
    for jobid, queue in enumerate(("batch", "debug", "batch", "debug"), 1):
        scheduler.alloc(jobid, 16, 1 + jobid % 2, 0.0, spec(cores=3, queue=queue))
    assert set(run(scheduler)) == {1, 2}
    assert [user(book, each).all_jobs.usage for each in (1, 2)] == [3.0, 3.0]
    scheduler.free_all(1)
    assert set(run(scheduler)) == {3}, "a queue whose policy asks for no accounts is ordered as before"


def test_held_jobs_and_those_set_aside_make_no_account_active():
    scheduler, book = site()
    resources = make_r("0-1", cores=4)
    scheduler.grown("default", resources, resources.ranks, EMPTY)
    scheduler.alloc(1, 0, 1, 0.0, spec())
    assert user(book).active == 0
    scheduler.prioritize([(1, 16)])
    assert user(book).active == 1
    scheduler.prioritize([(1, 0)])
    assert user(book).active == 0
    scheduler.alloc(2, 16, 2, 0.0, spec(nodes=2))
    assert user(book, 2).active == 1
    scheduler.shrunk("default", Idset.of([1]), False, 1.0)
    assert user(book, 2).active == 0
    scheduler.check()
    more = make_r("0-1", cores=4).restrict(Idset.of([1]))
    scheduler.grown("default", more, more.ranks, EMPTY, 2.0)
    assert user(book, 2).active == 1
    scheduler.cancel(2)
    assert user(book, 2).active == 0
    scheduler.check()


def test_a_running_job_beyond_the_limit_of_accounts_is_taken_over(lower):

    lower(ACCOUNTS_MAX=2)
    scheduler, book = site()
    resources = make_r("0-1", cores=4)
    scheduler.grown("default", resources, resources.ranks, EMPTY)
    for jobid in (1, 2):
        scheduler.hello(jobid, 16, jobid, 0.0, resources.restrict(Idset.of([jobid - 1])), now_s=1.0)
    assert user(book).all_jobs.usage == 4.0
    assert book.tree.root.all_jobs.usage == 8.0
    scheduler.check()
    scheduler.free_all(2, 2.0)
    scheduler.check()

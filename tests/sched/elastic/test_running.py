"""Elastic jobs in the engine: at their start, as they grow, what is refused whoever asks, and what a restart finds."""

import pytest

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.resources import ResourceSet
from fluxsched.core.topology import Topology
from fluxsched.errors import LocalProtocolError
from fluxsched.sched.decisions import Granted, Grown, Raise, Shrunk
from fluxsched.sched.policy import Grow, Preempt, Shrink
from tests.sched.elastic.elastic_site import ElasticSite, jobspec, resources
from tests.sched.site import Scripted, holding, limit, scheduler_of

REFUSALS_LOGGED_MAX, REFUSALS_MAX, SHRINK_PAUSE_S = limit("REFUSALS_LOGGED_MAX", "REFUSALS_MAX", "SHRINK_PAUSE_S")


def ids(text):
    return Idset.parse(text)


def test_alone_it_starts_with_as_much_as_fits_and_says_which_part_is_where():
    site = ElasticSite("easy", "0-6")
    site.submit(1, jobspec(1, "4-10"))
    (granted,) = site.run()
    assert isinstance(granted, Granted)
    assert granted.R["scheduling"]["parts"] == {"p0": "0", "p1": "1-6"}


def test_where_another_job_waits_it_starts_with_its_minima():
    site = ElasticSite("easy", "0-6")
    site.submit(1, jobspec("2-7"))
    site.submit(2, jobspec(3, elastic=False))
    site.run()
    assert site.sizes(1, 2) == [4, 3]  # it grew by what the other left
    assert len(site.unanswered) == 0


def test_without_resizes_its_size_is_settled_at_its_start():
    site = ElasticSite("easy", "0-6", resizes=False)
    site.submit(1, jobspec("2-5"))
    site.run()
    more = resources("7")
    site.did(site.scheduler.grown("default", more, more.ranks, EMPTY, site.now_s))
    site.run()
    assert site.sizes(1) == [5]


def test_it_grows_by_what_joins_and_what_others_free_to_values_of_its_range():
    site = ElasticSite("easy", "0-5")
    site.submit(1, jobspec(2, elastic=False))
    site.run()
    site.submit(2, jobspec("2+:2:*"))
    site.run()
    assert site.sizes(2) == [4]
    site.end(1)
    assert site.run() == []  # 6 is not in its range
    more = resources("6-7")
    site.did(site.scheduler.grown("default", more, more.ranks, EMPTY, site.now_s))
    (grown,) = site.run()
    assert isinstance(grown, Grown)
    assert grown.resources.ranks == ids("0-1,6-7")
    assert site.sizes(2) == [8]


def test_no_reservation_is_delayed_by_growing():
    site = ElasticSite("easy", "0-7")
    site.submit(1, jobspec(4, elastic=False, duration=100.0))
    site.run()
    site.submit(2, jobspec("2-8"))
    site.submit(3, jobspec(8, elastic=False, duration=50.0))
    site.run()
    assert site.sizes(1, 2, 3) == [4, 4, 0]
    site = ElasticSite("easy", "0-7")
    site.submit(1, jobspec(4, elastic=False, duration=100.0))
    site.run()
    site.submit(2, jobspec("2-8", duration=5000.0))
    site.submit(3, jobspec(6, elastic=False, duration=50.0))
    site.run()
    assert site.sizes(1, 2, 3) == [4, 2, 0]  # the two others are to be free when 1 has ended


def test_the_one_that_began_first_grows_first():
    site = ElasticSite("easy", "0-5")
    site.submit(9, jobspec(2, elastic=False))
    site.run()
    site.submit(1, jobspec("2-4"))
    site.submit(2, jobspec("2-4"))
    site.run()
    site.end(9)
    site.run()
    assert site.sizes(1, 2) == [4, 2]


def test_a_bound_on_hops_holds_as_it_grows_also_for_policies():
    policy = Scripted()
    leaves = Topology.parse([{"name": "a", "hosts": "n[0-3]"}, {"name": "b", "hosts": "n[4-7]"}])
    site = ElasticSite(policy, "0-7", topology=leaves)
    site.submit(9, jobspec(6, elastic=False))
    site.run()
    site.submit(1, jobspec("1-8", max_hops=2))
    site.run()
    assert site.held[1].ranks == ids("6-7")
    site.submit(2, jobspec(8, elastic=False))
    site.end(9)
    policy.wanted = [Grow(1, site.fit(1, "0"))]
    site.run()
    assert site.scheduler.report.stats()["refused"] == 1
    assert site.held[1].ranks == ids("4-7")


def test_where_a_job_grows_does_not_change_what_other_jobs_of_that_size_need():
    leaves = Topology.parse([{"name": "a", "hosts": "n[0-3]"}, {"name": "b", "hosts": "n[4-7]"}])
    site = ElasticSite("easy", "0-7", topology=leaves)
    site.submit(9, jobspec(6, elastic=False, duration=50.0))
    site.run()
    site.submit(1, jobspec("1-4", duration=100.0))
    site.run()
    site.submit(2, jobspec(8, elastic=False))  # has a reservation
    site.end(9)
    site.run()
    assert site.held[1].ranks == ids("4-7")
    running = site.scheduler.group("default").running
    assert running.needs
    assert all(running.needs.values())


def test_nodes_in_part_are_grown_on_others_than_it_has():
    site = ElasticSite("easy", "0-2")
    site.submit(1, jobspec("1-3", exclusive=False, cores=2))
    site.run()
    assert site.sizes(1) == [3]
    assert all(cores == 0b11 for cores, _ in holding(site.scheduler, 1).parts.values())
    more = resources("3-4")
    site.did(site.scheduler.grown("default", more, more.ranks, EMPTY, site.now_s))
    assert site.run() == []  # it is at its maximum


def scripted_site(grows=False):
    """Job 1 has 0 and 1-4, of which it may have 2, 4 or 6; 2 has 7 and is not elastic; 5-6, which 1 has left, are idle.

    3 waits for all.
    """
    policy = Scripted()
    policy.GROWS = grows
    site = ElasticSite(policy, "0-7")
    site.submit(1, jobspec(1, "2-6:2", **{"preemptible-after": 0.0}))
    site.run()
    site.submit(2, jobspec(1, elastic=False))
    site.submit(3, jobspec(8, elastic=False))
    site.run()
    assert site.held[1].ranks == ids("0-6")
    policy.wanted = [Shrink(1, ids("5-6"), "a test")]
    site.look()
    site.gone(1)
    return site, policy


@pytest.fixture
def scripted():
    return scripted_site()


@pytest.mark.parametrize(
    ("decision", "why"),
    [
        (Shrink(2, ids("7"), ""), "it is not elastic"),
        (Shrink(9, ids("0"), ""), "it does not run"),
        (Shrink(1, ids("7"), ""), "it does not hold ranks 7"),
        (Shrink(1, ids("4"), ""), "part p1 would have 3 nodes, and asks for 2-6:2"),
        (Shrink(1, ids("1-4"), ""), "part p1 would have 0 nodes, and asks for 2-6:2"),
        (Shrink(1, ids("0"), ""), "part p0 would have 0 nodes, and asks for 1"),
        (Shrink(1, EMPTY, ""), "no ranks are named"),
        (Shrink(1, ids("9"), ""), "ranks 9 are not in group default"),
        (Shrink(1, ids("3-4"), "", 77), "job ƒ2L, for which it was to shrink, does not wait"),
    ],
)
def test_shrinks_that_are_refused(scripted, decision, why):
    site, policy = scripted
    policy.wanted = [decision]
    assert site.look() == []
    assert site.scheduler.report.stats()["refused"] == 1
    assert site.refused == [f"policy 'scripted': job {format_f58(decision.jobid)} cannot shrink: {why}"]


def test_a_shrink_twice_is_refused_and_what_leaves_is_held_until_it_is_freed(scripted):
    site, policy = scripted
    policy.wanted = [Shrink(1, ids("3-4"), "a test"), Shrink(1, ids("3-4"), "a test")]
    (shrunk,) = site.look()
    assert shrunk == Shrunk(1, ids("3-4"), "a test")
    assert [note.split(": ")[2] for note in site.refused] == ["it is leaving ranks 3-4 already"]
    assert site.scheduler.report.resource_status()[2].ranks == ids("0-4,7")
    site.gone()
    assert site.scheduler.report.resource_status()[2].ranks == ids("0-2,7")


@pytest.mark.parametrize(
    ("ranks", "cores", "part", "why"),
    [
        ("5", 4, 1, "part p1 would have 5 nodes, and asks for 2-6:2"),
        ("4-5", 4, 1, "it holds ranks 4 already"),
        ("6-7", 4, 1, "not all of the fit is free"),
        ("5-6", 2, 1, "on rank 5 the fit has other cores, GPUs or amounts than part p1 has of each target"),
        ("5", 4, 0, "part p0 would have 2 nodes, and asks for 1"),
    ],
)
def test_grows_that_are_refused(ranks, cores, part, why):
    site, policy = scripted_site(grows=True)  # else the engine itself would grow it by what is free
    policy.wanted = [Grow(1, site.fit(1, ranks, cores, part))]
    site.elastic(1).paused_until_s = site.now_s - 1.0
    assert site.look() == []
    assert site.scheduler.report.stats()["refused"] == 1
    assert site.refused == [f"policy 'scripted': job ƒ2 cannot grow: {why}"]


def test_who_cannot_grow_at_all_is_named_with_the_reason(scripted):
    site, policy = scripted
    fit = site.fit(1, "5-6", part=1)
    policy.wanted = [Grow(2, fit), Grow(9, fit)]
    site.look()
    site.elastic(1).paused_until_s = site.now_s - 1.0
    policy.wanted = [Preempt(1, 3, ""), Grow(1, fit), Shrink(1, ids("3-4"), "")]
    site.look()
    assert [note.removeprefix("policy 'scripted': job ") for note in site.refused] == [
        "ƒ3 cannot grow: it is not elastic", "ƒA cannot grow: it does not run",
        "ƒ2 cannot grow: it is ending", "ƒ2 cannot shrink: it is ending",
    ]  # fmt: skip


def test_a_policy_that_is_refused_again_and_again_learns_what_was_wrong_last(scripted):
    site, policy = scripted
    policy.wanted = [Shrink(2, ids("7"), "")] * (REFUSALS_MAX + 1)
    with pytest.raises(LocalProtocolError, match="the last: job ƒ3 cannot shrink: it is not elastic"):
        site.look()


def test_what_is_told_of_one_pass_is_limited(scripted):
    site, policy = scripted
    policy.wanted = [Shrink(1, ids(str(rank)), "") for rank in range(8, 8 + REFUSALS_LOGGED_MAX + 5)]
    site.look()
    assert len(site.refused) == REFUSALS_LOGGED_MAX


def test_a_grow_that_a_policy_wants_is_made(scripted):
    site, policy = scripted
    policy.wanted = [Grow(1, site.fit(1, "5-6", part=1))]
    assert site.look() == []
    assert "less than 60 s ago" in site.refused[0]
    site.now_s += SHRINK_PAUSE_S
    policy.wanted = [Grow(1, site.fit(1, "5-6", part=1))]
    (grown,) = site.look()
    assert isinstance(grown, Grown)
    assert grown.R["scheduling"]["parts"] == {"p1": "5-6"}


def test_it_rests_for_a_minute_after_a_shrink_and_a_pass_comes_then(scripted):
    site, _ = scripted
    assert site.look() == []
    assert site.scheduler.group("default").wake_s == site.now_s + SHRINK_PAUSE_S
    site.now_s += SHRINK_PAUSE_S
    assert [type(effect) for effect in site.run()] == [Grown]
    assert site.sizes(1) == [7]


def with_a_grow_that_is_not_answered():
    """Job 1 runs on ranks 0 and 1, and is to have 2 and 3 as well."""
    site = ElasticSite("easy", "0-1")
    site.submit(1, jobspec("2-4"))
    site.run()
    site.answers = False
    more = resources("2-3")
    site.did(site.scheduler.grown("default", more, more.ranks, EMPTY, site.now_s))
    site.run()
    return site


def test_a_grow_that_failed_is_taken_back_and_not_tried_at_once():
    site = with_a_grow_that_is_not_answered()
    assert site.scheduler.report.resource_status()[2].ranks == ids("0-3")
    site.did(site.scheduler.grow_failed(1, ids("2-3"), site.now_s))
    assert site.run() == []
    assert site.scheduler.report.resource_status()[2].ranks == ids("0-1")
    site.now_s += SHRINK_PAUSE_S
    assert [type(effect) for effect in site.run()] == [Grown]


def test_a_size_that_is_settled_is_never_changed_again():
    site = ElasticSite("easy", "0-3")
    site.submit(9, jobspec(1, elastic=False))
    site.submit(1, jobspec("1-4"))
    site.run()
    site.answers = False
    site.end(9)
    (grown,) = site.run()
    site.unanswered.clear()
    site.did(site.scheduler.grow_failed(1, grown.resources.ranks, site.now_s, is_settled=True))
    site.now_s += 1000.0
    assert site.look() == []
    site.submit(2, jobspec(2, elastic=False))
    assert site.run() == []
    (raised,) = site.did(site.scheduler.shrunk("default", Idset.parse("3"), True, site.now_s))
    assert isinstance(raised, Raise)


def test_a_shrink_of_a_settled_size_is_not_tried_again():
    site = ElasticSite("easy", "0-3")
    site.submit(1, jobspec("1-4"))
    site.run()
    site.submit(2, jobspec(2, elastic=False))
    (shrunk,) = site.run()
    site.leaving.clear()
    site.scheduler.shrink_failed(1, shrunk.ranks, site.now_s, is_settled=True)
    site.now_s += 1000.0
    assert site.look() == []
    assert site.sizes(1) == [4]


@pytest.mark.parametrize(("lost", "grows"), [("3", True), ("1-3", False)])
def test_it_grows_again_after_it_has_freed_targets_that_it_lost_unless_it_is_below_its_minimum(lost, grows):
    site = ElasticSite("easy", "0-3")
    site.submit(1, jobspec("2-4"))
    site.run()
    site.did(site.scheduler.free(1, resources(lost), False, site.now_s))
    assert site.look() == []
    site.now_s += SHRINK_PAUSE_S
    assert [type(effect) for effect in site.run()] == ([Grown] if grows else [])


def test_a_final_free_does_not_cover_what_is_not_answered():
    site = with_a_grow_that_is_not_answered()
    site.end(1)
    assert site.scheduler.report.resource_status()[2].ranks == ids("2-3")  # nothing twice: it may be stored by now
    site.did(site.scheduler.grow_failed(1, ids("2-3"), site.now_s))
    assert not site.scheduler.report.resource_status()[2].ranks
    assert site.scheduler.grow_failed(1, ids("2-3"), site.now_s) == []  # it has ended


def test_a_shrink_that_failed_leaves_all_as_it_was(scripted):
    site, policy = scripted
    policy.wanted = [Shrink(1, ids("3-4"), "a test")]
    site.look()
    site.scheduler.shrink_failed(1, ids("3-4"), site.now_s)
    site.leaving.clear()
    site.scheduler.check()
    assert not site.elastic(1).leaving
    assert site.sizes(1) == [5]


def test_targets_that_leave_the_group_take_extras_and_end_it_only_below_its_minima(scripted):
    site, _ = scripted
    effects = site.did(site.scheduler.shrunk("default", ids("4"), True, site.now_s))
    assert effects[:1] == [Shrunk(1, ids("3-4"), "n4 left the group")]  # down to a value of its range
    again = site.did(site.scheduler.shrunk("default", ids("3"), True, site.now_s))
    assert not [effect for effect in again if isinstance(effect, Shrunk | Raise)]  # it is leaving that already
    site.gone()
    assert site.sizes(1) == [3]
    ended = site.did(site.scheduler.shrunk("default", ids("2"), True, site.now_s))
    assert [type(effect) for effect in ended if isinstance(effect, Shrunk | Raise)] == [Raise]


def test_what_leaves_before_its_grow_is_answered_goes_then():
    site = with_a_grow_that_is_not_answered()
    assert site.did(site.scheduler.shrunk("default", ids("3"), True, site.now_s)) == []
    site.held[1] |= resources("2-3")
    site.unanswered.clear()
    assert site.did(site.scheduler.grow_stored(1, site.now_s)) == [Shrunk(1, ids("3"), "n3 left the group")]


@pytest.mark.parametrize("going", ["", "5-6"])
def test_hello_restores_parts_sizes_and_what_is_going(going):
    scheduler = scheduler_of("easy")
    whole = resources("0-7")
    scheduler.grown("default", whole, whole.ranks, EMPTY, 1000.0)
    held = ResourceSet.parse(_with_parts(resources("0-6").to_json(), p0="0", p1="1-6"))
    scheduler.hello(1, 16, 1000, 1.0, held, EMPTY, jobspec(1, "2-6:2"), 1000.0, going=ids(going), grown=ids("3-6"))
    elastic = holding(scheduler, 1).elastic
    assert [part.ranks for part in elastic.parts] == [ids("0"), ids("1-6") - ids(going)]
    assert elastic.leaving == ids(going)
    scheduler.check()
    if going:
        scheduler.free(1, held.restrict(ids(going)), False, 1001.0)
        scheduler.check()
        assert not elastic.leaving


def _with_parts(r, **parts):
    return {**r, "scheduling": {"writer": "fluxsched", "parts": parts}}

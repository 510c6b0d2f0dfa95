"""The scheduler's side of resource acquisition (RFC 28 draft): grow, shrink in both dialects, weather, release."""

import pytest

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import RemoteProtocolError
from fluxsched.sched.decisions import Denied, Granted, Raise, Release
from tests.sched.site import Bench, make_r, spec


def ids(text):
    return Idset.parse(text)


def test_nothing_is_judged_before_the_first_grow(bench):
    assert bench.submit(1, nodes=99) == []
    assert bench.submit(2, nodes=2) == []
    assert bench.run() == []
    assert bench.scheduler.feasible(spec(nodes=99)) is None
    assert "to be acquired" in bench.why(1)
    (denied,) = bench.grow("0-3")
    assert isinstance(denied, Denied)
    assert denied.jobid == 1
    assert "only 4 such nodes" in denied.note
    assert [effect.jobid for effect in bench.run()] == [2]


def test_an_empty_first_grow_denies_and_a_later_one_serves(bench):
    bench.grow(ResourceSet())
    (denied,) = bench.submit(1, spec())
    assert denied == Denied(1, "needs 1 slot of 1 core; no node of the group matches")
    bench.grow("0")
    assert bench.submit(2, spec()) == []
    assert isinstance(bench.run()[0], Granted)


def test_offline_places_nothing_and_raises_nothing(bench):
    bench.grow("0-1", offline="1")
    bench.submit(1, nodes=1, exclusive=True)
    bench.submit(2, nodes=1, exclusive=True)
    bench.run()
    assert set(bench.granted) == {1}
    assert bench.did(bench.scheduler.went_offline(ids("0"))) == []
    bench.free(1)
    bench.run()
    assert not bench.granted  # both targets are down now
    assert "n[0-1] are out of service" in bench.why(2)
    bench.did(bench.scheduler.went_online(ids("1")))
    (granted,) = bench.run()
    assert granted.R["execution"]["R_lite"][0]["rank"] == "1"


def test_typed_shrink_raises_releases_and_denies_if_told_so():
    bench = Bench("fifo", unsatisfiable="deny")
    bench.grow("0-3")
    bench.submit(1, nodes=2, nslots=1, cores=4)
    bench.submit(2, nodes=3)
    bench.run()
    effects = bench.did(bench.scheduler.shrunk("default", ids("0,3"), True))
    assert effects == [
        Raise(1, "n0 left the group", targets=ids("0")),
        Release("default", ids("3")),
        Denied(2, "needs 3 nodes of 1 core; the group has only 2 such nodes"),
    ]
    assert bench.free(1) == [Release("default", ids("0"))]
    assert str(bench.scheduler.report.resource_status()[0].ranks) == "1-2"


def test_release_waits_for_the_last_job_and_may_carry_several(bench):
    bench.grow("0-1")
    bench.submit(1, nodes=2, cores=2)
    bench.submit(2, nodes=2, cores=2)
    bench.run()
    assert bench.did(bench.scheduler.shrunk("default", ids("0-1"), True)) == [
        Raise(1, "n[0-1] left the group", targets=ids("0-1")),
        Raise(2, "n[0-1] left the group", targets=ids("0-1")),
    ]
    assert bench.free(1) == []
    assert bench.free(2, "1") == [Release("default", ids("1"))]
    assert bench.free(2) == [Release("default", ids("0"))]
    assert bench.scheduler.report.stats()["groups"]["default"]["leaving"] == 0


def test_one_free_releases_several_targets(bench):
    bench.grow("0-3")
    bench.submit(1, nodes=4, cores=4)
    bench.run()
    bench.did(bench.scheduler.shrunk("default", ids("1-2"), True))
    assert bench.free(1) == [Release("default", ids("1-2"))]


def test_a_job_is_raised_once_however_often_it_is_shrunk(bench):
    bench.grow("0-1")
    bench.submit(1, nodes=2)
    bench.run()
    assert len(bench.did(bench.scheduler.shrunk("default", ids("0"), True))) == 1
    assert bench.did(bench.scheduler.shrunk("default", ids("1"), True)) == []


def test_a_grant_just_made_on_a_shrunk_rank_is_raised(bench):
    """The shrink crosses the grant on the wire: the job manager may not even have seen the success."""
    bench.grow("0")
    bench.submit(1, spec())
    (granted,) = bench.run()
    assert isinstance(granted, Granted)
    raised = Raise(1, "n0 left the group", targets=ids("0"))
    assert bench.did(bench.scheduler.shrunk("default", ids("0"), True)) == [raised]


def test_nothing_is_placed_on_what_leaves(bench):
    bench.grow("0-1")
    bench.submit(1, nodes=1, cores=1)
    bench.run()
    bench.did(bench.scheduler.shrunk("default", ids("0"), True))
    bench.submit(2, spec())
    (granted,) = bench.run()
    assert granted.R["execution"]["R_lite"][0]["rank"] == "1"
    assert bench.did(bench.scheduler.went_online(ids("0"))) == []  # about a leaving target nothing is said: ignored
    assert bench.did(bench.scheduler.went_offline(ids("0"))) == []


def test_a_released_target_may_come_back(bench):
    bench.grow("0-1")
    bench.submit(1, nodes=2, cores=4)
    bench.run()
    bench.did(bench.scheduler.shrunk("default", ids("1"), True))
    with pytest.raises(RemoteProtocolError, match="not released"):
        bench.grow("1")
    bench.free(1)
    bench.grow(make_r("1", 8))
    bench.submit(2, cores=8)
    assert isinstance(bench.run()[0], Granted)


def test_plain_shrink_raises_and_releases_nothing(bench):
    bench.grow("0-2")
    bench.submit(1, nodes=1, cores=4)
    bench.submit(2, nodes=3, cores=4)
    bench.run()
    bench.did(bench.scheduler.shrunk("default", ids("0,2"), False))
    assert bench.scheduler.report.set_aside().keys() == {2}
    assert bench.scheduler.report.stats()["foreign"] == 1
    assert bench.free(1) == []
    assert bench.scheduler.report.stats()["running"] == 0


def test_hello_with_partial_release_and_foreign_parts(bench):
    bench.grow("0-3")
    held = make_r("1-5", 4)
    bench.did(bench.scheduler.hello(7, 16, 1000, 1.0, held, ids("1")))
    assert str(bench.allocated.ranks) == "2-3"
    bench.granted[7] = held.restrict(ids("2-5"))
    bench.submit(8, nodes=2, cores=4)
    assert isinstance(bench.run()[0], Granted)
    assert str(bench.granted[8].ranks) == "0-1"
    assert bench.free(7, "4-5") == []  # a foreign free is accepted and releases nothing
    assert bench.free(7) == []
    assert str(bench.allocated.ranks) == "0-1"


def test_hello_names_ranks_freed_that_r_does_not_have(bench):
    with pytest.raises(RemoteProtocolError, match="ranks 9"):
        bench.scheduler.hello(7, 16, 1000, 1.0, make_r("0"), ids("9"))


def test_hello_before_the_first_grow_is_counted_by_it(bench):
    bench.did(bench.scheduler.hello(7, 16, 1000, 1.0, make_r("0", 4), EMPTY))
    bench.grow("0-1")
    bench.submit(8, nodes=1, cores=4)
    bench.run()
    assert str(bench.granted[8].ranks) == "1"


def test_bad_grows_and_shrinks_change_nothing(bench):
    bench.grow("0-3")
    grown = bench.scheduler.grown
    for call, words in (
        (lambda: grown("default", make_r("3-4"), ids("3-4"), EMPTY), "ranks 3"),
        (lambda: grown("default", make_r("4-5"), ids("4"), EMPTY), "online or offline"),
        (lambda: grown("other", make_r("4"), ids("4"), EMPTY), "not acquired"),
        (lambda: bench.scheduler.shrunk("default", ids("2-9"), True), "ranks 4-9"),
    ):
        with pytest.raises(RemoteProtocolError, match=words):
            call()
    assert str(bench.scheduler.report.resource_status()[0].ranks) == "0-3"
    bench.scheduler.check()


def test_two_groups_keep_their_queues_apart():
    bench = Bench("fifo", "default", "debug", queues={"quick": "debug"})
    bench.grow("0-1")
    bench.grow("2-3", group="debug")
    bench.submit(1, nodes=2, exclusive=True)
    bench.submit(2, nodes=2, exclusive=True)  # blocked, and head of its group
    bench.submit(3, nodes=2, exclusive=True, queue="quick")
    bench.run()
    assert {jobid: str(held.ranks) for jobid, held in bench.granted.items()} == {1: "0-1", 3: "2-3"}
    with pytest.raises(RemoteProtocolError, match="'default' has"):
        bench.grow("1", group="debug")
    raised = Raise(3, "n[2-3] left the group", targets=ids("2-3"))
    assert bench.did(bench.scheduler.shrunk("debug", ids("2-3"), True)) == [raised]
    with pytest.raises(RemoteProtocolError, match="'debug' has"):
        bench.grow("2")
    assert bench.free(3) == [Release("debug", ids("2-3"))]
    bench.grow("2")


def test_properties_change_what_is_feasible():
    bench = Bench("firstfit")
    bench.grow(make_r("0-3", ssd="0-1"))
    ssd = {"properties": ["ssd"]}
    bench.submit(1, nodes=2, cores=4, constraint=ssd)
    bench.submit(2, nodes=2, cores=4, constraint=ssd)
    assert bench.scheduler.feasible(spec(nodes=3, constraint=ssd)) is not None
    bench.run()
    bench.did(bench.scheduler.updated("default", property_remove={"ssd": ids("1")}))
    assert bench.scheduler.report.set_aside().keys() == {2}
    assert bench.scheduler.feasible(spec(nodes=2, constraint=ssd)) is not None
    bench.did(bench.scheduler.updated("default", property_add={"ssd": ids("1-3")}))
    assert bench.scheduler.feasible(spec(nodes=3, constraint=ssd)) is None
    bench.submit(3, nodes=2, cores=4, constraint=ssd)
    bench.run()
    assert str(bench.granted[2].ranks) == "2-3"
    assert str(bench.granted[2].properties["ssd"]) == "2-3"


def test_the_end_of_the_resources_ends_jobs_and_stops_grants(bench):
    bench.grow(make_r("0-3", expiration=500.0))
    for jobid, duration in ((1, 60.0), (2, 1e6), (3, 0.0), (4, 1e-9)):
        bench.submit(jobid, duration=duration)
    bench.run()
    ends = [bench.granted[jobid].expiration_s for jobid in (1, 2, 3)]
    assert ends == [160.0, 500.0, 500.0]
    assert 100.0 < bench.granted[4].expiration_s < 100.001
    bench.submit(5, spec())
    bench.now_s = 600.0
    assert bench.run() == []
    bench.did(bench.scheduler.updated("default", expiration_s=0.0))
    (granted,) = bench.run()
    assert granted.R["execution"]["expiration"] == 0.0
    assert granted.R["execution"]["starttime"] == 600.0

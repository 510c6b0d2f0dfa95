"""Who holds what: nothing twice, nothing lost, and a mutation that a check must catch; all through the scheduler."""

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import RemoteProtocolError
from fluxsched.sched.policy import PAUSE, Fits, Start
from tests.sched.site import Bench, make_r


class Late:
    """Places all jobs, pauses, and then starts them on what was free before."""

    name = "late"
    OPTIONS = {}  # noqa: RUF012
    twist = staticmethod(lambda starts: starts)

    def schedule(self, view, now_s):
        starts = [Start(job.jobid, view.place(job)) for job in view.queue]
        yield PAUSE
        yield from self.twist(starts)


@pytest.fixture
def late():
    made = Bench(Late())
    made.grow("0-3")
    return made


def paused(bench, happens=lambda bench: None):
    """The jobs that start where something happens between a decision and its placement."""
    effects = bench.scheduler.schedule(bench.now_s)
    next(effects)
    happens(bench)
    bench.did(list(effects))
    return set(bench.granted)


@pytest.mark.parametrize(
    "happens",
    [
        lambda bench: bench.cancel(1), lambda bench: bench.did(bench.scheduler.went_offline(Idset.parse("0"))),
        lambda bench: bench.shrink("0", typed=False),
    ],
    ids=["canceled", "down", "shrunk"],
)  # fmt: skip
def test_stale_decisions_are_refused(late, happens):
    late.submit(1)
    assert paused(late, happens) == set()
    assert late.scheduler.report.stats()["refused"] == 1


def test_double_grants_and_fits_of_other_requests_are_refused(late):
    """Both jobs were placed before either was committed; then each on what the other asked for."""
    late.submit(1, cores=4)
    late.submit(2, cores=4)
    assert paused(late) == {1}
    late.free(1)
    late.cancel(2)
    late.submit(3)
    late.submit(4, cores=4)
    late.scheduler.policy.twist = lambda starts: [
        Start(3, starts[1].fit), Start(4, Fits(starts[1].fit.shape, (), 1)),
        Start(4, Fits(starts[1].fit.shape, starts[1].fit.blocks * 2, 1)), starts[0],
    ]  # fmt: skip
    assert paused(late) == {3}
    assert late.scheduler.report.stats()["refused"] == 4


def r_of(**cores):
    """`r_of(r0="0-1", r9="0")`: cores by rank."""
    entries = [{"rank": rank[1:], "children": {"core": ids}} for rank, ids in cores.items()]
    execution = {"R_lite": entries, "starttime": 0.0, "expiration": 0.0}
    return ResourceSet.parse({"version": 1, "execution": execution})


@pytest.fixture
def two(bench):
    """Job 1 holds two cores of each of ranks 0 and 1, of 4."""
    bench.grow("0-3")
    bench.submit(1, nodes=2, cores=2)
    bench.run()
    return bench


BAD_FREES = [
    (1, {"r3": "0-1"}, False, "ranks 3"),  # a foreign rank
    (1, {"r0": "0-1", "r3": "0-1"}, False, "ranks 3"),  # one of two
    (1, {"r0": "0"}, False, "ranks 0"),  # not the whole of it
    (1, {"r0": "0-2"}, False, "ranks 0"),  # more than it holds
    (1, {"r0": "0-1"}, True, "ranks 1 would stay"),  # final, and something left
    (7, {"r0": "0-1"}, True, "job 7: it holds no resources"),  # an unknown job
]


@pytest.mark.parametrize(("jobid", "parts", "final", "words"), BAD_FREES)
def test_bad_frees_change_nothing(two, jobid, parts, final, words):
    with pytest.raises(RemoteProtocolError, match=words):
        two.scheduler.free(jobid, r_of(**parts), final)
    two.scheduler.check()
    assert str(two.allocated.ranks) == "0-1"
    two.scheduler.free(1, r_of(r1="0-1", r0="0-1"), True)


def test_double_free(two):
    two.free(1, "0")
    with pytest.raises(RemoteProtocolError, match="ranks 0"):
        two.scheduler.free(1, r_of(r0="0-1"), False)
    two.free(1)
    with pytest.raises(RemoteProtocolError, match="freed before"):
        two.scheduler.free(1, r_of(r1="0-1"), True)
    with pytest.raises(RemoteProtocolError, match="freed before"):
        two.scheduler.free_all(1)
    assert two.scheduler.free(1, ResourceSet(), True) == []  # a final mark without ranks is of no matter
    assert not two.allocated.ranks


def test_a_job_on_many_targets_frees_them_in_any_order(bench):
    bench.grow(make_r("0-1300", 4))
    bench.submit(1)
    bench.submit(2, nodes=1300, cores=4)
    bench.run()
    bench.free(2, "501-700")
    with pytest.raises(RemoteProtocolError, match="ranks 501-502"):
        bench.scheduler.free(2, make_r("500-502"), False)
    bench.free(2, "1-500")
    bench.free(2)
    assert str(bench.allocated.ranks) == "0"
    bench.submit(3, constraint={"ranks": ["700"]})
    bench.run()
    assert str(bench.granted[3].ranks) == "700"


def hello(bench, jobid, **parts):
    bench.granted[jobid] = r_of(**parts)
    bench.did(bench.scheduler.hello(jobid, 16, 1000, 1.0, bench.granted[jobid]))


def test_hello_adopts_what_is_down_foreign_or_not_there(bench):
    bench.grow("0-3", offline="1-2")
    hello(bench, 1, r1="0-3", r2="0-1", r9="0-1")
    hello(bench, 2, r2="2", r0="4-5")  # target 0 has no such cores
    assert bench.scheduler.report.stats()["foreign"] == 1
    assert bench.allocated.summary() == "rank1/core[0-3] rank2/core[0-2]"
    bench.did(bench.scheduler.went_online(Idset.parse("1-2")))
    bench.submit(3, nodes=1, cores=4)
    assert bench.starts() == {3: "0"}
    bench.grow("9")
    assert bench.scheduler.report.stats()["foreign"] == 0
    bench.submit(4, nodes=1, cores=2, constraint={"ranks": ["9"]})
    bench.run()
    assert bench.granted[4].summary() == "rank9/core[2-3]"
    for jobid in (1, 2, 3, 4):
        bench.free(jobid)
    assert not bench.allocated.ranks


def test_hello_that_holds_twice_is_refused(bench):
    bench.grow("0-3")
    hello(bench, 1, r0="0-1", r9="0")
    for rank, cores in ((0, "1"), (9, "0")):
        with pytest.raises(RemoteProtocolError, match=f"jobs 1 and 2 both hold rank {rank}"):
            bench.scheduler.hello(2, 16, 1000, 1.0, r_of(r1="0", **{f"r{rank}": cores}))
    with pytest.raises(RemoteProtocolError, match="twice"):
        bench.scheduler.hello(1, 16, 1000, 1.0, r_of(r1="0"))
    assert str(bench.allocated.ranks) == "0"


@pytest.mark.plain_only("replaces methods of the pool")
@pytest.mark.parametrize("forgotten", ["give", "take"])
def test_check_catches_a_forgotten_free_and_a_core_held_twice(monkeypatch, forgotten):
    """The mutation: what concerns rank 1 is forgotten by the pool."""
    bench = Bench("fifo")
    bench.grow("0-1")
    pool = type(bench.scheduler.group("default").pool)
    right = getattr(pool, forgotten)
    kept = lambda blocks: tuple(block for block in blocks if block.word != 0b10)  # noqa: E731
    monkeypatch.setattr(pool, forgotten, lambda own, blocks: right(own, kept(blocks)))
    bench.submit(1, nodes=1, cores=4, constraint={"ranks": ["0"]})
    bench.run()
    bench.free(1)
    bench.submit(2, nodes=1, cores=4, constraint={"ranks": ["1"]})
    with pytest.raises(AssertionError, match="rank 1"):
        bench.free(2, bench.starts()[2])

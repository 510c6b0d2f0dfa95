"""The ledger: nothing twice, nothing lost; and a mutation that a check must catch."""

import pytest

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import RemoteProtocolError
from fluxsched.sched.decisions import Start
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.pool.place import place_now
from fluxsched.sched.pool.placement import BEST_FIT, Fits, Part, Shape, blocks_of, parts_in
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.queue import PendingJobs, Waiting
from tests.sched.site import make_r, request_of


class LedgerPass:
    """A ledger with one pool of four 4-core targets and one queue."""

    def __init__(self, resources):
        self.pool, self.queue = Pool(), PendingJobs()
        self.pool.add(resources, resources.ranks)
        self.ledger = Ledger([self.pool])

    def wait(self, jobid, request):
        self.queue.add(Waiting(jobid, 16, 1000, 0.0, Shape(request), 0.0))
        fit = place_now(self.pool, Shape(request), BEST_FIT)
        assert isinstance(fit, Fits)
        return Start(jobid, fit)

    def commit(self, start):
        return self.ledger.commit(start, self.queue, self.pool, 0.0) is not None

    def adopt(self, jobid, *parts):
        self.ledger.adopt(jobid, blocks_of(parts), 0.0)

    def free(self, jobid, parts, final=False):
        return self.ledger.release(jobid, blocks_of(parts), final)

    def shrink(self, ranks):
        self.pool.remove(Idset.parse(ranks))
        self.ledger.count_out(Idset.parse(ranks))


@pytest.fixture
def ledger_pass():
    made = LedgerPass(make_r("0-3", 4))
    yield made
    made.ledger.check()


def test_double_grant_is_refused(ledger_pass):
    first, second = ledger_pass.wait(1, request_of(cores=4)), ledger_pass.wait(2, request_of(cores=4))
    assert first.fit == second.fit  # both were placed before either was committed
    assert ledger_pass.commit(first)
    assert not ledger_pass.commit(second)
    assert not ledger_pass.commit(first)
    assert 1 not in ledger_pass.queue
    assert 2 in ledger_pass.queue
    assert [holding.jobid for holding in ledger_pass.ledger.holders(Idset.parse("0-3"))] == [1]


@pytest.mark.parametrize("event", ["canceled", "down", "shrunk"])
def test_stale_decisions_are_refused(ledger_pass, event):
    start = ledger_pass.wait(1, request_of())
    if event == "canceled":
        ledger_pass.queue.remove(1)
    elif event == "down":
        ledger_pass.pool.set_down(Idset.parse("0"))
    else:
        ledger_pass.pool.remove(Idset.parse("0"))
    assert not ledger_pass.commit(start)
    assert len(ledger_pass.ledger) == 0


def test_a_fit_of_another_request_is_refused(ledger_pass):
    small, large = ledger_pass.wait(1, request_of()), ledger_pass.wait(2, request_of(cores=4))
    assert not ledger_pass.commit(Start(1, large.fit))
    assert not ledger_pass.commit(Start(2, Fits(large.fit.shape, (), 1)))
    assert not ledger_pass.commit(Start(2, Fits(large.fit.shape, large.fit.blocks * 2, 1)))
    assert ledger_pass.commit(small)


def test_partial_then_final_free(ledger_pass):
    ledger_pass.commit(ledger_pass.wait(1, request_of(nodes=3, cores=2)))
    assert ledger_pass.free(1, [Part(0, 3, 0), Part(2, 3, 0)]) == []
    ledger_pass.ledger.check()
    assert 1 in ledger_pass.ledger
    assert ledger_pass.free(1, [Part(1, 3, 0)], final=True) == []
    assert 1 not in ledger_pass.ledger
    assert all(ledger_pass.pool[rank].idle for rank in ledger_pass.pool.ranks)


def test_a_shrunk_rank_is_emptied_by_its_last_holder(ledger_pass):
    for jobid in (1, 2):
        ledger_pass.commit(ledger_pass.wait(jobid, request_of(cores=2)))
    ledger_pass.shrink("0-1")
    ledger_pass.ledger.check()
    assert (str(ledger_pass.ledger.held(Idset.parse("0-3"))), ledger_pass.ledger.foreign()) == ("0", 2)
    assert ledger_pass.free(1, [Part(0, 0b0011, 0)], final=True) == []
    assert ledger_pass.ledger.release_all(2) == [0]
    with pytest.raises(RemoteProtocolError, match="freed before"):
        ledger_pass.ledger.release_all(2)


def test_a_job_on_many_targets_frees_them_in_any_order():
    ledger_pass = LedgerPass(make_r("0-1300", 4))
    ledger_pass.commit(ledger_pass.wait(1, request_of(cores=1)))
    ledger_pass.commit(ledger_pass.wait(2, request_of(nodes=1300, cores=4)))
    assert len(ledger_pass.ledger.holders(Idset.parse("1300"))) == 1
    held = [Part(rank, 0b1111, 0) for rank in range(1, 1301)]
    ledger_pass.free(2, held[500:700])
    ledger_pass.ledger.check()
    with pytest.raises(RemoteProtocolError, match="ranks 501-502"):
        ledger_pass.free(2, held[499:502])
    ledger_pass.free(2, held[:500])
    ledger_pass.free(2, held[700:], final=True)
    ledger_pass.ledger.check()
    assert str(ledger_pass.ledger.held(ledger_pass.pool.ranks)) == "0"


BAD_FREES = [
    (1, [Part(3, 3, 0)], False, "ranks 3"),  # a foreign rank
    (1, [Part(0, 3, 0), Part(3, 3, 0)], False, "ranks 3"),  # one of two
    (1, [Part(0, 1, 0)], False, "ranks 0"),  # not the whole of it
    (1, [Part(0, 7, 0)], False, "ranks 0"),  # more than it holds
    (1, [Part(0, 3, 0)], True, "ranks 1 would stay"),  # final, and something left
    (7, [Part(0, 3, 0)], True, "job 7: it holds no resources"),  # an unknown job
]


@pytest.mark.parametrize(("jobid", "parts", "final", "words"), BAD_FREES)
def test_bad_frees_change_nothing(ledger_pass, jobid, parts, final, words):
    ledger_pass.commit(ledger_pass.wait(1, request_of(nodes=2, cores=2)))
    with pytest.raises(RemoteProtocolError, match=words):
        ledger_pass.free(jobid, parts, final)
    ledger_pass.ledger.check()
    assert str(ledger_pass.ledger.held(ledger_pass.pool.ranks)) == "0-1"
    ledger_pass.free(1, [Part(1, 3, 0), Part(0, 3, 0)], final=True)


def test_double_free(ledger_pass):
    ledger_pass.commit(ledger_pass.wait(1, request_of(nodes=2, cores=2)))
    ledger_pass.free(1, [Part(0, 3, 0)])
    with pytest.raises(RemoteProtocolError, match="ranks 0"):
        ledger_pass.free(1, [Part(0, 3, 0)])
    ledger_pass.free(1, [Part(1, 3, 0)], final=True)
    with pytest.raises(RemoteProtocolError, match="freed before"):
        ledger_pass.free(1, [Part(1, 3, 0)], final=True)
    assert ledger_pass.free(1, [], final=True) == []  # a final mark without ranks is of no matter


def test_hello_adopts_and_foreign_parts_are_not_counted(ledger_pass):
    ledger_pass.adopt(1, Part(3, 0b11, 0), Part(9, 0b11, 0))
    assert ledger_pass.ledger.foreign() == 1
    assert ledger_pass.pool[3].cores == 0b1100
    ledger_pass.ledger.check()
    assert ledger_pass.free(1, [Part(9, 0b11, 0)]) == [9]
    assert ledger_pass.ledger.foreign() == 0
    assert ledger_pass.free(1, [Part(3, 0b11, 0)], final=True) == []


def test_hello_finds_jobs_on_targets_that_are_down(ledger_pass):
    ledger_pass.pool.set_down(Idset.parse("1-2"))
    ledger_pass.adopt(1, Part(1, 0b1111, 0), Part(2, 0b0011, 0))
    ledger_pass.adopt(2, Part(2, 0b0100, 0))
    with pytest.raises(RemoteProtocolError, match="jobs 1 and 3 both hold rank 1"):
        ledger_pass.adopt(3, Part(1, 0b0100, 0))
    ledger_pass.ledger.check()
    ledger_pass.pool.set_up(Idset.parse("1-2"))
    assert (ledger_pass.pool[1].cores, ledger_pass.pool[2].cores) == (0, 0b1000)
    ledger_pass.ledger.release_all(1)
    assert ledger_pass.pool[1].idle


def test_cores_that_a_target_does_not_have_are_foreign(ledger_pass):
    ledger_pass.adopt(1, Part(0, 0b110000, 1))
    assert ledger_pass.pool[0].idle
    ledger_pass.free(1, [Part(0, 0b110000, 1)], final=True)


def test_hello_that_holds_twice_is_refused(ledger_pass):
    ledger_pass.adopt(1, Part(0, 0b11, 0), Part(9, 1, 0))
    for part in (Part(0, 0b10, 0), Part(9, 1, 0)):
        with pytest.raises(RemoteProtocolError, match=f"jobs 1 and 2 both hold rank {part.rank}"):
            ledger_pass.adopt(2, Part(1, 1, 0), part)
    with pytest.raises(RemoteProtocolError, match="twice"):
        ledger_pass.adopt(1, Part(1, 1, 0))
    assert ledger_pass.pool[1].idle


def test_foreign_holdings_count_once_their_target_is_grown(ledger_pass):
    ledger_pass.adopt(1, Part(9, 0b11, 0))
    nine = make_r("9", 4)
    ledger_pass.pool.add(nine, nine.ranks)
    ledger_pass.ledger.count_in(nine.ranks)
    assert ledger_pass.pool[9].cores == 0b1100
    ledger_pass.ledger.check()
    ledger_pass.free(1, [Part(9, 0b11, 0)], final=True)
    assert ledger_pass.pool[9].idle


@pytest.mark.plain_only("inherits from Pool")
def test_check_catches_a_skipped_free():
    class Forgetful(Pool):
        def give(self, blocks):
            super().give(blocks_of(part for part in parts_in(blocks) if part.rank != 1))

    ledger_pass = LedgerPass(make_r("0-3", 4))
    pool = Forgetful()
    pool.add(make_r("0-3", 4), Idset.parse("0-3"))
    ledger_pass.pool, ledger_pass.ledger = pool, Ledger([pool])
    ledger_pass.commit(ledger_pass.wait(1, request_of(nodes=2)))
    ledger_pass.free(1, [Part(0, 1, 0)])
    ledger_pass.ledger.check()
    ledger_pass.free(1, [Part(1, 1, 0)], final=True)
    with pytest.raises(AssertionError, match="rank 1"):
        ledger_pass.ledger.check()


def test_check_catches_a_core_held_twice():
    ledger_pass = LedgerPass(make_r("0-3", 4))
    ledger_pass.commit(ledger_pass.wait(1, request_of()))
    ledger_pass.commit(ledger_pass.wait(2, request_of()))
    (one, two) = ledger_pass.ledger
    two.blocks = one.blocks
    with pytest.raises(AssertionError, match="held twice"):
        ledger_pass.ledger.check()
    assert ledger_pass.ledger.holders(EMPTY) == []

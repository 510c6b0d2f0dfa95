"""Our pool as Flux's schedulers use it: what is given is gone, copies leave no trace, wrong frees are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue
from fluxsched.flux.pool import JobPool, PoolErrors

R = {
    "version": 1,
    "execution": {
        "R_lite": [{"rank": "0-1", "children": {"core": "0-1"}}],
        "starttime": 0.0,
        "expiration": 0.0,
        "nodelist": ["n[0-1]"],
    },
}


class NotNow(Exception):
    """Insufficient."""


class Never(Exception):
    """Infeasible."""


class Rest:
    """What Flux hands to `free`."""

    def __init__(self, rank: str, core: str) -> None:
        self.R = {"version": 1, "execution": {"R_lite": [{"rank": rank, "children": {"core": core}}]}}

    def to_dict(self) -> dict:
        return self.R

    def dumps(self) -> str:
        return ResourceSet.parse(self.R).summary()


@pytest.fixture
def pool() -> Iterator[JobPool]:
    pool = JobPool(R, PoolErrors(NotNow, Never), lambda: 1000.0)
    yield pool
    pool.close()
    pool.ledger.check()


def wanted(pool: JobPool, slots: int, duration: float = 60):
    task = {"command": ["true"], "slot": "t", "count": {"per_slot": 1}}
    resources = [{"type": "slot", "count": slots, "label": "t", "with": [{"type": "core", "count": 1}]}]
    system = {"duration": duration}
    spec = {"version": 1, "resources": resources, "tasks": [task], "attributes": {"system": system}}
    return pool.parse_resource_request(spec)


def test_what_is_given_is_gone_until_it_is_freed(pool):
    got = pool.alloc(1, wanted(pool, 3))
    got.set_starttime(1000.0)
    got.set_expiration(1060.0)
    assert got.dumps() == "rank0/core[0-1] rank1/core0"
    assert got.to_dict()["execution"]["nslots"] == 3
    assert got.to_dict()["execution"]["expiration"] == 1060.0
    assert pool.job_end_times() == [(1, 1060.0)]
    with pytest.raises(NotNow):
        pool.alloc(2, wanted(pool, 2))
    with pytest.raises(Never, match="unsatisfiable"):
        pool.alloc(2, wanted(pool, 5))
    pool.free(1, Rest("1", "0"))
    pool.alloc(2, wanted(pool, 2))
    pool.free(1, Rest("0", "0-1"), final=True)
    assert pool.job_end_times() == [(2, 1060.0)]


@pytest.mark.parametrize("rest", [Rest("1", "1"), Rest("0", "0")])
def test_a_wrong_free_changes_nothing(pool, rest):
    pool.alloc(1, wanted(pool, 3))
    before = pool.generation, pool.allocated()
    with pytest.raises(InvalidValue, match="job 1"):
        pool.free(1, rest)
    assert (pool.generation, pool.allocated()) == before


def test_a_final_free_returns_what_was_granted_twice(pool):
    """peers: burst. The job manager knows of the first grant only."""
    pool.alloc(1, wanted(pool, 2))
    pool.alloc(1, wanted(pool, 1))
    with pytest.raises(NotNow):
        pool.alloc(2, wanted(pool, 2))
    pool.free(1, Rest("0", "0-1"), final=True)
    assert pool.job_end_times() == []
    pool.alloc(2, wanted(pool, 4))


def test_a_copy_leaves_no_trace(pool):
    pool.alloc(1, wanted(pool, 3))
    copy = pool.copy()
    with pytest.raises(NotNow):
        copy.alloc(2, wanted(pool, 4))
    copy.free(1)
    assert copy.alloc(2, wanted(pool, 4)).dumps() == "rank[0-1]/core[0-1]"
    other = copy.copy()
    other.free(2)
    other.alloc(3, wanted(pool, 1))
    with pytest.raises(NotNow):
        copy.alloc(4, wanted(pool, 1))
    assert [jobid for jobid, _ in pool.job_end_times()] == [1]
    assert pool.alloc(5, wanted(pool, 1)).dumps() == "rank1/core1"


def test_a_copy_of_an_older_state_has_no_room(pool):
    copy = pool.copy()
    pool.alloc(1, wanted(pool, 1))
    with pytest.raises(NotNow, match="changed"):
        copy.alloc(2, wanted(pool, 1))
    copy.free(1)
    assert pool.allocated()["execution"]["R_lite"]


def test_targets_go_down_up_and_away(pool):
    pool.mark_down("all")
    with pytest.raises(NotNow):
        pool.alloc(1, wanted(pool, 1))
    assert pool.down()["execution"]["R_lite"][0]["rank"] == "0-1"
    pool.mark_up("1")
    assert pool.alloc(1, wanted(pool, 1)).dumps() == "rank1/core0"
    pool.remove_ranks("0")
    with pytest.raises(Never):
        pool.check_feasibility(wanted(pool, 3))
    assert pool.dumps() == "rank1/core[0-1]"


def test_a_running_job_is_taken_over_or_refused(pool):
    pool.register_alloc(7, Rest("0", "0-1"))
    assert pool.alloc(8, wanted(pool, 2)).dumps() == "rank1/core[0-1]"
    with pytest.raises(InvalidValue, match="not among"):
        pool.register_alloc(9, Rest("5", "0"))
    with pytest.raises(InvalidValue, match="jobs 7 and 10 both hold rank 0"):
        pool.register_alloc(10, Rest("0", "1"))


def test_a_running_job_of_which_targets_are_removed_frees_all_of_it(pool):
    pool.alloc(1, wanted(pool, 4))
    pool.remove_ranks("0")
    assert pool.ledger.foreign() == 1
    pool.free(1, Rest("0-1", "0-1"), final=True)
    assert pool.job_end_times() == []
    assert pool.alloc(2, wanted(pool, 2)).dumps() == "rank1/core[0-1]"

"""What is remembered is bounded: with limits lowered all goes on as before, and nothing grows with what has gone."""

import pytest

from fluxsched.core.topology import Topology
from fluxsched.sched.decisions import children
from tests.sched.site import Bench, limit, lowered, make_r, size_of, spec

REMEMBERED = dict.fromkeys(
    ("SHAPES_MAX", "VERDICTS_MAX", "CHOICES_MAX", "PREPARED_MAX", "FITTING_MAX", "ROOMS_MAX", "GAINS_MAX", "NEEDS_MAX",
     "ALLOWED_MAX", "SCALES_MAX"), 2,
) | {"GRANTS_CACHED_MAX": 0}  # fmt: skip
JOBS = 16
LEAVES = Topology.parse([{"name": "a", "hosts": "n[0-3]"}, {"name": "b", "hosts": "n[4-7]"}])


def jobs_come_and_go(bench, turn):
    """Jobs of as many shapes that no other turn has; which start, and where."""
    found = []
    bench.submit(1000 * turn, nodes=8, exclusive=True, duration=50.0)
    found.append(bench.starts())
    for at in range(1, JOBS + 1):
        wanted = {"nodes": 1 + at % 8, "cores": 1 + at % 4, "duration": 10.0 + turn}
        apart = [{"ranks": [str(at % 8)]}, {"ranks": [f"{at % 4}-{4 + turn % 4}"]}, {"hostlist": [f"n[0-{turn % 8}]"]}]
        bench.submit(1000 * turn + at, spec(constraint={"not": [{"and": apart}]}, **wanted))
        found.append(bench.starts())
    while bench.granted:
        bench.now_s += 100.0
        bench.free(next(iter(bench.granted)))
        found.append(bench.starts())
    return found


@pytest.mark.plain_only("limits are compiled in")
@pytest.mark.parametrize("policy", ["firstfit", "easy", "conservative", "fair"])
def test_with_less_remembered_jobs_start_as_before_and_nothing_grows(policy):
    def run():
        bench, found, sizes = Bench(policy), [], []
        bench.grow(make_r("0-7").with_topology(LEAVES))
        for turn in range(1, 9):
            found += jobs_come_and_go(bench, turn)
            sizes.append(size_of(bench.scheduler))
        return found, sizes

    as_before, _ = run()
    with lowered(**REMEMBERED):
        found, sizes = run()
    assert found == as_before
    assert max(sizes[4:]) < max(sizes[:4]) + JOBS, "something grows with what has come and gone"


def test_children_of_grants_are_remembered_up_to_a_limit():
    assert children.cache_parameters()["maxsize"] == limit("CHILDREN_CACHED_MAX")

"""Which jobs of a node go for an ask, against all subsets of them."""

from copy import deepcopy
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.sched.policies.tree_victims import Candidate, fewest, more

KINDS = ("memory", "vcore")


def best_of_all(candidates, lacking):
    """Job ids of the best subset: by the worst kind of victim, then how many, then the last in order, and so on."""
    best = None
    for count in range(1, len(candidates) + 1):
        for chosen in combinations(range(len(candidates)), count):
            jobs = [candidates[at] for at in chosen]
            if not all(
                sum(dict(job.amounts).get(kind, 0) for job in jobs) >= amount for kind, amount in lacking.items()
            ):
                continue
            lost = {}
            left = {id(queue): queue for job in jobs for queue in job.queues}
            for job in jobs:
                for queue in job.queues:
                    for kind, amount in job.amounts:
                        mine = lost.setdefault(id(queue), {})
                        mine[kind] = mine.get(kind, 0) + amount
            if any(mine.get(kind, 0) > max(left[at][kind], 0) for at, mine in lost.items() for kind in left[at]):
                continue
            key = max(job.order[:2] for job in jobs), count, sorted(chosen, reverse=True)
            if best is None or key < best[0]:
                best = key, [job.jobid for job in jobs]
    return None if best is None else best[1]


@st.composite
def nodes(draw):
    amount = st.integers(0, 4)
    queues = [
        {kind: draw(st.integers(-1, 8)) for kind in KINDS if draw(st.booleans())}
        for _ in range(draw(st.integers(1, 3)))
    ]
    candidates = []
    for jobid in range(draw(st.integers(0, 8))):
        amounts = tuple((kind, each) for kind in KINDS if (each := draw(amount)))
        mine = tuple(queue for queue in queues if draw(st.booleans()))
        order = draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 2)), -float(jobid), -jobid
        candidates.append(Candidate(order, jobid, amounts, amounts, mine))
    lacking = {kind: each for kind in KINDS if (each := draw(st.integers(0, 9)))}
    return sorted(candidates, key=lambda each: each.order), lacking or {"vcore": 1}


@settings(max_examples=150)
@given(nodes())
def test_as_few_go_as_will_do_and_the_first_in_order(node):
    candidates, lacking = node
    before = deepcopy([each.queues for each in candidates])
    chosen = fewest(candidates, lacking)
    assert (None if chosen is None else [each.jobid for each in chosen]) == best_of_all(candidates, lacking)
    further = more(candidates, chosen or [])
    assert [each.queues for each in candidates] == before, "a trial has left something behind"
    for queue in {id(used): used for each in candidates for used in each.queues}.values():
        for kind, above in queue.items():
            gone = [each for each in (*(chosen or []), *further) if any(queue is mine for mine in each.queues)]
            assert sum(dict(each.amounts).get(kind, 0) for each in gone) <= max(above, 0)


def of_sizes(*sizes):
    found = []
    for at, size in enumerate(sizes):
        amounts = (("vcore", size),)
        found.append(Candidate((False, False, 0, -float(at), -at), at, amounts, amounts, ()))
    return found


def test_a_node_with_too_many_combinations_still_loses_no_job_in_vain():
    sizes = [2 * at + 3 for at in range(30)] + [1]
    lacking = {"vcore": sum(sizes[::2])}
    chosen = fewest(of_sizes(*sizes), lacking)
    assert chosen is not None
    freed = sum(dict(each.amounts)["vcore"] for each in chosen)
    assert freed >= lacking["vcore"]
    assert all(freed - dict(each.amounts)["vcore"] < lacking["vcore"] for each in chosen)


def test_steps_max_ends_the_search_for_the_fewest(lower):
    candidates = of_sizes(1, 1, 1, 1, 4)
    assert [each.jobid for each in fewest(candidates, {"vcore": 4}) or ()] == [4]
    lower(STEPS_MAX=1)
    assert [each.jobid for each in fewest(candidates, {"vcore": 4}) or ()] == [0, 1, 2, 3]

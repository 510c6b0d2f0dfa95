"""Preemption of the tree on small sites: each law by itself, and all of them against a judge."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.sched.decisions import Wake
from tests.generated.share import examples
from tests.yunikorn.tree.preemption_judge import KINDS, NOW_S, Job, Site, Told, above, best_of_all, decided, used

PATHS = ("root.a", "root.b.x", "root.b.y", "root.c.x")


@st.composite
def sites(draw):
    """Nodes nearly full, and an ask whose queues have mostly less than they are guaranteed."""
    rare, asking = st.integers(0, 9), draw(st.sampled_from(PATHS))
    queues = {}
    for path in ("root", "root.a", "root.b", "root.b.x", "root.b.y", "root.c", "root.c.x"):
        least, most = (4, 12) if path in above(asking) else (0, 3)
        guaranteed = {kind: draw(st.integers(least, most)) for kind in KINDS if draw(rare)}
        maximum = {kind: draw(st.integers(4, 14)) for kind in KINDS if not draw(rare)}
        preemption = {0: "disabled", 1: "fence"}.get(draw(st.integers(0, 19)), "default")
        offset = draw(st.integers(-1, 1)) if not draw(rare) else 0
        queues[path] = Told({} if path == "root" else guaranteed, maximum, preemption, offset, not draw(rare))
    nodes = [{kind: draw(st.integers(3, 6)) for kind in KINDS} for _ in range(draw(st.integers(1, 2)))]
    left = [dict(node) for node in nodes]
    jobs = []
    for jobid in range(1, draw(st.integers(4, 11))):
        rank = draw(st.integers(0, len(nodes) - 1))
        mine = {kind: each for kind in KINDS if (each := min(draw(st.integers(0, 4)), left[rank][kind]))}
        if mine:
            left[rank] = {kind: left[rank][kind] - mine.get(kind, 0) for kind in KINDS}
            leaf, kind_of = draw(st.sampled_from([*PATHS, *[path for path in PATHS if path != asking]])), draw(rare)
            jobs.append(
                Job(jobid, leaf, f"{leaf}{draw(st.integers(0, 1))}", mine, draw(st.integers(0, 1)), rank,
                    float(draw(st.integers(0, 3))), kind_of < 2, kind_of in (1, 2, 3))
            )  # fmt: skip
    asked = {"vcore": draw(st.integers(1, 4)), "memory": draw(st.integers(0, 4))}
    asked = {kind: each for kind, each in asked.items() if each}
    return Site(queues, nodes, jobs, Job(99, asking, f"{asking}0", asked, draw(st.integers(0, 2))))


def can_start(site):
    """Then nobody asks for preemption."""
    for path in above(site.ask.leaf):
        for kind, most in site.queues[path].maximum.items():
            asked = site.ask.amounts.get(kind, 0)
            if asked and used(site.jobs, path).get(kind, 0) + asked > most:
                return False
    for rank, node in enumerate(site.nodes):
        there = [job for job in site.jobs if job.rank == rank]
        if all(
            node.get(kind, 0) - sum(job.amounts.get(kind, 0) for job in there) >= most
            for kind, most in site.ask.amounts.items()
        ):
            return True
    return False


@settings(max_examples=examples(300))
@given(sites())
def test_those_go_whom_the_judge_would_choose(site):
    if not can_start(site):
        assert decided(site)[0] == best_of_all(site)


# ---- each law by itself


def site(**other):
    """A node of 6, full of three jobs of 2 in `root.b.x`; `root.a` is guaranteed 4 and asks for 2: the newest goes."""
    queues = {path: Told() for path in ("root", "root.a", "root.b", "root.b.x", "root.b.y")}
    queues["root.a"] = Told({"vcore": 4})
    queues |= other.pop("queues", {})
    jobs = [Job(at, "root.b.x", "theirs", {"vcore": 2}, 0, 0, float(at)) for at in (1, 2, 3)]
    there = Site(queues, [{"vcore": 6, "memory": 9}], jobs, Job(99, "root.a", "mine", {"vcore": 2}))
    return replace(there, **other)


def jobs(**of):
    """The three jobs, each with something else about it."""
    given = {int(key[1:]): value for key, value in of.items()}
    return [replace(job, **given.get(job.jobid, {})) for job in site().jobs]


FENCED, DISABLED = Told(preemption="fence"), Told(preemption="disabled")
ASK, BIG = site().ask, replace(site().ask, amounts={"vcore": 4})
STAYS, NINE = {"stays": True}, {"priority": 9}

LAWS = {
    "the newest goes": (site(), {3}),
    "it must allow it": (site(may_preempt=False), set()),
    "as few as will do": (site(ask=BIG), {2, 3}),
    "fewer rather than newer": (
        site(ask=replace(ASK, amounts={"vcore": 3}), jobs=jobs(j1={"amounts": {"vcore": 3}}), nodes=[{"vcore": 7}]), {1}
    ),
    "none in vain": (site(ask=BIG, queues={"root.b": Told({"vcore": 3})}), set()),
    "it stays within its guarantee": (site(ask=replace(ASK, amounts={"vcore": 5})), set()),
    "no guarantee": (site(queues={"root.a": Told()}), set()),
    "what is lacking is not guaranteed": (site(queues={"root.a": Told({"memory": 4})}), set()),
    "a parent may have the guarantee": (
        site(queues={"root.a": Told(), "root.p": Told({"vcore": 4}), "root.p.x": Told()},
             ask=replace(ASK, leaf="root.p.x")), {3},
    ),
    "but gains nothing from its own": (
        site(queues={"root.b": Told({"vcore": 9})}, ask=replace(ASK, leaf="root.b.y")), set()
    ),
    "none falls below its guarantee": (site(queues={"root.b.x": Told({"vcore": 5})}), set()),
    "nor do those above": (site(queues={"root.b": Told({"vcore": 5})}), set()),
    "queues that hold both do not count": (
        site(queues={"root.b": Told({"vcore": 6}), "root.b.y": Told({"vcore": 2})}, ask=replace(ASK, leaf="root.b.y")),
        {3},
    ),
    "not of higher priority": (site(jobs=jobs(j3={"priority": 1}, j2={"priority": -1})), {2}),
    "equal priority will do": (site(jobs=jobs(j1={"priority": -1}, j2={"priority": -1})), {2}),
    "nor by the offset of its queue": (site(queues={"root.b": Told(offset=1)}), set()),
    "a fence hides priorities": (
        site(jobs=jobs(j1=NINE, j2=NINE, j3=NINE), queues={"root.b": Told(hides_priority=True)}), {3}
    ),
    "not out of a fence": (
        site(queues={"root.f": FENCED, "root.f.a": Told({"vcore": 4})}, ask=replace(ASK, leaf="root.f.a")), set()
    ),
    "but into one": (site(queues={"root.b": FENCED}), {3}),
    "not where it is disabled": (site(queues={"root.b": DISABLED}), set()),
    "those that allow it first": (site(jobs=jobs(j3=STAYS)), {2}),
    "the others last, not never": (
        site(jobs=jobs(j1=STAYS, j2=STAYS, j3=STAYS), ask=BIG),
        {2, 3},
    ),
    "rather two that allow it": (
        site(jobs=jobs(j1={**STAYS, "amounts": {"vcore": 4}}), nodes=[{"vcore": 8}], ask=BIG),
        {2, 3},
    ),
    "not the originator": (site(jobs=jobs(j3={"originator": True})), {2}),
    "the node where fewest go": (
        site(jobs=jobs(j3={"rank": 1, "amounts": {"vcore": 4}}), nodes=[{"vcore": 4}] * 2, ask=BIG), {3}
    ),
    "room under the maximum of a parent": (
        site(queues={"root.b": Told({}, {"vcore": 6}), "root.b.y": Told({"vcore": 2})},
             ask=replace(ASK, leaf="root.b.y"), jobs=[*jobs(), Job(4, "root.a", "other", {"vcore": 2}, 0, 0, 9.0)],
             nodes=[{"vcore": 8}]), {3},
    ),
    "not over its own maximum": (site(queues={"root.a": Told({"vcore": 4}, {"vcore": 1})}), set()),
}  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
def test_a_law(law):
    there, gone = LAWS[law]
    assert decided(there)[0] == gone == best_of_all(there)


def test_it_waits_for_the_delay_of_its_leaf():
    gone, rank, others = decided(site(asked_s=NOW_S - 29.0))
    assert (gone, rank, others) == (set(), None, [Wake(NOW_S + 1.0)])
    assert decided(site(asked_s=NOW_S - 30.0))[:2] == ({3}, 0)


def test_a_judge_is_asked_about_the_best_node_first_and_has_more_go():
    another = Job(4, "root.b.y", "another", {"vcore": 2}, 0, 1, 9.0)
    there = site(nodes=[{"vcore": 6}, {"vcore": 2}], jobs=[*jobs(), another])
    asked = []

    def judge(job, rank, line, start):
        asked.append((rank, line, start))
        return None if rank == 1 else 1

    assert decided(there, judge) == ({3, 2}, 0, [])
    assert asked == [(1, [4], 0), (0, [3, 2, 1], 0)]


def test_looked_at_max_bounds_the_jobs_that_are_looked_at_for_one_ask(lower):
    there = site(jobs=[Job(9, "root.b.y", "another", {"vcore": 2}, 0, 0, 9.0), *jobs()], nodes=[{"vcore": 8}])
    assert decided(there)[0] == {9}
    lower(LOOKED_AT_MAX=1)
    assert decided(there)[0] == {3}, "an application is looked at whole"


def test_a_node_with_too_many_combinations_still_loses_no_job_in_vain():
    sizes = [1, *[2 * at + 3 for at in range(30)]]
    lacking = sum(sizes[1::2])
    theirs = [Job(at, "root.b.x", "theirs", {"vcore": size}, 0, 0, float(-at)) for at, size in enumerate(sizes)]
    there = site(jobs=theirs, nodes=[{"vcore": sum(sizes)}], ask=replace(ASK, amounts={"vcore": lacking}),
                 queues={"root.a": Told({"vcore": lacking})})  # fmt: skip
    gone = decided(there)[0]
    freed = sum(sizes[at] for at in gone)
    assert freed >= lacking
    assert all(freed - sizes[at] < lacking for at in gone)


def test_steps_max_ends_the_search_for_the_fewest(lower):
    small = [Job(at, "root.b.x", "theirs", {"vcore": 1}, 0, 0, float(10 - at)) for at in range(4)]
    there = site(jobs=[*small, Job(4, "root.b.x", "theirs", {"vcore": 4}, 0, 0, 0.0)], nodes=[{"vcore": 8}], ask=BIG)
    assert decided(there)[0] == {4} == best_of_all(there)
    lower(STEPS_MAX=1)
    assert decided(there)[0] == {0, 1, 2, 3}


def test_offers_max_bounds_the_nodes_that_a_judge_is_asked_about(lower):
    asked = []

    def judge(job, rank, line, start):
        asked.append(rank)
        return

    there = site(jobs=jobs(j2={"rank": 1}, j3={"rank": 2}), nodes=[{"vcore": 2}] * 3)
    lower(OFFERS_MAX=2)
    assert decided(there, judge)[0] == set()
    assert asked == [2, 1]

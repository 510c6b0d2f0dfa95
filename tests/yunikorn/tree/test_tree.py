"""The policy `tree`: whose ask comes next, and what holds it back."""

from fluxsched.yunikorn.tree.queues import AskTerms
from tests.sched.site import limit

from .site import TreeSite, amounts, leaf, parent

LOOK_AGAIN_S, RESERVED_MAX_S, RESERVE_AFTER_S, SEARCHES_A_PASS = limit(
    "LOOK_AGAIN_S", "RESERVED_MAX_S", "RESERVE_AFTER_S", "SEARCHES_A_PASS"
)


def test_a_maximum_holds():
    """2 nodes of 100, a maximum of 150: 2x10; then 2x50, 2x100."""
    site = TreeSite(parent("root", leaf("default", maximum=amounts(vcore=150))))
    site.node(amounts(vcore=100)), site.node(amounts(vcore=100))
    one = site.application("one")
    site.ask(one, amounts(vcore=10), times=2)
    assert site.run() == [1, 2]
    assert one.usage == amounts(vcore=20)
    site.ask(one, amounts(vcore=50), times=2)
    site.ask(one, amounts(vcore=100), times=2)
    assert site.run() == [3, 4]
    assert site.tree.root.usage == amounts(vcore=120)
    lacking = site.scheduler.report.why_waiting(5)
    assert lacking is not None
    assert lacking.kind == "queue"
    assert "120 vcore of at most 150 vcore used, 100 vcore more requested" in lacking.text


def test_two_leaves_share_alike():
    site = TreeSite(parent("root", leaf("a"), leaf("b")))
    site.node(amounts(vcore=100)), site.node(amounts(vcore=100))
    first, second = site.application("one", "root.a"), site.application("two", "root.b")
    mine = site.ask(first, amounts(vcore=10), times=20)
    site.ask(second, amounts(vcore=10), times=20)
    granted = site.run()
    assert len(granted) == 20
    assert len(set(granted) & set(mine)) == 10


def test_shares_come_before_priorities_where_these_are_disabled():
    """usage/guaranteed .6 .67 .5 .5, the last of higher priority: 4th, 3rd, 1st, 2nd."""
    guaranteed = {"a": 500, "b": 300, "c": 200, "d": 200}
    used = {"a": 300, "b": 200, "c": 100, "d": 100}
    queues = [leaf(name, guaranteed=amounts(vcore=amount)) for name, amount in guaranteed.items()]
    site = TreeSite(parent("root", *queues, by_priority=False))
    rank = site.node(amounts(vcore=1000))
    for at, name in enumerate(used):
        application = site.application(name, f"root.{name}")
        site.scheduler.adopt(1000 + at, rank, amounts(vcore=used[name]), AskTerms(application), 0.0)
        site.ask(application, amounts(vcore=1), priority=2 if name == "d" else 1)
    assert site.run() == [4, 3, 1, 2]


def test_an_ask_that_fits_nowhere_has_a_node_kept_for_it():
    site = TreeSite(parent("root", leaf("default")))
    for _ in range(2):
        site.node(amounts(vcore=10))
    one = site.application("one")
    small = site.ask(one, amounts(vcore=4), times=4)
    assert site.run() == small
    (large,) = site.ask(one, amounts(vcore=8))
    assert site.run(until_s=1.0) == []
    site.free(small[0])  # on the first node, where 6 are free then
    assert site.run() == []
    assert site.run(until_s=RESERVE_AFTER_S) == []
    lacking = site.scheduler.report.why_waiting(large)
    assert lacking is not None
    assert lacking.kind == "reserved"
    others = site.ask(one, amounts(vcore=2), times=2)
    assert site.run() == others[:1], "none goes to the node that is kept"
    site.free(small[2] if site.ranks[small[2]] == site.ranks[small[0]] else small[1])
    assert site.run() == [large, others[1]], "what is left of the node is for others again"
    assert site.ranks[large] == site.ranks[small[0]]


def test_a_node_is_not_kept_for_ever():
    site = TreeSite(parent("root", leaf("default")))
    site.node(amounts(vcore=10)), site.node(amounts(vcore=10))
    one = site.application("one")
    filling = site.ask(one, amounts(vcore=6), times=2)
    assert site.run() == filling
    site.ask(one, amounts(vcore=5))
    site.run(until_s=RESERVE_AFTER_S)
    first, last = site.ask(one, amounts(vcore=3), times=2)
    assert site.run(until_s=RESERVE_AFTER_S + RESERVED_MAX_S - 1) == [first]
    assert site.run(until_s=RESERVE_AFTER_S + RESERVED_MAX_S + 1) == [last]


def test_a_pass_searches_nodes_for_few_asks_and_the_next_one_for_others():
    site = TreeSite(parent("root", leaf("default")))
    for _ in range(SEARCHES_A_PASS + 2):
        site.node(amounts(vcore=100))
    one = site.application("one")
    site.ask(one, amounts(vcore=51), times=SEARCHES_A_PASS + 2)
    site.run()
    for more in range(SEARCHES_A_PASS + 2):
        site.ask(one, amounts(vcore=50 + more))
    site.run(until_s=RESERVE_AFTER_S)
    reserved = site.scheduler.group("default").reserved.by_job
    assert len(reserved) == SEARCHES_A_PASS
    site.run(until_s=RESERVE_AFTER_S + 2 * LOOK_AGAIN_S)
    assert len(reserved) == SEARCHES_A_PASS + 2


def test_lines_a_pass_bounds_the_asks_that_are_looked_at_for_a_node(lower):
    lower(LINES_A_PASS=2)
    site = TreeSite(parent("root", leaf("default")))
    for _ in range(3):
        site.node(amounts(vcore=10))
    one = site.application("one")
    site.ask(one, amounts(vcore=6), times=3)
    site.run()
    for more in range(3):
        site.ask(one, amounts(vcore=5 + more))
    site.run(until_s=RESERVE_AFTER_S)
    assert len(site.scheduler.group("default").reserved.by_job) == 2

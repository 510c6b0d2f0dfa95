"""Preemption of the tree in the engine: who is told to go, which node is kept, and what holds at every moment."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fluxsched.sched.decisions import Raise
from fluxsched.yunikorn.tree.queues import AskOptions
from tests.generated.share import examples
from tests.sched.site import holding, limit
from tests.yunikorn.tree.site import TreeSite, amounts, leaf, parent

QUOTA_RATE = limit("QUOTA_RATE")

MAY = AskOptions(may_preempt=True)


class PreemptingSite(TreeSite):
    """Notes who is told to go, for whom."""

    def __init__(self, *children, delay_s=0.0):
        super().__init__(parent("root", *children), preemption="yes")
        self.going = {}

    def do(self, effects):
        kept = []
        for effect in effects:
            if isinstance(effect, Raise):
                assert effect.jobid not in self.going, "a demand is made once"
                assert effect.for_jobid is not None
                self.going[effect.jobid] = effect.for_jobid
            kept.append(effect)
        return super().do(kept)

    def confirm(self, *ids):
        for id in ids:
            del self.going[id]
            self.free(id)


def two_leaves(nodes, size, delay_s=0.0):
    """`root.a` is guaranteed half of the nodes, `root.b` nothing."""
    site = PreemptingSite(
        leaf("a", guaranteed=amounts(vcore=nodes * size // 2), preemption_delay_s=delay_s),
        leaf("b", preemption_delay_s=delay_s),
    )
    for _ in range(nodes):
        site.node(amounts(vcore=size))
    return site


def test_a_queue_gets_back_what_it_is_guaranteed_and_no_more():
    site = two_leaves(2, 10)
    theirs = site.ask(site.application("theirs", "root.b"), amounts(vcore=5), 4)
    assert site.run() == theirs
    site.now_s = 1.0
    mine = site.ask(site.application("mine", "root.a"), amounts(vcore=5), 3, options=MAY)
    site.run()
    assert sorted(site.going.values()) == mine[:2], "the third would be beyond the guarantee"
    site.run(20.0)
    assert len(site.going) == 2, "what is going is not asked for again, and counts as gone"
    nodes = {asking: site.ranks[id] for id, asking in site.going.items()}
    site.confirm(*site.going)
    assert sorted(site.run()) == mine[:2]
    assert {id: site.ranks[id] for id in mine[:2]} == nodes, "each starts on the node that was kept for it"
    site.run(40.0)
    assert not site.going


def test_the_node_is_kept_for_the_ask_until_the_last_has_gone():
    site = two_leaves(1, 10)
    theirs = site.ask(site.application("theirs", "root.b"), amounts(vcore=4), 2)
    site.run()
    (mine,) = site.ask(site.application("mine", "root.a"), amounts(vcore=5), options=MAY)
    site.run()
    assert site.going == {theirs[1]: mine}, "the newest goes"
    (small,) = site.ask(site.application("other", "root.b"), amounts(vcore=1), t_s=-9.0)
    assert site.run() == [], "there is room for it, but the node is kept"
    site.confirm(theirs[1])
    assert site.run() == [mine, small]


def test_a_node_that_another_ask_has_reserved_is_taken_over():
    site = two_leaves(1, 10, delay_s=5.0)
    theirs = site.ask(site.application("theirs", "root.b"), amounts(vcore=5), 3)
    assert site.run(4.0) == theirs[:2]
    (mine,) = site.ask(site.application("mine", "root.a"), amounts(vcore=5), options=MAY)
    site.run(10.0)
    assert site.going == {theirs[1]: mine}
    site.confirm(theirs[1])
    assert site.run() == [mine]


def test_an_ask_that_leaves_frees_its_node_again():
    site = two_leaves(1, 10)
    theirs = site.ask(site.application("theirs", "root.b"), amounts(vcore=5), 2)
    site.run()
    (mine,) = site.ask(site.application("mine", "root.a"), amounts(vcore=5), options=MAY)
    site.run()
    assert site.going == {theirs[1]: mine}
    site.scheduler.cancel(mine)
    site.confirm(theirs[1])
    (small,) = site.ask(site.application("other", "root.b"), amounts(vcore=5))
    assert site.run() == [small]


def test_quota_rate_bounds_how_many_go_in_a_second():
    site = two_leaves(30, 2)
    site.ask(site.application("theirs", "root.b"), amounts(vcore=2), 30)
    site.run()
    application = site.application("mine", "root.a")
    for _ in range(15):
        site.ask(application, amounts(vcore=2), options=MAY)
    site.run(0.9)
    assert len(site.going) == QUOTA_RATE
    site.run(2.5)
    assert len(site.going) == 15


def test_looked_at_a_pass_max_leaves_other_asks_for_later(lower):
    lower(LOOKED_AT_A_PASS_MAX=1)
    site = two_leaves(4, 2)
    site.ask(site.application("theirs", "root.b"), amounts(vcore=2), 4)
    site.run()
    for name in ("one", "two"):
        site.ask(site.application(name, "root.a"), amounts(vcore=2), options=MAY)
    site.run()
    assert len(site.going) == 1
    site.confirm(*site.going)
    site.run()
    assert len(site.going) == 1


@st.composite
def steps(draw):
    one = st.tuples(st.sampled_from(("root.a", "root.p.x", "root.p.y", "confirm", "free")), st.integers(1, 3),
                    st.integers(1, 2), st.booleans())  # fmt: skip
    return draw(st.lists(one, min_size=10, max_size=40))


def test_preempting_a_pass_bounds_the_lines_that_are_looked_at(lower):
    lower(PREEMPTING_A_PASS=1)
    site = two_leaves(4, 2)
    site.ask(site.application("theirs", "root.b"), amounts(vcore=2), 4)
    site.run()
    mine = [site.ask(site.application(name, "root.a"), amounts(vcore=2), options=MAY)[0] for name in ("one", "two")]
    site.run()
    assert list(site.going.values()) == mine[:1]


AWAITED = [("root.p.x", 1, 1, False), ("root.p.x", 2, 1, False), ("root.p.x", 3, 1, False),
           ("root.a", 1, 1, False), ("root.a", 1, 1, False), ("root.a", 1, 1, False), ("root.a", 2, 1, False),
           ("root.a", 3, 1, True), ("root.p.x", 3, 1, True), ("free", 3, 1, False)]  # fmt: skip
"""An ask that others go for is not yet what its queue has: it may leave before they are gone."""


@settings(max_examples=examples(50))
@given(steps())
@example(AWAITED)
def test_no_queue_falls_below_its_guarantee_and_each_ask_gets_its_node(told):
    site = PreemptingSite(
        leaf("a", guaranteed=amounts(vcore=6), preemption_delay_s=0.0),
        parent("p", leaf("x", guaranteed=amounts(vcore=2), preemption_delay_s=0.0), leaf("y", preemption_delay_s=0.0),
               guaranteed=amounts(vcore=4)),
    )  # fmt: skip
    for _ in range(3):
        site.node(amounts(vcore=4))
    for step, (what, size, priority, may) in enumerate(told):
        site.now_s += 0.5
        if what == "confirm":
            site.confirm(*site.going)
        elif what == "free":
            held = [id for id in site.held if id not in site.going]
            site.free(*held[: size - 1])
        else:
            site.ask(site.application(f"{step}", what), amounts(vcore=size), 1, priority, AskOptions(may_preempt=may))
        before = set(site.going)
        site.run()
        holdings = {id: holding(site.scheduler, id) for id in site.going}
        for id in site.going.keys() - before:
            gone, asking = holdings[id], site.going[id]
            job = site.scheduler.group("default").queue_of(asking)
            assert job is not None
            waiting = job.jobs.by_id[asking]
            assert waiting.terms.options.may_preempt
            loser, winner = gone.terms.application, waiting.terms.application
            assert loser is not winner
            assert gone.priority <= waiting.priority
            for queue in set(loser.path) - set(winner.path):
                going = sum(
                    dict(holdings[each].terms.application.allocations[each])["vcore"]
                    for each in site.going
                    if queue in holdings[each].terms.application.path
                )
                assert queue.used["vcore"] - going >= queue.guarantee.get("vcore", 0), f"{queue.path} is below"


# ---- under a maximum: the cases of YuniKorn's guide to preemption, on nodes with room for more


def at_once(name, guaranteed, **settings):
    return leaf(name, guaranteed=amounts(vcore=guaranteed), preemption_delay_s=0.0, **settings)


def settled(site, *leaves):
    """What leaves use once all that is demanded has been confirmed, until nothing more is."""
    site.run()
    while site.going:
        site.confirm(*site.going)
        site.run(site.now_s + 5.0)
    queues = [site.tree.queue(leaf) for leaf in leaves]
    return [queue.used.get("vcore", 0) for queue in queues if queue is not None]


def test_a_leaf_takes_back_under_the_maximum_of_its_parent():
    most = amounts(vcore=10)
    site = PreemptingSite(
        parent("normal", at_once("one", 5, maximum=most), at_once("two", 5, maximum=most), maximum=amounts(vcore=12))
    )
    for _ in range(4):
        site.node(amounts(vcore=10))
    site.ask(site.application("a", "root.normal.one"), amounts(vcore=1), 10, options=MAY)
    site.run()
    site.ask(site.application("b", "root.normal.two"), amounts(vcore=1), 10, options=MAY)
    assert len(site.run()) == 2
    assert settled(site, "root.normal.one", "root.normal.two") == [7, 5]


def test_those_that_rather_stay_do_under_a_maximum():
    site = PreemptingSite(
        parent("rt", *[at_once(name, 3, maximum=amounts(vcore=8)) for name in "abc"], maximum=amounts(vcore=16))
    )
    for _ in range(40):
        site.node(amounts(vcore=1))
    site.ask(site.application("a", "root.rt.a"), amounts(vcore=1), 8, options=MAY)
    site.ask(site.application("b", "root.rt.b"), amounts(vcore=1), 8, options=MAY._replace(may_be_preempted=False))
    site.run()
    site.ask(site.application("c", "root.rt.c"), amounts(vcore=1), 8, options=MAY)
    assert settled(site, "root.rt.a", "root.rt.b", "root.rt.c") == [5, 8, 3]


def test_the_priorities_of_queues_count_under_a_maximum():
    site = PreemptingSite(
        parent(
            "top",
            at_once("high", 6, priority_offset=100),
            at_once("norm", 6),
            at_once("low", 6, priority_offset=-100),
            maximum=amounts(vcore=18),
        )
    )
    for _ in range(3):
        site.node(amounts(vcore=100))
    site.ask(site.application("n", "root.top.norm"), amounts(vcore=3), 6, 200, MAY)
    site.run()
    site.ask(site.application("l", "root.top.low"), amounts(vcore=3), 5, 200, MAY)
    site.ask(site.application("h", "root.top.high"), amounts(vcore=3), 5, 200, MAY)
    assert settled(site, "root.top.high", "root.top.norm", "root.top.low") == [6, 12, 0]


def test_what_comes_free_below_a_maximum_is_for_the_ask_for_which_others_go():
    site = PreemptingSite(parent("p", at_once("a", 3), leaf("b"), maximum=amounts(vcore=6)))
    site.node(amounts(vcore=50))
    theirs = site.application("theirs", "root.p.b")
    running = site.ask(theirs, amounts(vcore=1), 6, priority=9)
    assert site.run() == running
    (mine,) = site.ask(site.application("mine", "root.p.a"), amounts(vcore=3), 1, 9, options=MAY)
    site.run()
    assert sorted(site.going) == running[3:]
    more = site.ask(theirs, amounts(vcore=1), 2, priority=99)
    site.confirm(running[5])
    assert site.run() == [], "else no three would ever be free at once"
    site.confirm(running[4])
    assert site.run() == []
    site.confirm(running[3])
    assert site.run() == [mine]
    site.scheduler.cancel(mine)
    site.free(mine)
    assert site.run() == more


def test_it_goes_on_when_the_ask_for_which_others_go_has_left():
    site = PreemptingSite(parent("p", at_once("a", 3), leaf("b"), maximum=amounts(vcore=6)))
    site.node(amounts(vcore=50))
    theirs = site.application("theirs", "root.p.b")
    running = site.ask(theirs, amounts(vcore=1), 6)
    site.run()
    (mine,) = site.ask(site.application("mine", "root.p.a"), amounts(vcore=3), options=MAY)
    site.run()
    more = site.ask(theirs, amounts(vcore=1), 2)
    site.confirm(running[5], running[4])
    assert site.run() == []
    site.scheduler.cancel(mine)
    assert site.run() == more


def test_one_goes_on_the_node_and_another_elsewhere_below_the_maximum():
    site = PreemptingSite(parent("p", at_once("a", 4), leaf("b"), maximum=amounts(vcore=6)), leaf("c"))
    large, small = site.node(amounts(vcore=5)), site.node(amounts(vcore=3))
    (on_node,) = site.ask(site.application("c", "root.c"), amounts(vcore=5), options=AskOptions(node=large))
    below = site.ask(site.application("b", "root.p.b"), amounts(vcore=1), 3, options=AskOptions(node=small))
    assert len(site.run()) == 4
    (mine,) = site.ask(site.application("mine", "root.p.a"), amounts(vcore=4), options=MAY)
    site.run()
    assert site.going == {on_node: mine, below[2]: mine}
    site.confirm(on_node)
    assert site.run() == []
    site.confirm(below[2])
    assert site.run() == [mine]
    assert site.ranks[mine] == large


def test_an_ask_that_needs_a_node_preempts_there_though_others_are_free():
    site = two_leaves(2, 10)
    (theirs,) = site.ask(site.application("theirs", "root.b"), amounts(vcore=10), options=AskOptions(node=1))
    site.run()
    (mine,) = site.ask(site.application("mine", "root.a"), amounts(vcore=5), options=MAY._replace(node=1))
    site.run()
    assert site.going == {theirs: mine}
    site.confirm(theirs)
    assert site.run() == [mine]


def test_elsewhere_max_bounds_the_jobs_that_are_tried_for_a_maximum(lower):
    lower(ELSEWHERE_MAX=2)
    site = PreemptingSite(parent("p", at_once("a", 4), leaf("b"), maximum=amounts(vcore=6)))
    site.node(amounts(vcore=50))
    running = site.ask(site.application("theirs", "root.p.b"), amounts(vcore=1), 6)
    site.run()
    application = site.application("mine", "root.p.a")
    site.ask(application, amounts(vcore=3), options=MAY)
    site.run()
    assert site.going == {}
    (mine,) = site.ask(application, amounts(vcore=2), options=MAY)
    site.run()
    assert site.going == dict.fromkeys(running[4:], mine)

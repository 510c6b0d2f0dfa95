"""Preemption of the tree in the engine: who is told to go, which node is kept, and what holds at every moment."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fluxsched.sched.effects import Effect, Raise
from fluxsched.sched.engine.assembly import QUOTA_RATE
from fluxsched.sched.policies.tree import policy, preemption
from fluxsched.sched.quotas.queue import AskOptions
from tests.generated.share import examples
from tests.sched.policies.tree.site import TreeSite, amounts, leaf, parent

MAY = AskOptions(may_preempt=True)


class PreemptingSite(TreeSite):
    """Notes who is told to go, for whom."""

    def __init__(self, *children: object, delay_s: float = 0.0) -> None:
        super().__init__(parent("root", *children), preemption="yes")  # type: ignore[arg-type]
        self.going: dict[int, int] = {}

    def do(self, effects: object) -> list[int]:
        kept: list[Effect] = []
        for effect in effects:  # type: ignore[attr-defined]
            if isinstance(effect, Raise):
                assert effect.jobid not in self.going, "a demand is made once"
                assert effect.for_jobid is not None
                self.going[effect.jobid] = effect.for_jobid
            kept.append(effect)
        return super().do(kept)

    def confirm(self, *ids: int) -> None:
        for id in ids:
            del self.going[id]
            self.free(id)


def two_leaves(nodes: int, size: int, delay_s: float = 0.0) -> PreemptingSite:
    """`root.a` is guaranteed half of the nodes, `root.b` nothing."""
    site = PreemptingSite(
        leaf("a", guaranteed=amounts(vcore=nodes * size // 2), preemption_delay_s=delay_s),
        leaf("b", preemption_delay_s=delay_s),
    )
    for _ in range(nodes):
        site.node(amounts(vcore=size))
    return site


def test_a_queue_gets_back_what_it_is_guaranteed_and_no_more() -> None:
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


def test_the_node_is_kept_for_the_ask_until_the_last_has_gone() -> None:
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


def test_a_node_that_another_ask_has_reserved_is_taken_over() -> None:
    site = two_leaves(1, 10, delay_s=5.0)
    theirs = site.ask(site.application("theirs", "root.b"), amounts(vcore=5), 3)
    assert site.run(4.0) == theirs[:2]
    (mine,) = site.ask(site.application("mine", "root.a"), amounts(vcore=5), options=MAY)
    site.run(10.0)
    assert site.going == {theirs[1]: mine}
    site.confirm(theirs[1])
    assert site.run() == [mine]


def test_an_ask_that_leaves_frees_its_node_again() -> None:
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


def test_quota_rate_bounds_how_many_go_in_a_second() -> None:
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


def test_looked_at_a_pass_max_leaves_other_asks_for_later(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(preemption, "LOOKED_AT_A_PASS_MAX", 1)
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
def steps(draw: st.DrawFn) -> list[tuple[str, int, int, bool]]:
    one = st.tuples(st.sampled_from(("root.a", "root.p.x", "root.p.y", "confirm", "free")), st.integers(1, 3),
                    st.integers(1, 2), st.booleans())  # fmt: skip
    return draw(st.lists(one, min_size=10, max_size=40))


def test_preempting_a_pass_bounds_the_lines_that_are_looked_at(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(policy, "PREEMPTING_A_PASS", 1)
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
def test_no_queue_falls_below_its_guarantee_and_each_ask_gets_its_node(
    told: list[tuple[str, int, int, bool]],
) -> None:
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
            held = [id for id in site.scheduler._ledger.holdings if id not in site.going]
            site.free(*held[: size - 1])
        else:
            site.ask(site.application(f"{step}", what), amounts(vcore=size), 1, priority, AskOptions(may_preempt=may))
        before = set(site.going)
        site.run()
        holdings = site.scheduler._ledger.holdings
        for id in site.going.keys() - before:
            gone, asking = holdings[id], site.going[id]
            job = next(group.queue_of(asking) for group in site.scheduler._groups.values())
            assert job is not None
            waiting = job.jobs.by_id[asking]
            assert waiting.options.may_preempt
            assert gone.application is not None
            assert gone.application is not waiting.application
            assert gone.priority <= waiting.priority
            assert waiting.application is not None
            for queue in set(gone.application.path) - set(waiting.application.path):
                going = sum(
                    dict(holdings[each].application.allocations[each])["vcore"]  # type: ignore[union-attr]
                    for each in site.going
                    if queue in holdings[each].application.path  # type: ignore[union-attr]
                )
                assert queue.used["vcore"] - going >= queue.guarantee.get("vcore", 0), f"{queue.path} is below"

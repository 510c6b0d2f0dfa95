"""The policy against a tree that is sorted anew at each step, and usage against the sum of allocations."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.yunikorn.tree.queues import SORTS, AskOptions, AskTerms, Limit, QueueSettings
from tests.generated.share import examples
from tests.sched.site import limit

from .plain_tree import PlainApplication, PlainNode, PlainTree
from .site import TreeSite

STAGES = limit("STAGES")

LEAVES = ("root.a", "root.b.c", "root.b.d")

small = st.integers(1, 6)
some = st.dictionaries(st.sampled_from(["memory", "vcore"]), small, min_size=1).map(
    lambda found: tuple(sorted(found.items()))
)
bounds = st.dictionaries(st.sampled_from(["memory", "vcore"]), st.integers(3, 20)).map(
    lambda found: tuple(sorted(found.items()))
)


@st.composite
def queue(draw, name, children=()):
    limits = st.builds(
        Limit,
        users=st.sampled_from([frozenset({"ann"}), frozenset({"*"})]),
        maximum=bounds,
        max_applications=st.integers(0, 2),
    )
    return QueueSettings(
        name,
        is_parent=bool(children),
        guaranteed=draw(bounds) if name != "root" else (),
        maximum=draw(bounds) if draw(st.booleans()) else (),
        max_applications=draw(st.sampled_from([0, 0, 1, 2])),
        sort=draw(st.sampled_from(SORTS)),
        by_priority=draw(st.booleans()),
        priority_offset=draw(st.integers(-2, 2)),
        priority_fence=draw(st.booleans()),
        limits=tuple(draw(st.lists(limits, max_size=2))),
        children=children,
    )


@st.composite
def trees(draw):
    inner = draw(queue("b", (draw(queue("c")), draw(queue("d")))))
    return draw(queue("root", (draw(queue("a")), inner)))


class Compared:
    """Both, side by side."""

    def __init__(self, root, data):
        self.site = TreeSite(root)
        self.plain = PlainTree(root)
        self.data = data
        self.add_node()

    def step(self):
        steps = [
            self.ask, self.ask, self.ask, self.free, self.add_node, self.resize, self.adopt, self.replace,
            self.change_stage, self.reconfigure, self.cancel,
        ]  # fmt: skip
        steps[self.data.draw(st.integers(0, len(steps) - 1))]()

    def add_node(self):
        held = self.data.draw(st.fixed_dictionaries({"memory": st.integers(4, 12), "vcore": st.integers(4, 12)}))
        rank = self.site.node(tuple(sorted(held.items())))
        self.plain.nodes[rank] = PlainNode(held)

    def resize(self):
        rank = self.data.draw(st.sampled_from(sorted(self.plain.nodes)))
        held = self.data.draw(st.fixed_dictionaries({"memory": st.integers(1, 12), "vcore": st.integers(1, 12)}))
        self.site.do(self.site.scheduler.resized(rank, tuple(sorted(held.items())), self.site.now_s))
        self.plain.nodes[rank].capacity = held

    def application(self):
        """One that is here, or a new one."""
        plain = self.plain.applications
        id = f"a{self.data.draw(st.integers(0, 6))}"
        if id not in plain:
            leaf, user = self.data.draw(st.sampled_from(LEAVES)), self.data.draw(st.sampled_from(["ann", "bob"]))
            found = self.site.application(id, leaf, user)
            plain[id] = PlainApplication(id, leaf, user, found.submitted_s)
        return plain[id]

    def ask(self):
        plain = self.application()
        asked, originator = self.data.draw(some), self.data.draw(st.booleans())
        priority, times = self.data.draw(st.integers(1, 3)), self.data.draw(st.integers(1, 4))
        for jobid in self.site.ask(self.real(plain), asked, times, priority, AskOptions(is_originator=originator)):
            plain.asks[jobid] = priority, originator, asked

    def cancel(self):
        waiting = [(plain, jobid) for plain in self.plain.applications.values() for jobid in plain.asks]
        if waiting:
            plain, jobid = self.data.draw(st.sampled_from(waiting))
            self.site.do(self.site.scheduler.cancel(jobid))
            del plain.asks[jobid]

    def held(self):
        return [(plain, jobid) for plain in self.plain.applications.values() for jobid in plain.held]

    def free(self):
        if self.held():
            plain, jobid = self.data.draw(st.sampled_from(self.held()))
            self.site.free(jobid)
            self.plain.free(plain, jobid)

    def adopt(self):
        plain, rank = self.application(), self.data.draw(st.sampled_from(sorted(self.plain.nodes)))
        amounts = self.data.draw(some)
        self.site.last_id += 1
        self.site.do(self.site.scheduler.adopt(self.site.last_id, rank, amounts, AskTerms(self.real(plain)), 0.0))
        self.plain.hold(plain, self.site.last_id, rank, amounts)

    def replace(self):
        if self.held():
            plain, jobid = self.data.draw(st.sampled_from(self.held()))
            rank, amounts = plain.held[jobid]
            kept = tuple([(kind, self.data.draw(st.integers(1, amount))) for kind, amount in amounts])
            self.site.last_id += 1
            self.site.do(self.site.scheduler.replace(jobid, self.site.last_id, kept, self.site.now_s))
            began = plain.began
            self.plain.free(plain, jobid)
            plain.began = began
            self.plain.hold(plain, self.site.last_id, rank, kept)

    def change_stage(self):
        plain = self.application()
        plain.stage = self.data.draw(st.sampled_from(STAGES))
        self.site.tree.set_stage(self.real(plain), plain.stage)
        plain.began = bool(plain.held) or plain.stage in ("starting", "running")

    def reconfigure(self):
        self.plain.settings = self.data.draw(trees())
        assert self.site.tree.reconfigure(self.plain.settings) == ((), (), ())

    def real(self, plain):
        found = self.site.tree.queue(plain.queue)
        assert found is not None
        return found.applications[plain.id]

    def schedule(self):
        expected = list(self.plain.schedule())
        granted = self.site.run()
        assert [(jobid, self.site.ranks[jobid]) for jobid in granted] == expected
        for plain in self.plain.applications.values():
            assert self.real(plain).allocations == {jobid: amounts for jobid, (_, amounts) in plain.held.items()}
            assert self.real(plain).began == plain.began


@settings(max_examples=examples(30), deadline=None)
@given(trees(), st.data())
def test_asks_start_in_the_order_of_a_tree_that_is_sorted_anew(root, data):
    """Also: used = sum of allocations (`check` in each run), and what starts is within each maximum then."""
    both = Compared(root, data)
    for _ in range(data.draw(st.integers(1, 8))):
        for _ in range(data.draw(st.integers(1, 3))):
            both.step()
        both.schedule()

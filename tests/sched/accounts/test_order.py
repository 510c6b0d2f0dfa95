"""Whose turn it is, against a search of all accounts, as things happen and as time passes."""

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.sched.fair.accounts import Signal
from fluxsched.sched.fair.order import FairOrder
from tests.generated.share import examples

from .conftest import BOTH, account, cores


def keys_of(accounts, at, offered, scale):
    """The order's keys as the design writes them, from the levels of this moment."""
    usage, level = at.all_jobs.usage, at.all_jobs.level(scale)
    if accounts.signal is Signal.FLOW:
        return max(usage + offered[at], level) / at.weight, level / at.weight
    return (usage + level) / at.weight, usage / at.weight


def brute_force(accounts, offers, now_s):
    """Whose job is first, found by looking at all; and whether another is as close as rounding."""
    scale = accounts.advance(now_s)
    offered = dict(offers)
    close = False

    def best(at):
        nonlocal close
        if at in offers:
            return at
        leaves = {child: leaf for child in at.children.values() if (leaf := best(child)) is not None}
        offered.update((child, offers[leaf]) for child, leaf in leaves.items())
        ranked = sorted((keys_of(accounts, child, offered, scale), child.name, child) for child in leaves)
        if len(ranked) > 1:
            one, other = ranked[0][0], ranked[1][0]
            close |= all(math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-9) for x, y in zip(one, other, strict=True))
            close |= one[0] != other[0] and math.isclose(one[0], other[0], rel_tol=1e-9, abs_tol=1e-9)
        if not ranked:
            return None
        offered[at] = offered[ranked[0][2]]
        return leaves[ranked[0][2]]

    return best(accounts.root), close


STEPS = st.lists(
    st.tuples(st.sampled_from(["start", "end", "offer", "withdraw", "wait", "weight"]), st.integers(0, 7),
              st.integers(1, 40), st.sampled_from([0.0, 0.5, 1.0, 7.0, 60.0, 600.0, 86400.0])), max_size=60,
)  # fmt: skip
PATHS = [("a",), ("b",), ("x", "c"), ("x", "d"), ("x", "e"), ("y", "f"), ("y", "z", "g"), ("y", "z", "h")]


@BOTH
@settings(max_examples=examples(150), deadline=None)
@given(steps=STEPS)
def test_the_order_is_that_of_a_brute_force_filling(signal, steps):
    accounts = cores(1000, signal, half_life_s=100.0)
    order, now_s = FairOrder(accounts), 0.0
    leaves = [account(accounts, *path, active=1) for path in PATHS]
    offers = {}
    for what, index, amount, pause_s in steps:
        leaf = leaves[index]
        now_s += pause_s
        if what == "start":
            accounts.book(leaf, (amount,), 1, True, now_s)
        elif what == "end":
            accounts.book(leaf, (min(amount, leaf.all_jobs.held[0]),), -1, True, now_s)
        elif what == "offer":
            offers[leaf] = float(amount)
            order.offer(leaf, float(amount))
        elif what == "withdraw":
            offers.pop(leaf, None)
            order.withdraw(leaf)
        elif what == "weight":
            accounts.configure(leaf, amount / 8)
        order.changed(leaf)
        expected, close = brute_force(accounts, offers, now_s)
        found = order.first(now_s)
        assert found is expected or close


@BOTH
def test_overtaking_as_time_passes_is_seen_without_looking_at_all(signal):
    """A thousand accounts of different histories, asked over two weeks; nothing changes but time."""
    accounts, chance = cores(10_000, signal, half_life_s=86_400.0), random.Random(7)
    order = FairOrder(accounts)
    leaves = [account(accounts, f"u{n}", weight=chance.choice([0.5, 1, 2]), active=1) for n in range(300)]
    offers = {leaf: float(chance.randint(1, 30)) for leaf in leaves}
    for leaf in leaves:
        order.offer(leaf, offers[leaf])
        for _ in range(3):
            amount = (chance.randint(1, 300),)
            accounts.book(leaf, amount, 1, True, 0.0)
            if chance.random() < 0.7:
                accounts.book(leaf, amount, -1, True, 0.0)
    seen = set()
    for hour in range(1, 337):
        found = order.first(3600.0 * hour)
        expected, close = brute_force(accounts, offers, 3600.0 * hour)
        assert found is expected or close
        seen.add(found)
    assert len(seen) >= (2 if signal is Signal.FLOW else 1)

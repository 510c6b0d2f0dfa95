"""Progressive filling: the numbers of the design, and a brute-force filling beside it."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.sched.fair.account_order import FairOrder
from fluxsched.sched.fair.accounts import Signal
from tests.generated.share import examples

from .conftest import BOTH, account, cores


def filled(accounts, wants, capacity):
    """Progressive filling of an empty machine by endless jobs of so many cores: NAME and its usage, start by start."""
    order = FairOrder(accounts)
    leaves = {accounts.account(path): want for path, want in wants.items()}
    for leaf, want in leaves.items():
        accounts.activate(leaf, 1)
        order.offer(leaf, want)
    starts, used = [], 0
    while (leaf := order.first(0.0)) is not None:
        if used + leaves[leaf] > capacity:
            order.withdraw(leaf)
            continue
        used += leaves[leaf]
        accounts.book(leaf, (leaves[leaf],), 1, True, 0.0)
        order.changed(leaf)
        starts.append(f"{leaf.name}{leaf.all_jobs.held[0]}")
    return starts


class TestFilling:
    @pytest.mark.parametrize(
        ("signal", "starts"),
        [(Signal.FLOW, "B4 B8 A10 B12 B16 A20 B20"), (Signal.DECAYED_USAGE, "A10 B4 B8 B12 A20 B16 B20")],
    )
    def test_of_forty_cores_with_tens_and_fours(self, signal, starts):
        assert " ".join(filled(cores(40, signal), {("A",): 10, ("B",): 4}, 40)) == starts

    @BOTH
    def test_weights_1_and_3(self, signal):
        accounts = cores(40, signal)
        a, b = account(accounts, "a"), account(accounts, "b", weight=3)
        filled(accounts, {("a",): 1, ("b",): 1}, 40)
        assert (a.all_jobs.usage, b.all_jobs.usage) == (10, 30)

    @BOTH
    def test_weights_1_a_half_and_a_tenth(self, signal):
        accounts = cores(96, signal)
        three = [account(accounts, name, weight=w) for name, w in (("a", 1), ("b", 0.5), ("c", 0.1))]
        filled(accounts, {("a",): 1, ("b",): 1, ("c",): 1}, 96)
        assert [one.all_jobs.usage for one in three] == [60, 30, 6]

    @BOTH
    def test_banks_share_before_their_users(self, signal):
        accounts = cores(40, signal)
        leaves = [("X", "a"), ("X", "b"), ("Y", "c")]
        filled(accounts, dict.fromkeys(leaves, 1), 40)
        assert [accounts.account(path).all_jobs.usage for path in leaves] == [10, 10, 20]

    @pytest.mark.parametrize(
        ("signal", "counts"), [(Signal.FLOW, {"a": 0, "b": 4000}), (Signal.DECAYED_USAGE, {"a": 1100, "b": 2900})]
    )
    def test_jobs_of_the_whole_machine_one_after_the_other(self, signal, counts):
        accounts = cores(40, signal, half_life_s=3600.0)
        order, started = FairOrder(accounts), {"a": 0, "b": 0}
        for name, weight in (("a", 1.0), ("b", 3.0)):
            order.offer(account(accounts, name, weight=weight, active=1), 40)
        for turn in range(4000):
            leaf = order.first(600.0 * turn)
            assert leaf is not None
            started[leaf.name] += 1
            accounts.book(leaf, (40,), 1, True, 600.0 * turn)
            accounts.book(leaf, (40,), -1, True, 600.0 * (turn + 1))
            order.changed(leaf)
        assert started == {name: pytest.approx(count, abs=25) if count else 0 for name, count in counts.items()}

    @pytest.mark.parametrize(("signal", "first"), [(Signal.FLOW, False), (Signal.DECAYED_USAGE, True)])
    def test_a_large_job_beside_endless_small_ones(self, signal, first):
        """A wants 30 of 40 cores; B and C always have another job of one core."""
        accounts = cores(40, signal)
        order = FairOrder(accounts)
        a, b, c = (account(accounts, name, active=1) for name in "ABC")
        for leaf, want in ((a, 30), (b, 1), (c, 1)):
            order.offer(leaf, want)
        for leaf in (b, c):
            accounts.book(leaf, (20,), 1, True, 0.0)
            order.changed(leaf)
        ahead = 0
        for second in range(1, 4000):
            ending = (b, c)[second % 2]
            accounts.book(ending, (1,), -1, True, float(second))
            order.changed(ending)
            leaf = order.first(float(second))
            assert leaf is not None
            ahead += leaf is a
            accounts.book(ending, (1,), 1, True, float(second))  # the small ones go on all the same
            order.changed(ending)
        assert bool(ahead) is first

    @BOTH
    def test_one_that_used_much_is_first_again_when_it_has_fallen_far_enough(self, signal):
        """Alone by time: A used 100 and uses nothing, B goes on with 30; both offer 1."""
        accounts = cores(1000, signal)
        order = FairOrder(accounts)
        a, b = account(accounts, "a", active=1), account(accounts, "b", active=1)
        for leaf, held in ((a, 100), (b, 30)):
            order.offer(leaf, 1)
            accounts.book(leaf, (held,), 1, True, 0.0)
        accounts.advance(6000.0)
        accounts.book(a, (100,), -1, True, 6000.0)
        order.changed(a)
        order.changed(b)
        turn_s = 6000.0 + 600 * math.log2(100 / (31 if signal is Signal.FLOW else 60))
        assert [order.first(turn_s + late_s) for late_s in (-1.0, 1.0)] == [b, a]

    def test_equal_decayed_usage_goes_by_what_is_used_now(self):
        """After a half-life: Z has used 100 and uses none, A has just begun with 50; both keys are 50."""
        accounts = cores(1000, Signal.DECAYED_USAGE)
        order = FairOrder(accounts)
        a, z = account(accounts, "a", active=1), account(accounts, "z", active=1)
        accounts.book(z, (100,), 1, True, 0.0)
        accounts.book(z, (100,), -1, True, 600.0)
        accounts.book(a, (50,), 1, True, 600.0)
        order.offer(a, 1)
        order.offer(z, 1)
        assert order.first(600.0) is z

    def test_equal_flows_go_by_the_flow_without_the_next_job(self):
        accounts = cores(1000, Signal.FLOW)
        order = FairOrder(accounts)
        a, z = account(accounts, "a", active=1), account(accounts, "z", active=1)
        for leaf, held in ((a, 30), (z, 20)):
            accounts.book(leaf, (held,), 1, True, 0.0)
            order.offer(leaf, 40 - held)
        assert order.first(0.0) is z

    def test_reservations_count_until_the_pass_is_over(self):
        accounts = cores(40)
        order = FairOrder(accounts)
        a, b = account(accounts, "a", active=1), account(accounts, "b", active=1)
        order.offer(a, 1)
        order.offer(b, 1)
        assert order.first(0.0) is a
        order.plan(a, 10)
        assert order.first(0.0) is b
        order.forget_plans()
        assert order.first(0.0) is a

    def test_the_last_offer_of_a_bank_takes_it_out(self):
        accounts = cores(40)
        order = FairOrder(accounts)
        leaf = account(accounts, "bank", "user", active=1)
        order.offer(leaf, 1)
        order.withdraw(leaf)
        order.withdraw(leaf)
        assert order.first(0.0) is None
        order.offer(leaf, 1)
        assert order.first(1.0) is leaf


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

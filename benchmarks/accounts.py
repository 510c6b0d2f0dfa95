"""What a start with its end costs in the accounts, as they grow from 1,000 to 65,536: CPU microseconds, medians.

    python benchmarks/accounts.py [--accounts 1000,65536] [--rounds 5] [--steps 20000] [--dominant]

Users in banks of 100, all of which have jobs waiting; thousands of jobs run. Each step asks whose job comes next,
starts it within the limits, lets the account offer its next, ends the oldest job, and lets a new one arrive. Time
passes from step to step, so that accounts also overtake one another by their signals alone. `ratio` is the cost with
the most accounts over that with the fewest.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
from collections import deque

from fluxsched.sched.fair.accounts import Account, AccountLimits, Accounts, Measure, Signal, Vector
from fluxsched.sched.fair.order import FairOrder

CAPACITY = (1_000_000, 16_384, 2**52)
WEIGHTS = {"core": 1.0, "gpu": 10.0, "memory": 0.25 / 2**30}
USERS_A_BANK = 100
RUNNING = 10_000
STEP_S = 0.0006
"""Time between two starts: 1,667 a second."""


class Site:
    """The accounts of a busy site, and what runs there."""

    def __init__(self, accounts: int, signal: Signal, dominant: bool, cap: float | None) -> None:
        self.chance = random.Random(1)
        self.now_s = 0.0
        self.tree = Accounts(Measure(WEIGHTS, dominant), signal, 7 * 86400.0, 0.0)
        self.tree.set_capacity(CAPACITY, 0.0)
        self.limits = AccountLimits(self.tree, cap=cap)
        self.order = FairOrder(self.tree)
        self.wants: dict[Account, tuple[Vector, float]] = {}
        self.kinds = [self._kind() for _ in range(997)]
        self.turn = 0
        banks = max(1, accounts // (USERS_A_BANK + 1))
        for number in range(accounts - banks):
            leaf = self.tree.account((f"bank{number % banks}", f"user{number // banks}"))
            self.tree.configure(leaf, self.chance.choice((0.5, 1.0, 2.0)))
            self.tree.activate(leaf, 2)
            self._offer(leaf)
        self.running: deque[tuple[Account, Vector]] = deque()
        for _ in range(RUNNING):
            self.start()

    def _kind(self) -> tuple[Vector, float]:
        amounts = (self.chance.choice((1, 1, 1, 2, 8, 64)), self.chance.choice((0, 0, 0, 1)), 2**30)
        return amounts, self.tree.measure.usage(amounts)

    def _offer(self, leaf: Account) -> None:
        self.turn += 1
        self.wants[leaf] = want = self.kinds[self.turn % len(self.kinds)]
        self.order.offer(leaf, want[1])

    def start(self) -> None:
        """The next job starts; its account offers another."""
        leaf = self.order.first(self.now_s)
        assert leaf is not None
        amounts, usage = self.wants[leaf]
        self.limits.over_cap(leaf, usage, self.now_s)
        self.tree.book(leaf, amounts, 1, True, self.now_s)
        self.running.append((leaf, amounts))
        self._offer(leaf)

    def end(self) -> None:
        """The oldest job ends, and one more of its account arrives."""
        leaf, amounts = self.running.popleft()
        self.tree.book(leaf, amounts, -1, True, self.now_s)
        self.order.changed(leaf)
        self.tree.activate(leaf, -1)
        self.tree.activate(leaf, 1)


def measure(site: Site, steps: int, rounds: int) -> float:
    """Microseconds of CPU a step."""
    figures = []
    for _ in range(rounds):
        begin_s = time.process_time()
        for _ in range(steps):
            site.now_s += STEP_S
            site.start()
            site.end()
        figures.append((time.process_time() - begin_s) / steps * 1e6)
    return statistics.median(figures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accounts", default="1000,65536", help="sizes of tree")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--dominant", action="store_true", help="usage is that of the dominant resource")
    parser.add_argument("--cap", type=float, help="a cap on firm usage in all accounts")
    options = parser.parse_args()
    sizes = [int(size) for size in options.accounts.split(",")]
    gc.disable()
    print("CPU microseconds of a start with its end")
    print(f"{'':16}" + "".join(f"{size:>12,}" for size in sizes) + f"{'ratio':>8}")
    for signal in Signal:
        sites = [Site(size, signal, options.dominant, options.cap) for size in sizes]
        found = [measure(site, options.steps, options.rounds) for site in sites]
        row = "".join(f"{figure:>12.1f}" for figure in found)
        print(f"{signal.value:16}{row}{found[-1] / found[0]:>8.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

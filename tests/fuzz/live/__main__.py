"""`python -m tests.fuzz.live`: fuzz both sockets of real instances, and say what was sent and what was seen of them.

A failure is printed with the batch that shows it and the command that sends it again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from random import Random

from tests.fuzz.live.instance import Seen, Unwell, live_instance
from tests.fuzz.live.senders import BATCH, Send, SlowPeers, senders

LIFE_BATCHES = 150
"""Batches that one instance hears: some of what is sent are jobs, which stay."""


def main(words: Sequence[str]) -> int:
    """Do what the arguments say; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.live", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="kinds to send; all if none is named")
    parser.add_argument("--runs", type=int, default=20_000, help="inputs of each kind (20000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first batch")
    asked = parser.parse_args(words)
    known = senders()
    print(
        f"{'kind':<16}{'inputs':>10}{'inputs/s':>10}{'slowest ms':>12}{'peak MiB':>10}{'descriptors':>13}{'log KiB':>9}"
    )
    batches = range(asked.first, asked.first + max(1, asked.runs // BATCH))
    results = [fuzz(kind, known[kind], asked.seed, batches) for kind in asked.kinds or known]
    return 0 if all(results) else 1


def fuzz(kind: str, send: Send, seed: int, batches: range) -> bool:
    """Send these batches; whether all was well."""
    began_s, inputs, seen = time.monotonic(), 0, list[Seen]()
    for first in range(batches.start, batches.stop, LIFE_BATCHES):
        with live_instance() as instance:
            slow = SlowPeers(instance)
            for number in range(first, min(first + LIFE_BATCHES, batches.stop)):
                try:
                    inputs += send(instance, Random(f"{seed} {kind} {number}"))
                    slow.trickle()
                    seen.append(instance.check())
                except (Unwell, OSError) as fault:
                    again = f"python -m tests.fuzz.live {kind} --seed {seed} --first {number} --runs {BATCH}"
                    print(f"{kind}: batch {number}: {fault}\nreplay: {again}")
                    return False
            slow.close()
            try:
                instance.check_left()
            except Unwell as fault:
                print(f"{kind}: after batch {number}: {fault}")
                return False
    print(
        f"{kind:<16}{inputs:>10}{inputs / (time.monotonic() - began_s):>10.0f}"
        f"{max(one.latency_s for one in seen) * 1e3:>12.1f}{max(one.resident_bytes for one in seen) >> 20:>10}"
        f"{max(one.descriptors for one in seen):>13}{max(one.log_bytes for one in seen) >> 10:>9}",
        flush=True,
    )
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

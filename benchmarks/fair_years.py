"""Years of a small site with faults under `fair`, each preemption judged by the checker of the tests.

    python benchmarks/fair_years.py [--years 1] [--seeds 4] [--policy fair:backfill=easy ...]

Jobs come, are cancelled, held, preempted and requeued, and targets fail; whatever breaks a law is printed. Nothing of
the checker (tests/sched/preemption_judge.py) is shared with the policy. A year takes a minute or two.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from fluxsched.sched.registry import load

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.sched.faulty_site import FaultySite

YEAR_S = 365 * 86_400.0
SHOWN = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--years", type=float, default=0.1, help="of each seed")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--policy", action="append")
    parser.add_argument("--rate", type=int, default=60)
    parser.add_argument("--load", type=float, default=0.9)
    options = parser.parse_args()
    faults = 0
    for policy in options.policy or ["fair:backfill=easy"]:
        for seed in range(1, options.seeds + 1):
            begun_s = time.process_time()
            site = FaultySite(load(policy)[0], seed, options.rate, options.load)
            site.live(options.years * YEAR_S)
            counts, found = site.judge.counts, site.judge.faults
            print(
                f"{policy} seed {seed}: {site.works} jobs, {counts['preempted']} preempted for {counts['won']} others, "
                f"{len(found)} laws broken; {time.process_time() - begun_s:.0f} s",
                flush=True,
            )
            faults += len(found)
            print("".join(f"  {fault}\n" for fault in found[:SHOWN]), end="")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

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
from tests.sched.faulty_site import TIMEOUT_S, FaultySite

YEAR_S = 365 * 86_400.0
SHOWN = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--years", type=float, default=0.1, help="of each seed")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--policy", action="append")
    parser.add_argument("--rate", type=int, default=60)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--overdue", type=float, default=0.0, help="part of the jobs that run beyond their limit")
    parser.add_argument("--whole", action="store_true", help="all ask for whole nodes: planned by counting")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds until a victim is killed")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    options = parser.parse_args()
    site_options = {"overdue": options.overdue, "whole": options.whole, "timeout_s": options.timeout}
    judged = 0
    faults = 0
    for policy in options.policy or ["fair:backfill=easy"]:
        for seed in range(options.first, options.first + options.seeds):
            begun_s = time.process_time()
            site = FaultySite(load(policy)[0], seed, options.rate, options.load, **site_options)
            site.live(options.years * YEAR_S)
            counts, found = site.judge.counts, site.judge.faults
            print(
                f"{policy} seed {seed}: {site.works} jobs, {counts['preempted']} preempted for {counts['won']} others, "
                f"{len(found)} laws broken; {time.process_time() - begun_s:.0f} s",
                flush=True,
            )
            faults += len(found)
            judged += counts["preempted"]
            print("".join(f"  {fault}\n" for fault in found[:SHOWN]), end="")
    print(f"{judged} preemptions were judged, {faults} laws broken")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

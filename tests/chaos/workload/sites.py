"""The sites of simulated disasters: small ones, each with other queues, groups, schedulers and policies."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from tests.chaos.checkers.base import Site

CORES = 4
FOREIGN = Path(__file__).parents[1] / "world/foreign"
POLICIES = (
    "fifo", "easy", "conservative", "firstfit", "hybrid", "fair:backfill=easy", "fair:backfill=firstfit", "tree",
    f"{FOREIGN}/faulty_policy.py:rate=0.1",
)  # fmt: skip
PLUGIN = f"{FOREIGN}/faulty_plugin.py:rate=0.2"
RUNAWAY_S = 60.0
"""The longest duration of a job of queue `debug` (seconds)."""


ORPHAN_TIMEOUTS_S = 5.0, 10.0, 30.0, 30.0


@dataclass(frozen=True)
class ChaosSite:
    """What an instance is started with, and what is known of it."""

    config: str
    hosts: int
    site: Site
    policy: str
    has_lab_scheduler: bool
    """Else a stand-alone acquirer may have that group."""
    banks: tuple[str, ...]
    orphan_timeout_s: float = 0.0
    """How long keepers go on without the instance, where an engine holds the hosts; else 0 (seconds)."""


def make_hosts_site(chance: Random) -> ChaosSite:
    """A site of two to five hosts that an engine holds, each with a keeper."""
    hosts = chance.choice((2, 3, 3, 4, 5))
    made = make_site(chance, hosts)
    (kill_timeout_s,) = (float(found) for found in re.findall(r'^kill-timeout = "(\d+)s"$', made.config, re.MULTILINE))
    names = tuple(f"node{rank}" for rank in range(hosts))
    site = replace(made.site, hosts=names, kill_timeout_s=kill_timeout_s)
    return replace(made, site=site, orphan_timeout_s=chance.choice(ORPHAN_TIMEOUTS_S))


def make_site(chance: Random, hosts: int = 0) -> ChaosSite:
    """A site: so many hosts (by default three to six) of four cores, the last one or two in group `lab`."""
    hosts = hosts or chance.randint(3, 6)
    lab = set(range(hosts - min(chance.randint(1, 2), hosts - 1), hosts))
    policy = chance.choice(POLICIES)
    plugin = chance.random() < 0.1
    has_lab_scheduler = chance.random() < 0.5
    banks = ("physics", "chemistry") if policy.startswith("fair") else ()
    queues = {"batch": "default", "debug": "default", "lab": "lab"}
    site = Site(
        cores={rank: frozenset(range(CORES)) for rank in range(hosts)},
        groups={rank: "lab" if rank in lab else "default" for rank in range(hosts)},
        queues=queues,
        duration_max={"debug": RUNAWAY_S},
        nodes_max={"debug": 1},
    )
    config = _config(chance, hosts, lab, f"{policy}|{PLUGIN}" if plugin else policy, has_lab_scheduler, banks)
    by_config = Random(config)  # the other choices stay as they are
    if by_config.random() < 0.2:
        most = by_config.choice((3, 4, 5))
        config += f'[[limits]]\nqueue = "*"\nrunning = {most}\n'
        site = replace(site, running_max=dict.fromkeys(queues, most))
    return ChaosSite(config, hosts, site, policy, has_lab_scheduler, banks)


def _config(
    chance: Random, hosts: int, lab: set[int], policy: str, has_lab_scheduler: bool, banks: tuple[str, ...]
) -> str:
    restart = 1000 if "faulty" in policy else chance.choice((3, 20, 1000))
    lines = [
        "[[resource.config]]", f'hosts = "node[0-{hosts - 1}]"', f'cores = "0-{CORES - 1}"',
        "[resource]", 'heartbeat = "5s"',
        "[resource.groups]", f'lab = "{",".join(map(str, sorted(lab)))}"',
        "[policy.jobspec.defaults.system]", 'queue = "batch"',
        "[queues.batch]", "[queues.debug.policy]", f'limits.duration = "{RUNAWAY_S:g}s"',
        "limits.job-size.max.nnodes = 1", "[queues.lab]", 'group = "lab"',
        "[[scheduler]]", f'policy = "{policy}"', 'name = "sched-main"', f"restart = {restart}",
        "[exec]", f'kill-timeout = "{chance.choice((1, 5, 20))}s"', f'preempt-timeout = "{chance.choice((2, 30))}s"',
    ]  # fmt: skip
    if has_lab_scheduler:
        lines += ["[[scheduler]]", 'policy = "fifo"', 'name = "sched-lab"', 'groups = ["lab"]', "restart = 1000"]
    if banks:
        lines += ["[fair]", 'half-life = "10m"', "[fair.banks]", *(f"{bank} = 1" for bank in banks)]
    return "\n".join(lines) + "\n"

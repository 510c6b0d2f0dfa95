"""The sites of simulated disasters: small ones, each with other queues, groups, schedulers and policies."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from tests.chaos.checkers.base import SPARE_GROUP, Site

CORES, GPUS = 4, 2
PARTS, WITHHELD = 0.3, 0.3
"""Which share of the sites has drains of parts, and of these a core that is the system's."""
FOREIGN = Path(__file__).parents[1] / "world/foreign"
SPARES, SMALL_SPARE = 0.2, 0.3
"""Which share of the sites has spares, and of these one that is smaller than the hosts."""
PROGRAMS = 0.15
"""Which share of the sites has a prolog or an epilog."""
POLICIES = (
    "fifo", "easy", "conservative", "firstfit", "hybrid", "fair:backfill=easy", "fair:backfill=firstfit", "tree",
    f"{FOREIGN}/faulty_policy.py:rate=0.1",
)  # fmt: skip
PLUGIN = f"{FOREIGN}/faulty_plugin.py:rate=0.2"
RUNAWAY_S = 60.0
"""The longest duration of a job of queue `debug` (seconds)."""


REAL_SPARES, HEALTH = 0.3, 0.3
"""Which share of the sites whose hosts an engine holds has spares, and which checks their health."""
HEALTH_TIMEOUT_S = 2.0
ORPHAN_TIMEOUTS_S = 5.0, 10.0, 30.0, 30.0


@dataclass(frozen=True)
class ChaosSite:
    """What an instance is started with, and what is known of it."""

    config: str
    hosts: int
    """How many there are beside the spares, which have the ranks from there on."""
    site: Site
    policy: str
    has_lab_scheduler: bool
    """Else a stand-alone acquirer may have that group."""
    banks: tuple[str, ...]
    has_parts: bool = False
    """Whether parts of targets are drained."""
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


def with_spares_and_health(chance: Random, made: ChaosSite) -> ChaosSite:
    """The same site, of hosts that an engine holds, now and then with one or both of these."""
    if chance.random() < REAL_SPARES:
        made = _with_spares(chance, made)
        names = tuple(f"node{rank}" for rank in made.site.cores)
        made = replace(made, site=replace(made.site, hosts=names))
    if chance.random() < HEALTH:
        when = chance.choice(("start,idle,end", "start,idle", "idle,end"))
        lines = ["[health]", 'program = "/bin/sh health"', 'interval = "5s"', f'when = "{when}"']
        config = "\n".join((made.config.rstrip(), *lines, f'timeout = "{HEALTH_TIMEOUT_S:g}s"', ""))
        is_first = when.startswith("start")
        site = replace(made.site, health_timeout_s=HEALTH_TIMEOUT_S, is_checked_at_start=is_first)
        made = replace(made, config=config, site=site)
    return made


def make_site(chance: Random, hosts: int = 0) -> ChaosSite:
    """A site: so many hosts (by default three to six) of four cores, the last one or two in group `lab`."""
    is_held, hosts = bool(hosts), hosts or chance.randint(3, 6)
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
    by_config = _chance("", config)  # the other choices stay as they are
    if by_config.random() < 0.2:
        most = by_config.choice((3, 4, 5))
        config += f'[[limits]]\nqueue = "*"\nrunning = {most}\n'
        site = replace(site, running_max=dict.fromkeys(queues, most))
    by_config = _chance("parts ", config)
    has_parts = by_config.random() < PARTS
    if has_parts:
        config = config.replace(f'cores = "0-{CORES - 1}"', f'cores = "0-{CORES - 1}"\ngpus = "0-{GPUS - 1}"')
    if has_parts and by_config.random() < WITHHELD:  # of a host that has one more than the others
        entry, rest = config.split("[resource]\n", 1)
        own = entry.replace(f"node[0-{hosts - 1}]", "node0").replace(f"0-{CORES - 1}", f"0-{CORES}")
        others = entry.replace(f"node[0-{hosts - 1}]", f"node[1-{hosts - 1}]")
        config = f'{own}{others}[resource]\nwithhold = "0@node0"\n{rest}'
        site = replace(site, cores={**site.cores, 0: frozenset(range(1, CORES + 1))})
    made = ChaosSite(config, hosts, site, policy, has_lab_scheduler, banks, has_parts)
    by_config = _chance("spares ", config)
    if not is_held and by_config.random() < SPARES:
        made = _with_spares(by_config, made)
    by_config = _chance("programs ", config)
    return _with_programs(by_config, made) if by_config.random() < PROGRAMS else made


def _chance(what: str, config: str) -> Random:
    """Chances of a site's own, the same wherever the checkout is whose path a foreign policy or plugin has."""
    return Random(what + config.replace(str(FOREIGN), "foreign"))


def _with_programs(chance: Random, made: ChaosSite) -> ChaosSite:
    """The same site with a prolog, an epilog, or both."""
    prolog, epilog = chance.choice((("host", "host"), ("host", "job"), ("job", "host"), ("host", ""), ("", "host")))
    config, timeout_s = made.config, chance.choice((2, 5))
    for what, per in (("prolog", prolog), ("epilog", epilog)):
        if per:
            config += f'[{what}]\nprogram = "/bin/sh {what}"\nper = "{per}"\ntimeout = "{timeout_s}s"\n'
    return replace(made, config=config, site=replace(made.site, prolog=prolog, epilog=epilog))


def _with_spares(chance: Random, made: ChaosSite) -> ChaosSite:
    """The same site with one or two spares more, the first of which may be smaller than what it would replace."""
    ranks = range(made.hosts, made.hosts + chance.choice((1, 1, 2)))
    cores = {rank: frozenset(range(CORES)) for rank in ranks}
    if chance.random() < SMALL_SPARE:
        cores[ranks[0]] = frozenset(range(2))
    gpus = f'gpus = "0-{GPUS - 1}"\n' if made.has_parts else ""
    entries = [
        f'[[resource.config]]\nhosts = "node{rank}"\ncores = "0-{max(ids)}"\n{gpus}' for rank, ids in cores.items()
    ]
    spares = f'spares = "{",".join(map(str, ranks))}"'
    config = made.config.replace("[resource]\n", f"{''.join(entries)}[resource]\n{spares}\n")
    site = replace(
        made.site, cores={**made.site.cores, **cores}, groups={**made.site.groups, **dict.fromkeys(ranks, SPARE_GROUP)}
    )
    return replace(made, config=config, site=site)


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

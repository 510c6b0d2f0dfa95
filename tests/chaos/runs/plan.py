"""All that one run consists of, made from a seed: the site, what clients do, what goes wrong; or a part of that."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from random import Random

from tests.chaos.faults.faults import SLIPS, Fault, make_faults, make_host_faults, make_resize_faults, steps_s
from tests.chaos.runs import crash_points, host_points
from tests.chaos.workload.actions import Action
from tests.chaos.workload.generated import USERS, long_job, make_actions
from tests.chaos.workload.maintenance import make_bookings, make_maintenance, make_turn_faults
from tests.chaos.workload.sites import ChaosSite, make_hosts_site, make_site, with_spares_and_health

SMALL_SEEDS = 200
"""The first seeds are small, for they run in the test suite."""
SMALL = 10, 4, 15.0
SIZES = (SMALL, SMALL, SMALL, SMALL, (25, 6, 60.0), (60, 10, 200.0))
"""Actions, faults, and the time in which they happen (seconds)."""
CRASH_POINTS = 1_000_000
"""The seeds from here on are those of runs/crash_points.py."""
HOSTS = 2_000_000
"""The seeds from here on have hosts that an engine holds."""
HOST_POINTS = 3_000_000
"""The seeds from here on are those of runs/host_points.py."""
BOOKED = 4_000_000
"""The seeds from here on are short, with reservations, outages of the configuration, and deadlines."""
BOOKED_SIZE = 3, 2, 30.0
HOSTS_SIZES = (8, 3, 30.0), (12, 5, 60.0), (16, 8, 120.0)
LONG_EVERY = 8
"""Every so many of these seeds has a long job on all hosts, one of which is cut off when its lease begins to matter."""
LONG_S = 2.0, 10.0
LONG_SIZE = 4, 1, 70.0
RESIZE_EVERY = 3
"""After the small ones every third seed is one of jobs that grow and shrink."""
RESIZES = 8, 2, 240.0
RESIZE_FAULTS = 8
"""These come at steps of jobs to another size."""


@dataclass(frozen=True)
class Plan:
    """One run. Actions and faults keep the numbers that they have in the whole plan."""

    seed: int
    site: ChaosSite
    actions: tuple[tuple[int, Action], ...]
    faults: tuple[tuple[int, Fault], ...]
    horizon_s: float

    def only(self, actions: Collection[int], faults: Collection[int]) -> Plan:
        """The same with these actions and faults alone."""
        kept_actions = tuple(one for one in self.actions if one[0] in actions)
        kept_faults = tuple(one for one in self.faults if one[0] in faults)
        return Plan(self.seed, self.site, kept_actions, kept_faults, self.horizon_s)


def has_resizes(seed: int) -> bool:
    """Whether the plan of a seed is one of jobs that grow and shrink."""
    return SMALL_SEEDS <= seed < HOSTS and seed % RESIZE_EVERY == 0


def make_plan(seed: int) -> Plan:
    """The plan of a seed."""
    if seed >= BOOKED:
        return _short_plan(seed)
    if seed >= HOST_POINTS:
        site, done, planned = host_points.make_host_point(seed - HOST_POINTS)
        return Plan(seed, site, tuple(enumerate(done)), tuple(enumerate(planned)), host_points.HORIZON_S)
    if seed >= HOSTS:
        return _plan_of_hosts(seed)
    if seed >= CRASH_POINTS:
        site, done, planned = crash_points.make_crash_point(seed - CRASH_POINTS)
        return Plan(seed, site, tuple(enumerate(done)), tuple(enumerate(planned)), crash_points.HORIZON_S)
    chance = Random(f"plan {seed}")
    actions, faults, horizon_s = SMALL if seed < SMALL_SEEDS else chance.choice(SIZES)
    resizes = has_resizes(seed)
    if resizes:
        actions, faults, horizon_s = RESIZES
    site_chance, fault_chance, action_chance = (Random(chance.random()) for _ in range(3))
    site = make_site(site_chance)
    done = make_actions(action_chance, site, actions, horizon_s, resizes=resizes)
    times_s = [action.at_s for action in done]
    planned = make_faults(fault_chance, times_s, faults, horizon_s)
    if resizes:
        planned += make_resize_faults(fault_chance, times_s, RESIZE_FAULTS, horizon_s)
    chance = Random(f"maintenance {seed}")
    more = make_maintenance(chance, site, 3 + actions // 10, horizon_s)
    if seed >= SMALL_SEEDS:
        more += make_bookings(Random(f"bookings {seed}"), site, 2 + actions // 20, horizon_s)
    done, planned = done + more, planned + make_turn_faults(chance, more, horizon_s)
    # of the whole plan, also where a fault is left out: limits are only wider
    site = replace(site, site=replace(site.site, steps_s=steps_s(planned)))
    in_time = tuple(one for one in enumerate(done) if one[1].at_s <= horizon_s)
    return Plan(seed, site, in_time, tuple(enumerate(planned)), horizon_s)


def _short_plan(seed: int) -> Plan:
    """The plan of a seed with bookings and few other things."""
    chance = Random(f"booked {seed}")
    actions, faults, horizon_s = BOOKED_SIZE
    site = make_site(chance)
    done = make_actions(chance, site, actions, horizon_s)
    done += make_bookings(chance, site, 2, horizon_s, is_due=True)
    planned = make_faults(chance, [one.at_s for one in done], faults, horizon_s)
    site = replace(site, site=replace(site.site, steps_s=steps_s(planned)))
    in_time = tuple(one for one in enumerate(done) if one[1].at_s <= horizon_s)
    return Plan(seed, site, in_time, tuple(enumerate(planned)), horizon_s)


def _plan_of_hosts(seed: int) -> Plan:
    """The plan of a seed whose hosts, links and keepers fail."""
    chance, is_long = Random(f"hosts {seed}"), seed % LONG_EVERY == LONG_EVERY - 1
    actions, faults, horizon_s = LONG_SIZE if is_long else chance.choice(HOSTS_SIZES)
    site_chance, fault_chance, action_chance = (Random(chance.random()) for _ in range(3))
    site = with_spares_and_health(Random(f"more {seed}"), make_hosts_site(site_chance))
    done = make_actions(action_chance, site, actions, horizon_s)
    planned = make_host_faults(fault_chance, [one.at_s for one in done], site.site.hosts, faults, horizon_s)
    is_slow = any(fault.kind in ("slow-host", "stop-host", "hang", "delay", "fail-starts") for fault in planned)
    site = replace(site, site=replace(site.site, is_slow=is_slow))
    done += make_maintenance(Random(f"maintenance {seed}"), site, 2, horizon_s)
    done += make_bookings(Random(f"bookings {seed}"), site, 2, horizon_s)
    if is_long:
        begins_s, cut_s = LONG_S
        done.append(Action(begins_s, USERS[0], "submit", long_job(site)))
        planned.append(Fault(cut_s, "slip-host", site.site.hosts[0], SLIPS[-1]))
    in_time = tuple(one for one in enumerate(done) if one[1].at_s <= horizon_s)
    return Plan(seed, site, in_time, tuple(enumerate(planned)), horizon_s)

"""What goes wrong, as values: a fault has a time (or the number of an effect), a kind, a victim and an amount."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from tests.chaos.world.world import World


class Fault(NamedTuple):
    """One fault. What `amount` means depends on the kind: seconds, or a number of effects."""

    at_s: float
    kind: str
    victim: str
    amount: float


CLIENTS = (
    "ann",
    "bob",
    "ops",
    "watcher",
    "reader",
    "acquirer-lab",
    "acquirer-spare",
    "sched-main",
    "sched-lab",
)
KINDS = {
    "kill-instance": 8, "kill-instance-at-effect": 10, "kill-scheduler": 3, "kill-scheduler-at-effect": 3,
    "kill-keeper": 2, "kill-keeper-at-effect": 2, "kill-agent": 1, "silence": 2, "cut": 5, "delay": 4, "slow": 3,
    "hang": 2, "disk-full": 2, "disk-failing": 1, "disk-torn": 2, "step-clock": 2,
}  # fmt: skip
DELAYS_S = (0.01, 0.5, 5.0)
STEPS_S = (-20.0, -3.0, 3.0, 40.0)


USUAL_S = (0.0, 0.0, 0.0, 0.05, 0.3, 1.0)
"""How long messages take in a run from its begin on: the longer, the more they cross each other."""
AFTER_S = (0.0, 0.003, 0.006, 0.01, 0.1, 1.0, 5.0)
"""How long after an action most faults come (seconds): within what it sets off."""


def make_faults(chance: Random, actions_s: Sequence[float], count: int, horizon_s: float) -> list[Fault]:
    """`count` faults in order of time, most of them soon after one of the actions."""
    kinds, weights = tuple(KINDS), tuple(KINDS.values())
    times: list[float] = []
    usual_s = chance.choice(USUAL_S)
    begin = [Fault(0.0, "delay", "", usual_s)] if usual_s else []
    for _ in range(count):
        if actions_s and chance.random() < 0.7:
            times.append(chance.choice(actions_s) + chance.choice(AFTER_S) * chance.random())
        else:
            times.append(chance.uniform(0.0, horizon_s))
    return begin + [
        _fault(chance, chance.choices(kinds, weights)[0], min(round(at_s, 4), horizon_s)) for at_s in sorted(times)
    ]


def _fault(chance: Random, kind: str, at_s: float) -> Fault:
    victim, amount = "", 0.0
    match kind:
        case "kill-scheduler" | "kill-scheduler-at-effect":
            victim = chance.choice(("sched-main", "sched-lab"))
        case "kill-agent" | "silence":
            victim, amount = f"node{chance.randrange(6)}", chance.choice((8.0, 20.0, 70.0))
        case "cut":
            victim = chance.choice(CLIENTS)
        case "slow":
            victim, amount = chance.choice(CLIENTS), chance.choice((2.0, 15.0))
        case "delay":
            victim, amount = chance.choice(("", *CLIENTS)), chance.choice(DELAYS_S)
        case "hang":
            victim, amount = (
                chance.choice(("instance", "keeper", "sched-main", "sched-lab")),
                chance.choice((0.5, 5.0, 20.0)),
            )
        case "disk-full" | "disk-failing":
            amount = chance.choice((0.5, 10.0, 40.0))
        case "step-clock":
            amount = chance.choice(STEPS_S)
    if kind.endswith("at-effect"):
        most = chance.choice((4, 12, 60, 400))
        amount = float(chance.randint(1, most))
    return Fault(at_s, kind, victim, amount)


SLIPS = 0.3, 0.85
"""Which share of the lease is over when something slips through to a host that is cut off."""
SLIPPED_S = 60.0
"""How long a host stays cut off after what was held up has got through to it (seconds)."""
HOST_KINDS = {
    "kill-instance": 6, "kill-instance-at-effect": 8, "hang": 1, "kill-host-keeper": 4, "kill-host-keeper-at-effect": 5,
    "late-guard": 3, "crash-host": 4, "cut-host": 8, "slip-host": 3, "slow-host": 3, "stop-host": 4, "fail-starts": 3,
    "kill-scheduler": 1, "delay": 1, "disk-full": 1, "disk-torn": 1,
}  # fmt: skip
"""What goes wrong where an engine holds the hosts, and how often beside the others."""
OF_HOSTS = frozenset(kind for kind in HOST_KINDS if "host" in kind) | {"late-guard", "fail-starts"}


def make_host_faults(
    chance: Random, actions_s: Sequence[float], hosts: Sequence[str], count: int, horizon_s: float
) -> list[Fault]:
    """`count` faults of hosts, their keepers, the instance and what lies between, in order of time."""
    kinds, weights = tuple(HOST_KINDS), tuple(HOST_KINDS.values())
    made: list[Fault] = []
    for at_s in sorted(_time(chance, actions_s, horizon_s) for _ in range(count)):
        kind = chance.choices(kinds, weights)[0]
        made.append(_of_host(chance, kind, at_s, hosts) if kind in OF_HOSTS else _fault(chance, kind, at_s))
    return made


def _time(chance: Random, actions_s: Sequence[float], horizon_s: float) -> float:
    """Most are soon after one of the actions."""
    if actions_s and chance.random() < 0.7:
        at_s = chance.choice(actions_s) + chance.choice(AFTER_S) * chance.random()
    else:
        at_s = chance.uniform(0.0, horizon_s)
    return min(round(at_s, 4), horizon_s)


def _of_host(chance: Random, kind: str, at_s: float, hosts: Sequence[str]) -> Fault:
    victim, amount = chance.choice(hosts), 0.0
    match kind:
        case "kill-host-keeper-at-effect":
            amount = float(chance.randint(1, chance.choice((4, 12, 60))))
        case "crash-host":
            amount = chance.choice((0.0, 0.5, 5.0, 30.0, 90.0))
        case "cut-host":
            victim += chance.choice((":up", ":down", ":both"))
            amount = chance.choice((0.5, 5.0, 12.0, 30.0, 90.0))
        case "slip-host":
            amount = chance.choice(SLIPS)
        case "slow-host":
            amount = chance.choice((0.05, 0.5, 3.0, 12.0))
        case "stop-host":
            amount = chance.choice((0.5, 5.0, 15.0, 60.0))
        case "fail-starts":
            amount = chance.choice((1.0, 10.0))
    return Fault(at_s, kind, victim, amount)


AT_RESIZES = ("grow", "grow", "shrink", "shrink", "grow-answered", "shrink-answered", "tasks-came", "tasks-left")
KILLED_AT_RESIZES = ("instance", "instance", "instance", "keeper", "sched-main")
AT = "-at-"


def make_resize_faults(chance: Random, actions_s: Sequence[float], count: int, horizon_s: float) -> list[Fault]:
    """`count` faults at steps of jobs to another size, in order of the time from which on that step is awaited."""
    times = sorted(round(chance.choice(actions_s) if actions_s else 0.0, 4) for _ in range(count))
    return [_at_resize(chance, min(at_s, horizon_s)) for at_s in times]


def _at_resize(chance: Random, at_s: float) -> Fault:
    step = chance.choice(AT_RESIZES)
    if chance.random() < 0.15:
        return Fault(at_s, f"disk-full{AT}{step}", "", chance.choice((0.5, 10.0)))
    effects = chance.randint(1, chance.choice((4, 6, 12)))
    return Fault(at_s, f"kill{AT}{step}", chance.choice(KILLED_AT_RESIZES), float(effects))


def bring_about(world: World, fault: Fault) -> None:
    """Do it now."""
    match fault.kind:
        case "kill-instance":
            world.kill("instance")
        case "kill-instance-at-effect":
            world.kill_at_effect("instance", int(fault.amount))
        case "kill-keeper":
            world.kill("keeper")
        case "kill-keeper-at-effect":
            world.kill_at_effect("keeper", int(fault.amount))
        case "kill-scheduler":
            world.kill(fault.victim)
        case "kill-scheduler-at-effect":
            world.kill_at_effect(fault.victim, int(fault.amount))
        case "kill-agent":
            world.kill(f"agent-{fault.victim}")
        case "silence":
            world.silence(fault.victim, world.now_s + fault.amount)
        case "cut":
            world.cut(fault.victim)
        case "delay":
            world.delay(fault.victim or None, 0.0, fault.amount)
        case "slow":
            world.slow(fault.victim, world.now_s + fault.amount)
        case "hang":
            world.hang(fault.victim, world.now_s + fault.amount)
        case "disk-full":
            _fill_disk(world, fault.amount)
        case "disk-failing":
            world.disk_failing(True)
            world.at(world.now_s + fault.amount, lambda: world.disk_failing(False))
        case "disk-torn":
            world.disk_torn(True)
        case "step-clock":
            world.step_clock(None, fault.amount)
        case kind if kind in OF_HOSTS:
            _bring_on_host(world, fault)
        case kind if kind.startswith(f"kill{AT}"):
            world.when(kind.partition(AT)[2], lambda: world.kill_at_effect(fault.victim, int(fault.amount)))
        case kind if kind.startswith(f"disk-full{AT}"):
            world.when(kind.partition(AT)[2], lambda: _fill_disk(world, fault.amount))


def _bring_on_host(world: World, fault: Fault) -> None:
    host, _, way = fault.victim.partition(":")
    hosts, until_s = world.hosts, world.now_s + fault.amount
    if not fault.kind.startswith("kill"):
        world.recorder.fault(f"{fault.kind} {fault.victim} {fault.amount:g}")
    match fault.kind:
        case "kill-host-keeper":
            world.kill(f"keeper-{host}")
        case "kill-host-keeper-at-effect":
            world.kill_at_effect(f"keeper-{host}", int(fault.amount))
        case "late-guard":
            world.kill_keeper_of(host)
        case "crash-host":
            hosts.crash(host, fault.amount)
        case "cut-host":
            hosts.cut(host, way, until_s)
        case "slip-host":
            hosts.slip(host, fault.amount, SLIPPED_S)
        case "slow-host":
            hosts.slow(host, fault.amount)
        case "stop-host":
            hosts.all[host].stop(until_s)
        case "fail-starts":
            hosts.fail_starts(host, until_s)


def _fill_disk(world: World, lasts_s: float) -> None:
    world.disk_full(True)
    world.at(world.now_s + lasts_s, lambda: world.disk_full(False))


def steps_s(faults: list[Fault]) -> float:
    """By how much the clocks are stepped in all."""
    return sum(abs(fault.amount) for fault in faults if fault.kind == "step-clock")

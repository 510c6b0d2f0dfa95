"""What the clients of one run do: a list of actions that follows from chance alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tests.chaos.checkers.base import DRAIN_REASON
from tests.chaos.wire import text_of
from tests.chaos.workload.actions import Action
from tests.chaos.workload.sites import CORES, RUNAWAY_S, ChaosSite

USERS = ("ann", "bob")
ADMINISTRATOR = "ops"
RUNS_S = (0.0, 0.2, 1.0, 3.0, 10.0, 40.0, 300.0)


def make_actions(
    chance: Random, site: ChaosSite, count: int, horizon_s: float, *, resizes: bool = False
) -> list[Action]:
    """`count` actions in order of time; every second one submits. `resizes`: most have jobs grow and shrink. Where
    an engine holds hosts, most have jobs on several.
    """
    made: list[Action] = []
    kinds = _HOSTS if site.orphan_timeout_s else _RESIZES if resizes else _KINDS
    for at_s in sorted(round(chance.uniform(1.0, horizon_s), 3) for _ in range(count)):
        make = chance.choices(*kinds)[0]
        made += make(chance, site, at_s, made)
    return made


def _submit(chance: Random, site: ChaosSite, at_s: float, made: list[Action]) -> Iterator[Action]:
    run_s = chance.choice(RUNS_S)
    queue = chance.choice(("batch", "batch", "debug", "lab"))
    group = site.site.queues[queue]
    nodes = min(chance.choice((0, 0, 0, 1, 2)), list(site.site.groups.values()).count(group))
    duration_s = chance.choice((RUNAWAY_S, RUNAWAY_S, 20.0, 120.0))
    wanted: dict[str, Any] = {
        "count": chance.choice((1, 1, 1, 2, 5, 12)), "urgency": chance.choice((16, 16, 16, 20, 31, 0)),
        "cores": chance.randint(1, CORES), "nodes": nodes, "run_s": run_s, "duration_s": duration_s, "queue": queue,
    }  # fmt: skip
    if chance.random() < 0.1:
        wanted["status"] = 256
    if chance.random() < 0.1:
        wanted["stubborn"] = True
    elif chance.random() < 0.3:
        wanted["simulated"] = True
    hosts = list(site.site.groups.values()).count(group)
    if queue != "debug" and chance.random() < 0.15:
        wanted |= _elastic(chance, hosts)
    if site.banks:
        wanted["bank"] = chance.choice(site.banks)
    if chance.random() < 0.4:
        wanted["preemptible_after_s"] = chance.choice((0.0, 0.0, 5.0))
        wanted["requeue"] = chance.choice((0, 1, 3))
    submits = _submits(made)
    if submits and chance.random() < 0.15:
        wanted["after"] = (chance.choice(("afterok", "afterany", "after")), chance.choice(submits), 0)
    yield Action(at_s, chance.choice(USERS), "submit", wanted)


def _elastic(chance: Random, hosts: int) -> dict[str, Any]:
    """One that grows and shrinks, of one part or, where there is room, of a lead and workers."""
    least = min(hosts, chance.choice((1, 1, 2)))
    parts = {"task": (least, chance.choice((2, 3, 6)) + least - 1)}
    if hosts > 1 and chance.random() < 0.4:
        parts = {"lead": (1, 1), "workers": (1, chance.choice((2, 4)))}
    return {
        "parts": parts, "cores": chance.choice((1, CORES)), "nodes": 0, "count": chance.choice((1, 1, 2)),
        "run_s": chance.choice((0.2, 1.0, 3.0, 20.0)), "duration_s": chance.choice((RUNAWAY_S, 120.0)),
    }  # fmt: skip


def _spread(chance: Random, site: ChaosSite, at_s: float, made: list[Action]) -> Iterator[Action]:
    """One on several hosts, where the group has them."""
    for submit in _submit(chance, site, at_s, made):
        wanted = submit.arguments
        hosts = list(site.site.groups.values()).count(site.site.queues[wanted["queue"]])
        if wanted["queue"] != "debug" and "parts" not in wanted:
            wanted |= {"nodes": chance.randint(min(2, hosts), hosts), "simulated": False}
        yield submit


def _squeezed(chance: Random, site: ChaosSite, at_s: float, made: list[Action]) -> Iterator[Action]:
    """A long one that has all there is, and others that then want some of it for a while."""
    number, queue = len(made), chance.choice(("batch", "batch", "lab"))
    hosts = list(site.site.groups.values()).count(site.site.queues[queue])
    wanted = {"urgency": 16, "queue": queue} | _elastic(chance, hosts) | {"count": 1, "duration_s": 0.0}
    if site.banks:
        wanted["bank"] = site.banks[0]
    yield Action(at_s, USERS[0], "submit", wanted | {"run_s": chance.choice((20.0, 40.0, 90.0))})
    yield Action(round(at_s + chance.uniform(0.1, 5.0), 3), USERS[0], "changes", {"of": number, "nth": 0})
    for _ in range(chance.choice((1, 1, 2))):
        others = {
            "urgency": 16, "queue": queue, "count": chance.choice((1, 2)), "cores": chance.choice((1, CORES)),
            "nodes": min(hosts, chance.choice((0, 1))), "run_s": chance.choice((0.2, 3.0, 20.0)),
            "duration_s": RUNAWAY_S,
        }  # fmt: skip
        if site.banks:
            others["bank"] = site.banks[-1]
        yield Action(round(at_s + chance.uniform(0.1, 15.0), 3), USERS[-1], "submit", others)


def _resized(chance: Random, site: ChaosSite, at_s: float, made: list[Action]) -> Iterator[Action]:
    """Short ones, beside which a long one has its minimum; it grows by what they leave, and shrinks for others."""
    queue = chance.choice(("batch", "batch", "batch", "lab"))
    hosts = list(site.site.groups.values()).count(site.site.queues[queue])
    bank = {"bank": chance.choice(site.banks)} if site.banks else {}
    node = {"urgency": 16, "queue": queue, "cores": CORES, "nodes": 1, "duration_s": RUNAWAY_S} | bank
    short = {"count": chance.randint(1, max(1, hosts - 1)), "run_s": chance.choice((0.2, 1.0, 3.0))}
    yield Action(at_s, USERS[0], "submit", node | short)
    number = len(made)
    parts = {"task": (1, 6)} if hosts < 2 or chance.random() < 0.6 else {"lead": (1, 1), "workers": (1, 4)}
    long = {"parts": parts, "nodes": 0, "count": 1, "run_s": chance.choice((10.0, 40.0, 200.0)), "duration_s": 0.0}
    later_s = round(at_s + chance.choice((0.0, 0.1, 0.5)), 3)
    yield Action(later_s, USERS[0], "submit", node | long)
    yield Action(round(later_s + 0.3, 3), USERS[0], "changes", {"of": number, "nth": 0})
    if chance.random() < 0.3:
        what = {"of": number, "nth": 0, "step": chance.choice(("grow", "grow", "shrink", "tasks-left"))}
        yield Action(round(later_s + 0.4, 3), USERS[0], "cancel-at", what)
    for _ in range(chance.choice((0, 1, 2))):
        others = {"count": chance.choice((1, 1, 2)), "run_s": chance.choice((0.2, 3.0, 20.0))}
        yield Action(round(later_s + chance.uniform(1.0, 20.0), 3), USERS[-1], "submit", node | others)


def long_job(site: ChaosSite) -> dict[str, Any]:
    """One on all hosts of a group, which would outlast all else."""
    wanted: dict[str, Any] = {
        "count": 1, "urgency": 31, "queue": "batch", "cores": 1, "run_s": RUNS_S[-1], "duration_s": 0.0,
        "nodes": list(site.site.groups.values()).count("default"),
    }  # fmt: skip
    return wanted | ({"bank": site.banks[0]} if site.banks else {})


def _submits(made: list[Action]) -> list[int]:
    return [number for number, action in enumerate(made) if action.verb == "submit"]


def _of_job(verb: str, *values: dict[str, Any]) -> Callable[..., Iterator[Action]]:
    def make(chance: Random, site: ChaosSite, at_s: float, made: list[Action]) -> Iterator[Action]:
        submits = _submits(made)
        if submits:
            of = chance.choice(submits[-6:])
            arguments = {"of": of, "nth": chance.randrange(12)} | chance.choice(values)
            yield Action(at_s, made[of].actor, verb, arguments)

    return make


def _submit_and_cancel(chance: Random, site: ChaosSite, at_s: float, made: list[Action]) -> Iterator[Action]:
    for submit in _submit(chance, site, at_s, made):
        submit.arguments["cancel_s"] = chance.choice((0.0, 0.0, 0.001, 0.1, 1.0))
        yield submit


def _targets(chance: Random, site: ChaosSite) -> str:
    return text_of(set(chance.sample(range(site.hosts), chance.choice((1, 1, 1, 2)))))


def _later(chance: Random, at_s: float) -> float:
    return round(at_s + chance.choice((0.1, 1.0, 5.0, 40.0, 200.0)) * chance.random(), 3)


def _drain(chance: Random, site: ChaosSite, at_s: float, made: list[Action]) -> Iterator[Action]:
    targets = _targets(chance, site)
    mode = chance.choice(({}, {"mode": "update"}, {"mode": "overwrite"}))
    only: dict[str, Any] = {}
    if mode and round(1000.0 * at_s) % 2:  # without a draw: a seed makes the same of all else as ever
        mode, only = {"mode": "add"}, {"only": DRAIN_REASON}
    yield Action(at_s, ADMINISTRATOR, "resource.drain", {"targets": targets, "reason": DRAIN_REASON} | mode)
    if chance.random() < 0.7:
        later_s = _later(chance, at_s)
        yield Action(later_s, ADMINISTRATOR, "resource.undrain", {"targets": targets} | only)


def _move(chance: Random, site: ChaosSite, at_s: float, made: list[Action]) -> Iterator[Action]:
    targets = _targets(chance, site)
    if chance.random() < 0.4:
        yield Action(at_s, ADMINISTRATOR, "resource.include", {"targets": targets})
    else:
        group = chance.choice(("lab", "lab", "default", "exclude", "spare"))
        yield Action(at_s, ADMINISTRATOR, "resource.assign", {"targets": targets, "group": group})


def _queue(chance: Random, site: ChaosSite, at_s: float, made: list[Action]) -> Iterator[Action]:
    what = chance.choice(("start", "start", "enable"))
    where: dict[str, Any] = chance.choice(({"name": "batch"}, {"name": "debug"}, {"name": "lab"}, {"all": True}))
    yield Action(at_s, ADMINISTRATOR, f"job-manager.queue-{what}", where | {what: False, "reason": "tests"})
    later_s = _later(chance, at_s)
    yield Action(later_s, ADMINISTRATOR, f"job-manager.queue-{what}", where | {what: True})


def _ask(chance: Random, site: ChaosSite, at_s: float, made: list[Action]) -> Iterator[Action]:
    topic = chance.choice(("resource.status", "resource.groups", "job-manager.queue-status", "resource.sched-status"))
    arguments = {"name": chance.choice(("batch", "debug", "lab"))} if topic.endswith("queue-status") else {}
    if chance.random() < 0.2:
        topic, arguments = "module.stats", {"name": "sched-main"}
    yield Action(at_s, ADMINISTRATOR, topic, arguments)


def _list(chance: Random, site: ChaosSite, at_s: float, made: list[Action]) -> Iterator[Action]:
    yield Action(at_s, chance.choice(USERS), "list", {})


def _reload(chance: Random, site: ChaosSite, at_s: float, made: list[Action]) -> Iterator[Action]:
    if chance.random() < 0.5:
        yield Action(at_s, ADMINISTRATOR, "config.reload", {})
    else:
        yield Action(at_s, ADMINISTRATOR, "module.reload", {"name": "sched-main"})


def _clients(chance: Random, site: ChaosSite, at_s: float, made: list[Action]) -> Iterator[Action]:
    actor = chance.choice((*USERS, "watcher", "reader", "acquirer-spare", "acquirer-other", "acquirer-lab"))
    if actor.startswith("acquirer"):
        yield Action(at_s, actor, chance.choice(("give-up", "acquire", "hang-up")), {})
    else:
        yield Action(at_s, actor, "hang-up", {})


Make = Callable[[Random, ChaosSite, float, list[Action]], Iterator[Action]]
_KINDS: tuple[tuple[Make, ...], tuple[int, ...]] = (
    (
        _submit, _submit_and_cancel, _squeezed,
        _of_job("cancel", {}), _of_job("urgency", {"urgency": 0}, {"urgency": 16}, {"urgency": 31}),
        _of_job("wait", {}), _of_job("changes", {}), _of_job("eventlog", {"follow": True}, {}),
        _of_job("lookup", {"keys": ["eventlog", "R"]}),
        _drain, _move, _queue, _ask, _list, _reload, _clients,
    ),
    (24, 5, 3, 4, 4, 2, 1, 2, 1, 9, 9, 4, 4, 2, 1, 5),
)  # fmt: skip
"""What may be done, and how often beside the others."""
_RESIZES: tuple[tuple[Make, ...], tuple[int, ...]] = (
    (_resized, _submit, _drain, _move, _queue, _reload, _clients),
    (14, 1, 1, 1, 1, 1, 1),
)
_HOSTS: tuple[tuple[Make, ...], tuple[int, ...]] = (
    (
        _spread, _submit, _submit_and_cancel, _resized, _squeezed, _of_job("cancel", {}), _of_job("wait", {}), _drain,
        _move, _queue, _list, _reload, _clients,
    ),
    (30, 8, 4, 6, 2, 5, 1, 2, 1, 1, 1, 1, 2),
)  # fmt: skip

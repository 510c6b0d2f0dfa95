"""What instances answer that commands are shown at: the small ones of tests, and by name those of golden files."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from fluxsched.core.constraint import parse_targets
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import FluxschedError, RPCError

Answers = dict[str, Any]


def _outage_added(asked: dict[str, Any]) -> dict[str, Any]:
    return {"name": asked.get("name") or ("talk" if asked.get("reservation") else "upd")}


NOW_S = 1700000100.0


def r_of(lite: list[dict[str, Any]], nodelist: str, **properties: str) -> dict[str, Any]:
    more = {"properties": properties} if properties else {}
    return {
        "version": 1,
        "execution": {"R_lite": lite, "starttime": 0.0, "expiration": 0.0, "nodelist": [nodelist], **more},
    }


WHOLE = r_of([{"rank": "0-3", "children": {"core": "0-3", "gpu": "0"}}], "node[0-3]", ssd="0-1")


def targets_of(R: dict[str, Any] = WHOLE) -> Callable[[dict[str, Any]], dict[str, Any]]:  # noqa: N803
    """Make what answers `resource.targets` for this R: ranks, hosts and properties."""

    def answer(payload: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"targets": str(parse_targets(payload["targets"], ResourceSet.parse(R)))}
        except FluxschedError as error:
            raise RPCError(str(error), error.errnum) from None

    return answer


def sched_status() -> dict[str, Any]:
    """Four nodes: two cores of node0 allocated, node3 down."""
    return {
        "all": copy.deepcopy(WHOLE),
        "down": r_of([{"rank": "3", "children": {"core": "0-3", "gpu": "0"}}], "node3"),
        "allocated": r_of([{"rank": "0", "children": {"core": "0-1"}}], "node0"),
    }


def status() -> dict[str, Any]:
    """Four nodes: 0 in use, 1 drained, 2 excluded, 3 draining and offline."""
    return {
        "R": copy.deepcopy(WHOLE),
        "drain": {
            "3": {"timestamp": 1700000060.0, "reason": "", "state": "draining"},
            "1": {
                "timestamp": 1700000000.0,
                "reason": "disk fails, replace; also: kernel update",
                "user": "kim",
                "state": "drained",
            },
        },
        "online": "0-2",
        "offline": "3",
        "exclude": "2",
        "torpid": "",
        "groups": {"default": "0-1,3", "exclude": "2"},
    }


def job(**given: Any) -> dict[str, Any]:
    """A running job as job-manager.list has it; what is given replaces."""
    return {
        "id": 5, "state": "RUN", "name": "sleep", "userid": 0, "urgency": 16, "t_submit": 1700000000.0, "ntasks": 4,
        "duration": 60.0, "nnodes": 2, "t_run": 1700000010.0, "nodelist": "node[0-1]", "ranks": "0-1",
        "command": ["sleep", "60"], **given,
    }  # fmt: skip


GROUPS = {
    "groups": [
        {"name": "default", "targets": "0-1,3", "leaving": "1", "incoming": "", "acquired": True, "dialect": "typed"},
        {"name": "exclude", "targets": "2", "leaving": "", "incoming": "1", "acquired": False},
    ]
}
JOURNAL = [
    {"events": [{"timestamp": 1700000000.0, "name": "restart", "context": {"ranks": "0-1", "online": ""}}]},
    {"events": [{"timestamp": 1700000001.5, "name": "online", "context": {"idset": "0"}}]},
    {"events": []},
    {"events": [{"timestamp": 1700000002.0, "name": "drain", "context": {"idset": "0", "reason": "x y"}}]},
]
OUTAGES = {
    "outages": [
        {
            "name": "upd",
            "targets": "1-2",
            "from": 1700000000.0,
            "until": 1700000600.0,
            "reason": "kernel",
            "user": "ops",
            "on": True,
        },
        {
            "name": "backup",
            "targets": "3",
            "from": 1700010000.0,
            "until": 1700017200.0,
            "every": 604800.0,
            "configured": True,
        },
        {
            "name": "course",
            "targets": "0",
            "from": 1700020000.0,
            "until": 1700023600.0,
            "end_jobs": True,
            "queue": "debug",
        },
        {
            "name": "talk",
            "targets": "2-3",
            "from": 1700030000.0,
            "until": 1700033600.0,
            "reservation": True,
            "users": [0, 999999],
            "user": "ops",
            "reason": "demo",
        },
    ]
}
MOVED = {"moved": "0", "leaving": "1-2", "draining": "3", "there": "4"}


def four_nodes(sched: dict[str, Any] | None = None, **changed: Any) -> Answers:
    """Resources of four nodes; what is given replaces in their status."""
    return {
        "resource.sched-status": sched or sched_status(), "resource.status": status() | changed,
        "resource.groups": GROUPS, "resource.journal": JOURNAL, "resource.targets": targets_of(),
        "resource.assign": MOVED, "resource.drain": RPCError("rank 0-1 (node[0-1]): already drained", 17),
        "resource.outage-list": OUTAGES, "resource.outage-add": _outage_added,
        "resource.outage-update": {},
        "resource.outage-remove": RPCError("there is no outage 'x': there are backup, upd", 2),
        "resource.acquire": [RPCError("group default is acquired already", 16)],
        **dict.fromkeys(
            ("resource.property-add", "resource.property-remove"),
            RPCError("unknown hosts ssd: give hosts of this instance, or ranks", 22),
        ),
    }  # fmt: skip


def no_targets() -> Answers:
    nothing = r_of([], "")
    return four_nodes(
        dict.fromkeys(("all", "down", "allocated"), nothing), R=nothing, drain={}, offline="", exclude="", groups={}
    )


def one_host() -> Answers:
    """Four targets on one host."""
    sched = sched_status()
    return four_nodes(sched | {"all": json.loads(json.dumps(sched["all"]).replace("node[0-3]", "me,me,me,me"))})


def parts_and_spares() -> Answers:
    """Four nodes: cores of node0 drained for two reasons, node1 drained and replaced by node3, node2 an idle spare, and
    cores of all withheld.
    """
    kim = {"timestamp": 1700000000.0, "user": "kim"}
    parts = [
        {"targets": "0", "cores": "2", "reason": "hot", "state": "draining", **kim},
        {"targets": "0", "cores": "3", "gpus": "0", "reason": "bad dimm", "state": "drained", **kim},
    ]
    withheld = {"targets": "0-3", "cores": "4-5", "timestamp": 1699999000.0, "reason": "[resource] withhold"}
    replaced = [{"target": 3, "replaces": 1, "replaces_host": "node1", "group": "default", "timestamp": 1700000000.0}]

    def some(ranks: str, hosts: str, **children: str) -> dict[str, Any]:
        return r_of([{"rank": ranks, "children": children}], hosts)

    listed: dict[str, Any] = {
        "all": some("0-1,3", "node[0-1,3]", core="0-3", gpu="0"),
        "down": r_of(
            [
                {"rank": "0", "children": {"core": "2-3", "gpu": "0"}},
                {"rank": "1", "children": {"core": "0-3", "gpu": "0"}},
            ],
            "node[0-1]",
        ),
        "allocated": some("0,3", "node[0,3]", core="0-2"),
        "spare": some("2", "node2", core="0-3", gpu="0"),
        "withheld": some("0-1,3", "node[0-1,3]", core="4-5"),
        "replaced": replaced,
    }
    return four_nodes(
        listed,
        drain={"1": {"reason": "disk fails", "state": "drained", **kim}},
        exclude="", online="0-3", offline="", groups={"default": "0-1,3", "spares": "2"},
        parts=parts, withheld=[{**withheld, "state": "withheld"}], spares="2-3", replaced=replaced,
    )  # fmt: skip


def full_node() -> Answers:
    """All cores of node0 are taken, and some of its memory is left."""
    sched = sched_status()
    for name, memory in (("all", 8), ("down", 8), ("allocated", 1)):
        for entry in sched[name]["execution"]["R_lite"]:
            entry["amounts"] = {"memory": memory}
    sched["allocated"]["execution"]["R_lite"][0]["children"]["core"] = "0-3"
    return four_nodes(sched)


def same_reasons() -> Answers:
    drain = {"0": {"timestamp": 1.0, "reason": "x"}, "1,3": {"timestamp": 2.0, "reason": "x"}}
    return four_nodes(drain=drain, offline="")


def listing() -> list[dict[str, Any]]:
    """A job of each kind."""
    pending = {"t_run": None, "nodelist": None, "nnodes": None}
    return [
        job(id=1, name="a-very-long-name", expiration=NOW_S + 30),
        job(id=2, state="SCHED", annotations={"sched": {"reason_pending": "needs 4 nodes; 2 are busy"}}, **pending),
        job(id=3, state="SCHED", annotations={"sched": {"t_estimate": NOW_S + 90}}, **pending),
        job(id=4, state="PRIORITY", urgency=0, priority=0, **pending),
        job(id=5, state="DEPEND", dependencies=["afterok:ƒ2"], **pending),
        job(id=6, state="INACTIVE", result="COMPLETED", t_cleanup=1700000011.5, success=True),
        job(id=7, state="INACTIVE", result="TIMEOUT", t_cleanup=1700000070.0, t_inactive=1700000071.0,
            exception={"type": "timeout", "severity": 0, "note": "limit of 1m"}),
        job(id=8, state="INACTIVE", result="CANCELED", exception={"type": "cancel", "note": "no"}, **pending),
    ]  # fmt: skip


def listed(*jobs: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Make what answers job-manager.list: all of these jobs, or those that are named."""

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        ids = request.get("ids")
        return {"jobs": [one for one in jobs if ids is None or one["id"] in ids]}

    return answer


EVENTS = [
    {"timestamp": 1700000000.25, "name": "submit", "context": {"userid": 0, "urgency": 16}},
    {"timestamp": 1700000001.0, "name": "alloc"},
    {"timestamp": 1700000002.0, "name": "finish", "context": {"status": 0}},
    {"timestamp": 1700000003.0, "name": "clean"},
]


def looked_up(request: dict[str, Any]) -> dict[str, Any]:
    known = {"R": {"version": 1}, "eventlog": EVENTS[:2]}
    return {"id": 5} | {key: known.get(key) for key in request["keys"]}


WHY = {"state": "SCHED", "reason": "needs 4 nodes; 2 are drained", "earliest": 1700000000.0}
PLANNED = {"rule": "first in line under easy: one reservation.", "when": "as it is planned"}
WHYS = {
    1: WHY,
    2: WHY | PLANNED,
    3: WHY | PLANNED | {"earliest": NOW_S + 7200.5},
    4: WHY | PLANNED | {"earliest": None, "when": "not while it is held"},
    5: WHY | {
        "reason": "group big: none is free, 4 nodes are busy; group small: it has 2; "
        "cluster east is silent since noon: gone"
    },
}  # fmt: skip


def explained(request: dict[str, Any]) -> dict[str, Any]:
    if request["id"] not in WHYS:
        raise RPCError("no such job: ƒ7", 2)
    return {"id": request["id"], **WHYS[request["id"]]}


def one_job() -> Answers:
    """A job that runs, one with parts, and reasons why five more wait."""
    info = job(expiration=0.0, annotations={"sched": {"resource_summary": "rank0/core0", "t_estimate": NOW_S}})
    parts = job(id=6, parts={"lead": "0", "work": "1-6"})
    return {
        "job-manager.list": listed(info, parts), "job-manager.lookup": looked_up,
        "job-manager.eventlog": [{"events": EVENTS[:1]}, {"events": EVENTS[1:]}], "job-manager.why": explained,
    }  # fmt: skip


def ended_jobs() -> Answers:
    """Jobs that failed or were canceled, each in its own way."""
    ends: list[tuple[Any, str | None, str]] = [
        (None, "exited 127", "FAILED"),
        ({"type": "exec", "severity": 0, "note": "no such file"}, "exited 1", "FAILED"),
        ({"type": "warning", "severity": 4, "note": "odd"}, "killed by SIGSEGV", "FAILED"),
        ({"type": "cancel", "severity": 0, "note": "wrong input"}, None, "CANCELED"),
        ({"type": "cancel", "severity": 0, "note": ""}, None, "CANCELED"),
        (None, "exited 0", "COMPLETED"),
    ]
    preempt = {"type": "preempt", "severity": 0, "note": "for ƒ9 of default/ann"}
    usual = {"state": "INACTIVE", "t_inactive": NOW_S - 29.0, "nodelist": "node0"}
    preempted = usual | {"result": "FAILED", "exception": preempt}
    jobs = [
        job(id=at, **usual, result=result, ended=ended, **({} if exception is None else {"exception": exception}))
        for at, (exception, ended, result) in enumerate(ends)
    ]
    jobs += [
        job(id=11, **preempted, requeued_as=17), job(id=12, **preempted),
        job(id=13, **(preempted | {"result": "COMPLETED"})), job(id=17, attempt=1, requeue_of=11),
        job(id=14, state="CLEANUP", nodelist="node0", exception=preempt),
    ]  # fmt: skip
    return {"job-manager.list": listed(*jobs)}


def used_jobs() -> Answers:
    """A wasteful job, one of several tasks, an elastic one, one whose host was lost, one without figures, one that
    never ran.
    """
    ended = {"state": "INACTIVE", "result": "COMPLETED", "t_cleanup": 1700000250.0, "duration": 3600.0, "ntasks": 1}
    figures = {"wall_s": 240.0, "user_s": 200.0, "system_s": 64.0, "max_rss_bytes": 3 << 30}
    rows = [{**figures, "max_rss_bytes": size << 30, "status": 0} for size in (3, 2)]
    usages: dict[int, Any] = {
        1: figures, 2: {**figures, "max_rss_is_bound": True, "tasks": rows}, 3: figures, 4: {**figures, "tasks": rows}
    }  # fmt: skip
    amount = [{"rank": "0", "children": {"core": "0-7"}, "amounts": {"memory": 64 << 30}}]
    asks = Jobspec.from_command(["x"], nodes=1, amounts_per_node={"memory": 64 << 30}).to_json()

    def recorded(request: dict[str, Any]) -> dict[str, Any]:
        finish = {"name": "finish", "timestamp": 1.0, "context": {"usage": usages.get(request["id"])}}
        events = [] if request["id"] == 7 else [finish]
        return {"id": request["id"], "jobspec": asks, "R": r_of(amount, "node0"), "eventlog": events}

    jobs = [
        job(id=1, **ended, ncores=8), job(id=2, **{**ended, "ntasks": 2, "duration": 240.0}, ncores=8),
        job(id=3, **ended, ncores=2, sizes=[["0-1", 1700000070.0, 6]]), job(id=4, **{**ended, "ntasks": 4}, ncores=8),
        job(id=5, **ended, ncores=8), job(id=6, state="SCHED", t_run=None),
        job(id=7, ntasks=1, ncores=4),
    ]  # fmt: skip
    so_far = {"usage": {**figures, "wall_s": 60.0}}
    return {"job-manager.list": listed(*jobs), "job-manager.lookup": recorded, "job-manager.usage": so_far}


def queue_status(request: dict[str, Any]) -> dict[str, Any]:
    if "name" not in request:
        return {"enable": True, "start": True}
    off = request.get("name") == "debug"
    limits = {"duration_default": 600.0, "duration_max": 5400.0, "nnodes_max": 4}
    limits |= {"constraints": {"properties": ["ssd"]}}
    extra = {"group": "lab", "nnodes_min": 2} if off else limits
    return {"enable": True, "start": not off, "start_reason": "being mended", **extra, **request}


QUEUES = {"job-manager.queue-list": {"queues": ["batch", "debug"]}, "job-manager.queue-status": queue_status}
ANONYMOUS = {"job-manager.queue-list": {"queues": []}, "job-manager.queue-status": queue_status}
MODULES = {
    "mods": [
        {"name": "fifo", "path": "fifo:placement=best-fit", "idle": 3, "status": 1,
         "services": ["sched", "feasibility"],
         "sendqueue": 0, "recvqueue": 2, "pid": 77, "groups": ["default", "debug"]},
        {"name": "mine", "path": "/x/mine.py", "idle": 0, "status": 3, "services": [], "sendqueue": 0, "recvqueue": 0,
         "error": "ZeroDivisionError"},
    ]
}  # fmt: skip


def small_instance() -> Answers:
    """Modules, an address, a configuration, and no cluster."""
    return {
        "module.list": MODULES, "module.stats": {"jobs": {"n": 1}},
        "module.load": RPCError("policy 'nope': there is fifo, firstfit", 2),
        "attr.get": {"value": "local:///run/local-0", "flags": 1}, "instance.info": {"uri": "x", "ready": True},
        "nope.ping": RPCError("No service matching nope.ping is registered", 38), "cluster.list": {"clusters": []},
    }  # fmt: skip


T = 1_795_384_800.0


def report_row(name: str, **values: Any) -> dict[str, Any]:
    return {
        "name": name, "jobs": 12, "running": 0, "results": {"completed": 8, "failed": 1, "canceled": 2, "timeout": 1},
        "core_seconds": 7200.0, "gpu_seconds": 0.0, "cpu_seconds": 0.0, "cpu_core_seconds": 0.0,
        "gpu_busy_seconds": 0.0, "gpu_sampled_seconds": 0.0, "waits": 12,
        "wait_mean": 75.0, "wait_p50": 31.5, "wait_p95": 600.0, **values,
    }  # fmt: skip


REPORT_ROWS = [
    report_row("optics", running=3, gpu_seconds=1800.0, cpu_seconds=900.0, cpu_core_seconds=1000.0),
    report_row("", core_seconds=36.0, wait_mean=None, wait_p50=None, wait_p95=None),
]
CAPACITY = {"allocated": 7236.0, "free": 5364.0, "drained": 1800.0, "down": 0.0, "excluded": 99_999.0}


def report(**values: Any) -> Answers:
    answer = {
        "by": "bank", "since": T - 7200.0, "until": T, "rows": REPORT_ROWS, "left_out": 0,
        "total": report_row("", jobs=24, core_seconds=7236.0), "observed": 3600.0, "capacity": CAPACITY,
    }  # fmt: skip
    return {"history.report": answer | values}


WASTED_ROWS = [
    report_row("a", core_seconds=90_000.0),
    report_row("b", core_seconds=72_000.0, cpu_seconds=70_000.0, cpu_core_seconds=72_000.0),
    report_row("c", core_seconds=36_000.0, cpu_seconds=3600.0, cpu_core_seconds=32_400.0),
    report_row("d", core_seconds=7200.0, cpu_seconds=7300.0, cpu_core_seconds=7200.0),
]
GPU_ROWS = [
    report_row("a", gpu_seconds=90_000.0, gpu_sampled_seconds=88_000.0, gpu_busy_seconds=80_000.0),
    report_row("b", gpu_seconds=36_000.0, gpu_sampled_seconds=32_400.0, gpu_busy_seconds=3600.0),
    report_row("c", gpu_seconds=2000.0, gpu_sampled_seconds=2000.0),
    report_row("d", gpu_seconds=7200.0),
    report_row("e"),
]
FAIR_SETTINGS = {
    "signal": "decayed-usage", "half_life": 604800.0, "weights": {"core": 1.0}, "shares": "active", "capacity": 64.0,
    "budget": None, "rate": 60,
}  # fmt: skip


def account(*path: str, user: bool = False, **values: Any) -> dict[str, Any]:
    return {
        "path": list(path), "user": user, "active": True, "weight": 1.0, "share": 0.25, "fair_usage": 16.0,
        "usage": 8.0, "signal": 4.0, "firm_usage": 8.0, "firm_signal": 8.0, "cap": None, "budget_left": None,
        "held": {"core": 8}, "waiting": 0, "running": 1, "preempted": 0, **values,
    }  # fmt: skip


ACCOUNTS = [
    account("standby", weight=0.01, active=False, usage=0.0, signal=0.5, held={}, running=0, preempted=3),
    account("physics", weight=3.0, share=1.0, fair_usage=64.0, waiting=12, running=3),
    account("physics", "zoe", user=True, waiting=12),
    account("physics", "optics", weight=2.0, share=0.5, fair_usage=32.0),
    account("physics", "optics", "ann", user=True, held={"core": 8, "memory": 2**33}),
]


def fair(*accounts: dict[str, Any], **settings: Any) -> Answers:
    answer = FAIR_SETTINGS | settings | {"accounts": list(accounts), "next": None}
    return {"sched.accounts": lambda payload: dict(answer)}


def switches() -> Answers:
    """Two leaves below a spine, and a node without a switch."""

    def r(ranks: str, hosts: str) -> dict[str, Any]:
        return r_of([{"rank": ranks, "children": {"core": "0-3"}}], hosts)

    topology = [
        {"name": "leaf0", "hosts": "n[0-1]"}, {"name": "leaf1", "hosts": "n[2-4]"},
        {"name": "spine", "switches": "leaf[0-1]"}, {"name": "far", "hosts": "other"},
    ]  # fmt: skip
    whole = r("0-5", "n[0-5]")
    return {
        "resource.sched-status": {"all": whole, "down": r("4", "n4"), "allocated": r("1", "n1")},
        "resource.status": {"R": whole | {"scheduling": {"writer": "fluxsched", "topology": topology}}},
        "resource.targets": targets_of(whole),
    }


SITES: dict[str, Callable[[], Answers]] = {
    "nothing is answered": dict,
    "four nodes": four_nodes,
    "torpid and lost": lambda: four_nodes(drain={}, exclude="", torpid="1", lost="3", offline=""),
    "no targets": no_targets,
    "one host": one_host,
    "parts and spares": parts_and_spares,
    "a full node": full_node,
    "same reasons": same_reasons,
    "jobs": lambda: {"job-manager.list": listed(*listing())},
    "one job": one_job,
    "ended jobs": ended_jobs,
    "used jobs": used_jobs,
    "a queue": lambda: {"job-manager.list": listed(job(queue="batch"))},
    "queues": lambda: dict(QUEUES),
    "no queues": lambda: dict(ANONYMOUS),
    "a small instance": small_instance,
    "a report": report,
    "a report without the machine": lambda: report(capacity=None, left_out=7),
    "a report of waste": lambda: report(rows=WASTED_ROWS, capacity=None),
    "a report of wasted GPUs": lambda: report(rows=GPU_ROWS, capacity=None),
    "an empty report": lambda: report(rows=[], capacity=None),
    "a report of what users wrote": lambda: report(rows=[report_row('a"b,\n\x1b[31m')]),
    "accounts": lambda: fair(*ACCOUNTS),
    "accounts with caps and budgets": lambda: fair(
        account("a", cap=19.2), account("a", "ann", user=True, cap=19.2, budget_left=300.0)
    ),
    "a budget that is spent": lambda: fair(account("a"), account("a", "ann", user=True, budget_left=0.0)),
    "an idle account": lambda: fair(account("a", active=False, cap=19.2)),
    "an idle account that counts": lambda: fair(account("a", active=False, cap=19.2), shares="all"),
    "no capacity": lambda: fair(account("a", cap=19.2), capacity=0.0),
    "no accounts": fair,
    "accounts of what users wrote": lambda: fair(account("e\x1b[31m\nvil")),
    "a policy without accounts": lambda: {
        "sched.accounts": RPCError("this scheduler keeps no accounts: use a policy that does, such as fair", 95)
    },
    "switches": switches,
}
"""The sites of golden files."""

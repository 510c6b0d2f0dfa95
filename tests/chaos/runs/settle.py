"""After the faults: a judge puts everything back in order, waits until all has ended, and reads the truth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tests.chaos.checkers.base import HEALTH_USER, OUTAGE_REASON, SPARE_GROUP, Truth, Violation
from tests.chaos.wire import cores_of, idset, text_of
from tests.chaos.workload.actions import jobspec
from tests.chaos.workload.sites import ChaosSite
from tests.chaos.workload.user import Surroundings, User

LOOK_S = 5.0
"""How often the judge looks whether all has ended (virtual seconds)."""
SETTLED_WITHIN_S = 3600.0
"""When all must have ended, after the last fault (virtual seconds)."""
LATE_S = 600.0
"""How long reading the truth may take after that, with an instance that answers (virtual seconds)."""
ORDER_S = 12.0
"""How long requests that were under way may still change something, before it is put in order (virtual seconds)."""
EVENTS_KEPT = 100_000

TRIES = 3
"""How often it is looked whether all know what is true, with `LOOK_S` between."""

LOOKED_AT: tuple[tuple[str, Any], ...] = (
    ("job-manager.list", {"max_entries": EVENTS_KEPT}),
    ("resource.groups", None),
    ("resource.status", None),
    ("resource.outage-list", None),
)

Quiet = Callable[[float, Mapping[str, Any], list[dict[str, Any]]], None]


class Settling:
    """The judge's way to the truth."""

    def __init__(self, world: Surroundings, site: ChaosSite, leave: Callable[[], None], quiet: Quiet) -> None:
        self.world = world
        self.is_over = False
        self._site = site
        self._leave = leave
        self._quiet = quiet
        self._tries = 0
        self.violation: Violation | None = None
        self._until_s = world.now_s + SETTLED_WITHIN_S
        self._user = User(world, "judge")
        self._read: dict[str, Any] = {}
        self._logs: dict[int, dict[str, Any]] = {}
        self._journal: list[dict[str, Any]] = []
        self._stats: dict[str, dict[str, Any]] = {}
        self._missing = 0
        self._has_tried = not site.site.hosts
        """Whether a job has been sent to each host, or none has a keeper of its own."""
        world.at(world.now_s + ORDER_S, self._read_first)
        world.at(self._until_s + LATE_S, self._give_up)

    # ---- before anything is put in order: are all promises kept, do all know it?

    def _read_first(self) -> None:
        self._read.clear()
        calls: list[tuple[str, Any]] = [
            ("resource.status", None),
            ("resource.groups", None),
            ("job-manager.list", {"max_entries": EVENTS_KEPT}),
        ]
        calls += [("job-manager.queue-status", {"name": queue}) for queue in self._site.site.queues]
        self._missing = len(calls)
        if not self._user.is_connected:
            self.world.at(self.world.now_s + LOOK_S, self._read_first)
            return
        for topic, payload in calls:
            self._user.call(topic, payload, partial(self._first, topic))

    def _first(self, topic: str, answer: Any, errnum: int) -> None:
        self._missing -= 1
        if not errnum:
            self._read[topic] = answer
        if self._missing == 0:
            self._tries += 1
            if len(self._read) == 4:
                self._compare()
            else:
                self.world.at(self.world.now_s + LOOK_S, self._read_first)

    def _compare(self) -> None:
        try:
            self._quiet(self.world.now_s, self._read["resource.status"], self._read["resource.groups"]["groups"])
        except Violation as violation:
            if self._tries == TRIES:
                self.violation = violation
            else:  # news may be under way
                self.world.at(self.world.now_s + LOOK_S, self._read_first)
            return
        self._order()

    # ---- put in order

    def _order(self) -> None:
        self._leave()
        self._back()
        self._user.call("job-manager.queue-start", {"all": True, "start": True})
        self._user.call("job-manager.queue-enable", {"all": True, "enable": True})
        self.world.at(self.world.now_s + LOOK_S, self._look)

    def _back(self) -> None:
        """Have the targets where they belong, and in use; those of outages and health checks are so by themselves."""
        targets = set(range(self._site.hosts))
        self._user.call("resource.include", {"targets": text_of(targets)})
        for ranks, line in self._read["resource.status"]["drain"].items():
            if line.get("reason") != OUTAGE_REASON and line.get("user") != HEALTH_USER:
                self._user.call("resource.undrain", {"targets": ranks, "mode": "update"})
        for line in self._read["resource.status"].get("parts", ()):
            parts = {"cores": line.get("cores", ""), "gpus": line.get("gpus", "")}
            self._user.call("resource.undrain", {"targets": line["targets"], "mode": "update"} | parts)

    def _look(self) -> None:
        self._read.clear()
        self._missing = len(LOOKED_AT)
        for topic, payload in LOOKED_AT:
            self._user.call(topic, payload, partial(self._looked, topic))
        if not self._user.is_connected:
            self.world.at(self.world.now_s + LOOK_S, self._look)

    def _looked(self, topic: str, answer: Any, errnum: int) -> None:
        self._missing -= 1
        if not errnum:
            self._read[topic] = answer
        if self._missing:
            return
        has_ended = len(self._read) == len(LOOKED_AT) and self._has_ended()
        if has_ended and not self._has_tried:
            self._has_tried = True
            self._try_hosts()
            self.world.at(self.world.now_s + LOOK_S, self._look)
        elif has_ended or (len(self._read) == len(LOOKED_AT) and self.world.now_s > self._until_s):
            self._ask_truth()
        else:
            if len(self._read) == len(LOOKED_AT):
                self._help()
            self.world.at(self.world.now_s + LOOK_S, self._look)

    def _has_ended(self) -> bool:
        jobs, groups = self._read["job-manager.list"]["jobs"], self._read["resource.groups"]["groups"]
        ended = all(job["state"] == "INACTIVE" for job in jobs)
        moves = any(group["leaving"] or group["incoming"] for group in groups)
        plans = self._read["resource.outage-list"]["outages"]  # one that begins changes what is true while it is read
        return ended and not moves and not plans and self._is_served()

    def _try_hosts(self) -> None:
        """Send a job to each host, which must run it whatever has become of it before."""
        queues = {group: queue for queue, group in self._site.site.queues.items() if queue != "debug"}
        bank = next(iter(self._site.banks), None)
        for group in self._read["resource.groups"]["groups"]:
            for rank in idset(group["targets"]) - self._site.site.spares:
                spec = jobspec(cores=1, nodes=1, run_s=0.1, duration_s=0.0, queue=queues[group["name"]], bank=bank)
                spec["attributes"]["system"]["constraints"] = {"ranks": [str(rank)]}
                self._user.call("job-manager.submit", {"jobspec": spec, "urgency": 16})

    def _is_served(self) -> bool:
        return all(
            group["acquired"]
            for group in self._read["resource.groups"]["groups"]
            if group["name"] in ("default", "lab")
        )

    def _help(self) -> None:
        """What keeps jobs waiting and is no fault: a hold, a group without a scheduler, a request that was lost, an
        outage that recurs for ever, and a job that is too large, which may wait if its scheduler was away.
        """
        for outage in self._read["resource.outage-list"]["outages"]:
            if outage.get("every"):
                self._user.call("resource.outage-remove", {"name": outage["name"]})
        for job in self._read["job-manager.list"]["jobs"]:
            if job["state"] != "INACTIVE" and job["urgency"] == 0:
                self._user.call("job-manager.urgency", {"id": job["id"], "urgency": 16})
            elif job["state"] == "SCHED" and (job.get("nodes_asked") or 0) > self._site.site.nodes_of(job["queue"]):
                self._user.call("job-manager.cancel", {"id": job["id"]})
        for group in self._read["resource.groups"]["groups"]:
            if group["name"] in ("default", "lab") and not group["acquired"]:
                name = f"sched-late-{group['name']}"
                self._user.call("module.load", {"spec": "fifo", "name": name, "groups": [group["name"]], "restart": 9})
        misplaced = any(
            group["targets"] or group["incoming"]
            for group in self._read["resource.groups"]["groups"]
            if group["name"] not in ("default", "lab", SPARE_GROUP)
        )
        status = self._read["resource.status"]
        if misplaced or status["drain"] or status.get("parts"):
            self._back()

    # ---- the truth

    def _ask_truth(self) -> None:
        jobs = [job["id"] for job in self._read["job-manager.list"]["jobs"]]
        self._missing = len(jobs) + 4
        for jobid in jobs:
            self._user.call("job-manager.lookup", {"id": jobid, "keys": ["eventlog", "jobspec", "R"]}, self._log)
        self._user.call("resource.sched-status", None, self._keep)
        self._user.call("resource.journal", None, self._events, streaming=True)
        self._user.call("module.list", None, self._modules)
        self._user.call("history.report", {"since": 0.0}, self._accounts)

    def _log(self, answer: Any, errnum: int) -> None:
        assert not errnum, f"lookup in the end: {errnum} {answer}"
        self._logs[answer["id"]] = answer
        self._came()

    def _keep(self, answer: Any, errnum: int) -> None:
        assert not errnum, f"sched-status in the end: {errnum} {answer}"
        self._read["resource.sched-status"] = answer
        self._came()

    def _events(self, answer: Any, errnum: int) -> None:
        if errnum or self.is_over:
            return
        if answer["events"]:
            self._journal += answer["events"]
        else:
            self._came()

    def _modules(self, answer: Any, errnum: int) -> None:
        assert not errnum, f"module.list in the end: {errnum} {answer}"
        names = [one["name"] for one in answer["mods"] if one["name"].startswith("sched-") and one["status"] == 1]
        self._missing += len(names)
        for name in names:
            self._user.call("module.stats", {"name": name}, partial(self._figures, name))
        self._came()

    def _accounts(self, answer: Any, errnum: int) -> None:
        assert not errnum, f"history.report in the end: {errnum} {answer}"
        self._read["history.report"] = answer
        self._came()

    def _figures(self, name: str, answer: Any, errnum: int) -> None:
        if not errnum:
            self._stats[name] = answer
        self._came()

    def _came(self) -> None:
        self._missing -= 1
        self.is_over = self._missing == 0

    def _give_up(self) -> None:
        if not self.is_over and self.violation is None:
            text = f"the instance did not answer all questions within {SETTLED_WITHIN_S + LATE_S:.0f} s"
            self.violation = Violation("rest", text, self.world.now_s)

    def truth(self) -> Truth:
        """What was read."""
        return Truth(
            at_s=self.world.now_s,
            jobs={job["id"]: job for job in self._read["job-manager.list"]["jobs"]},
            eventlogs={jobid: one["eventlog"] for jobid, one in self._logs.items()},
            specs={jobid: one["jobspec"] for jobid, one in self._logs.items()},
            resources={jobid: one.get("R") for jobid, one in self._logs.items()},
            status=self._read["resource.status"],
            groups=self._read["resource.groups"]["groups"],
            journal=self._journal,
            allocated=frozenset(cores_of(self._read["resource.sched-status"]["allocated"])),
            schedulers=self._stats,
            accounts=self._read["history.report"]["total"],
        )

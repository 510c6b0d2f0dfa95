"""Planned outages: no start crosses one that its scheduler was told of, or that has been stored for a while; their
targets are drained while they last, and not for longer; what is planned survives a restart. Those of the configuration
are what the file has said since it was last read.

Reservations are outages for all jobs but those that name them; these start inside theirs alone. They drain nothing, no
two have a target at one time, and nobody's job names one that is for others.

A start and its end are the times in the R that a scheduler grants, so clocks that are stepped make no difference there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any

from tests.chaos.checkers.base import (
    INSTANCE,
    OUTAGE_REASON,
    OUTAGE_SET,
    SCHEDULER_PREFIX,
    SPARE_GROUP,
    Call,
    Checker,
    Outage,
    Site,
    Truth,
    drained_for,
    names_parts,
)
from tests.chaos.checkers.registers import LATEST_S, Key, Registers, Write
from tests.chaos.observations import (
    EPOCH_S,
    Answered,
    Configured,
    LinkEnded,
    ProcessEnded,
    Received,
    TaskBegan,
    TaskEnded,
    TaskShrank,
)
from tests.chaos.wire import cores_of, idset

EFFECTIVE_S = 30.0
"""How long it may take until an outage that is stored, or due, is heeded (seconds): processes hang."""
QUIET_S = 10.0
"""How long after all faults."""
ROUNDING_S = 1e-3
MOVES = ("resource.undrain", "resource.assign", "resource.include", "resource.drain", *OUTAGE_SET)
"""Requests after which a target of an outage may be in use, or drained by somebody else."""


class Outages(Checker):
    """Compares starts, drains and the list with what was planned."""

    name = "outages"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._told: dict[int, list[Outage]] = {}
        """Of each connection of a scheduler, the outages that it knows."""
        self._starts_s: dict[int, float] = {}
        self._expires_s: dict[int, float] = {}
        """When each job starts that was granted resources, and ends at the latest, by the clock of the machine."""
        self._set = Registers(self._writes_of)
        self._names: set[str] = set()
        self._moved_s: dict[int, float] = {}
        """When something may have moved a target last."""
        self._moving: set[Call] = set()
        self._assigned: set[int] = set()
        """Targets that administrators have ever moved to a group."""
        self._queues: dict[int, str] = {}
        self._inside: dict[int, str] = {}
        """The reservation that each job names; empty for none."""
        self._filed: dict[str, Write] = {}
        """What the file says of each outage that it has named, if it is not sure that this was read."""
        self._reloads: dict[Call, list[Write]] = {}
        self._began: dict[int, TaskBegan] = {}
        self._crossed: dict[int, Outage] = {}
        """The outages that jobs have run into which these end."""

    # ---- what is planned

    def _writes_of(self, call: Call) -> Iterator[tuple[Key, Outage | None]]:
        payload = call.payload
        if call.topic in OUTAGE_SET:
            yield ("outage", payload["name"]), _read(payload)
        elif call.topic == "resource.outage-remove":
            yield ("outage", payload["name"]), None

    def asked(self, call: Call) -> None:
        """Something may be planned. A job grows by nothing that it would have when an outage begins."""
        if call.topic.startswith("resource.outage-") and "name" in (call.payload or {}):
            self._name(call.payload["name"])
            self._set.asked(call)
        elif call.topic == "config.reload":
            self._reloads[call] = list(self._filed.values())
        if call.topic in ("resource.assign", "resource.include"):
            self._assigned |= idset(call.payload["targets"])
        if _moves(call):
            self._moving.add(call)
        elif call.topic == "job-manager.sched-grow":
            jobid = call.payload["id"]
            now_s = self._wall_s + self.site.steps_s + 1.0
            self._judge(call.link, jobid, call.payload["R"], now_s, self._expires_s.get(jobid, inf))

    def _name(self, name: str) -> None:
        """An outage may be planned by this name."""
        if name not in self._names:
            self._names.add(name)
            self._set.first(("outage", name), None)

    def configured(self, one: Configured) -> None:
        """What the file says is read at a start, or a reload."""
        found = {row["name"]: _read(row) for row in one.outages}
        for name in self._filed.keys() | found.keys():
            self._name(name)
            if (before := self._filed.get(name)) is not None and not before.is_sure:
                before.end_s = self.now_s - ROUNDING_S
            self._filed[name] = Write(found.get(name), self.now_s)
            self._set.all["outage", name].writes.append(self._filed[name])

    def _was_read(self, written: Iterable[Write]) -> None:
        """The instance has what the file said."""
        for one in written:
            if one.end_s == inf:
                one.end_s, one.is_sure = self.now_s, True
        for name in self._filed:
            for read in self._set.possible(("outage", name), -inf, self.now_s) or ():
                if isinstance(read, Outage):
                    self._moved_s |= dict.fromkeys(read.targets, self.now_s)

    @property
    def _wall_s(self) -> float:
        return EPOCH_S + self.now_s

    def answered(self, call: Call, payload: Any, errnum: int) -> None:
        """A scheduler is told of outages, plans are stored, and what is read must be possible."""
        if _moves(call):
            self._moving.discard(call)
            self._moved_s |= dict.fromkeys(idset(call.payload["targets"]), self.now_s)
        if call.topic == "resource.acquire" and call.actor.startswith(SCHEDULER_PREFIX):
            self._tell(call, payload, errnum)
            return
        if call.topic == "job-manager.sched-hello" and not errnum:  # its end may have been moved while there was none
            self._expires_s[payload["id"]] = payload["R"]["execution"]["expiration"] or inf
        written = self._reloads.pop(call, ())
        self._set.answered(call, errnum, self.now_s)
        if errnum:
            return
        if call.topic == "config.reload":
            self._was_read(written)
        elif call.topic == "job-manager.submit":
            self._submitted(payload["id"], call)
        elif call.topic == "resource.outage-add" and call.payload.get("reservation"):
            self._is_alone(call.payload["name"], _read(call.payload))
        elif call.topic == "resource.outage-list":
            self._compare(call.asked_s, payload["outages"])
        elif call.topic == "resource.status":
            self._check_drains(payload, call.asked_s, EFFECTIVE_S)

    def _submitted(self, jobid: int, call: Call) -> None:
        system = call.payload["jobspec"]["attributes"]["system"]
        self._queues[jobid] = system.get("queue", "")
        name = self._inside[jobid] = system.get("fluxsched", {}).get("reservation", "")
        possible = self._set.possible(("outage", name), call.asked_s, self.now_s) if name else None
        if name and not any(isinstance(planned, Outage) and not planned.is_others for planned in possible or ()):
            raise self.broken(f"job {jobid} may run in reservation {name}, which may be {possible}")

    def _is_alone(self, name: str, planned: Outage) -> None:
        """No other reservation has targets of this one at that time."""
        for other in self._stored(0.0):
            is_over = other.at(self._wall_s + self.site.steps_s) is None
            is_meant = other.reservation not in ("", name) and other.targets & planned.targets and not is_over
            first, second = sorted((planned, other), key=lambda one: one.from_s)
            if is_meant and second.from_s < first.until_s - ROUNDING_S:
                raise self.broken(f"{planned} is accepted beside {other}")

    def given_up(self, call: Call) -> None:
        """A request may be handled for a while."""
        self._reloads.pop(call, None)
        self._set.given_up(call, self.now_s)
        if _moves(call):
            self._moving.discard(call)
            self._moved_s |= dict.fromkeys(idset(call.payload["targets"]), self.now_s + LATEST_S)

    def process_ended(self, ended: ProcessEnded) -> None:
        """Requests may have died with it."""
        self._set.process_ended(ended)
        if ended.process == INSTANCE:
            self._was_read(self._filed.values())

    def _compare(self, asked_s: float, rows: list[dict[str, Any]]) -> None:
        found = {row["name"]: _read(row) for row in rows}
        for name in self._names | found.keys():
            possible = self._set.possible(("outage", name), asked_s, self.now_s) or {None}
            read = found.get(name)
            if not any(self._may_be(read, planned, asked_s) for planned in possible):
                raise self.broken(f"outage {name} was read as {read}; possible is {sorted(map(repr, possible))}")

    def _may_be(self, read: Outage | None, planned: Any, asked_s: float) -> bool:
        latest_s, earliest_s = self._wall_s + self.site.steps_s, EPOCH_S + asked_s - self.site.steps_s
        if planned is None or read is None:
            is_over = planned is not None and planned.at(latest_s + ROUNDING_S) is None
            return read is planned or is_over
        turns = (read.from_s - planned.from_s) / planned.every_s if planned.every_s else 0.0
        return (
            read.targets == planned.targets and read[3:] == planned[3:]
            and abs(read.from_s - planned.from_s - round(turns) * planned.every_s) < ROUNDING_S
            and read.until_s > earliest_s - EFFECTIVE_S
        )  # fmt: skip

    # ---- starts

    def _tell(self, call: Call, payload: dict[str, Any], errnum: int) -> None:
        if errnum or call.is_over:
            self._told.pop(call.link, None)
        elif call.answers == 1 or "outages" in payload:
            self._told[call.link] = [_read(row) for row in payload.get("outages") or ()]

    def link_ended(self, ended: LinkEnded) -> None:
        """What is sent there is not received any more."""
        self._told.pop(ended.link, None)

    def replied(self, message: Answered) -> None:
        """A scheduler starts a job."""
        if message.topic == "sched.alloc" and message.payload["type"] == 0:
            execution = message.payload["R"]["execution"]
            start_s, end_s = execution["starttime"], execution["expiration"] or inf
            self._starts_s[message.payload["id"]], self._expires_s[message.payload["id"]] = start_s, end_s
            self._judge(message.link, message.payload["id"], message.payload["R"], start_s, end_s)

    def told(self, message: Received) -> None:
        """A job is to end at another time: its scheduler lets it grow by what it can have until then."""
        if message.topic == "sched.expiration":
            self._expires_s[message.payload["id"]] = message.payload["expiration"] or inf

    def _judge(self, link: int, jobid: int, resources: dict[str, Any], start_s: float, end_s: float) -> None:
        ranks = cores_of(resources).keys()
        if link not in self._told:
            return
        told, latest_s = self._told[link], self._wall_s + self.site.steps_s
        for outage in [*told, *self._stored(), *self.site.outages]:
            there = outage.at(start_s + ROUNDING_S)
            if outage.queue and outage not in told and self._is_for(outage, jobid):
                continue
            if outage.reservation and self._inside.get(jobid, outage.reservation) == outage.reservation:
                continue
            if there is not None and outage not in told and there.until_s <= latest_s:
                continue  # it was over, and the clock has been set back
            if there is not None and there.from_s + ROUNDING_S < end_s and outage.targets & ranks:
                times = f"from {start_s} to {end_s}"
                raise self.broken(f"job {jobid} is granted {sorted(outage.targets & ranks)} {times}, across {there}")
        if name := self._inside.get(jobid):
            mine = [each for each in told if each.reservation == name]
            there = mine[0].at(start_s + ROUNDING_S) if mine else None
            if (
                there is None
                or ranks - there.targets
                or not there.from_s - ROUNDING_S < start_s < end_s <= there.until_s
            ):
                text = f"job {jobid} is granted {sorted(ranks)} from {start_s} to {end_s}"
                raise self.broken(f"{text}, outside of its reservation {mine}")

    def _is_for(self, outage: Outage, jobid: int) -> bool:
        """Whether it is dedicated to the group of a job, as far as that is known."""
        queue, groups = self._queues.get(jobid), self.site.queues
        return queue is None or groups.get(queue) == groups[outage.queue]

    def _stored(self, within_s: float = EFFECTIVE_S) -> Iterator[Outage]:
        """Those that have surely been planned for so long that all know them."""
        for name in self._names:
            possible = self._set.possible(("outage", name), self.now_s - within_s, self.now_s)
            if possible is not None and len(possible) == 1:
                (planned,) = possible
                if isinstance(planned, Outage):
                    yield planned

    # ---- ends

    def began(self, task: TaskBegan) -> None:
        """Tasks run."""
        self._began[task.jobid] = task

    def shrank(self, task: TaskShrank) -> None:
        """An outage of targets that they have left is none of theirs."""
        began = self._began.get(task.jobid)
        if began is not None:
            cores = {rank: cores for rank, cores in began.cores.items() if rank not in task.ranks}
            self._began[task.jobid] = began._replace(cores=cores)

    def ended(self, task: TaskEnded) -> None:
        """Their end has been moved to the begin of an outage that ends jobs, if they have run into it for a while."""
        began = self._began.pop(task.jobid, None)
        early_s = self._wall_s - EFFECTIVE_S - self.site.steps_s
        start_s = self._starts_s.get(task.jobid)
        if began is None or start_s is None:
            return
        for outage in self._stored():
            is_inside = outage.reservation and self._inside.get(task.jobid, outage.reservation) == outage.reservation
            is_met = outage.ends_jobs and outage.targets & began.cores.keys() and not is_inside
            there = outage.at(early_s) if is_met else None
            if there is not None and start_s < there.from_s < min(early_s, self._expires_s[task.jobid] - 1.0):
                self._crossed[task.jobid] = there

    def settled(self, truth: Truth) -> None:
        """So the logs say."""
        for jobid, outage in self._crossed.items():
            events = truth.eventlogs.get(jobid, ())
            if not any(event["name"] == "resource-update" and event["context"].get("outage") for event in events):
                raise self.broken(f"job {jobid} ran into {outage}, and its log has no other end: {events}")

    # ---- drains

    def quiet(self, status: Mapping[str, Any], groups: list[dict[str, Any]]) -> None:
        """Drained is what is to be by now, and dedicated; all else is back in its group."""
        self._check_drains(status, self.now_s, QUIET_S)
        there = {
            rank: group["name"] for key in ("targets", "incoming") for group in groups for rank in idset(group[key])
        }
        early_s = self._wall_s - QUIET_S - self.site.steps_s
        late_s = self._wall_s + self.site.steps_s + ROUNDING_S
        due: dict[int, set[str]] = {}
        for planned, is_sure in self._planned(self.now_s - QUIET_S):
            outage = planned.at(early_s) if planned.queue else None
            for rank in outage.targets if outage is not None and outage.from_s < late_s else ():
                assert outage is not None
                is_on = is_sure and outage.from_s < early_s and outage.until_s > late_s
                due.setdefault(rank, set()).add(self.site.queues[outage.queue] if is_on else "?")
        for rank, home in self.site.groups.items():
            wanted = due.get(rank, {home})
            if (
                home != SPARE_GROUP
                and rank not in self._assigned
                and len(wanted) == 1
                and not wanted & {"?", there[rank]}
            ):
                raise self.broken(f"{rank} is in group {there[rank]}, and should be in {wanted}")

    def _check_drains(self, status: Mapping[str, Any], asked_s: float, within_s: float) -> None:
        drained = {rank for ranks in status["drain"] for rank in idset(ranks)}
        early_s = EPOCH_S + asked_s - within_s - self.site.steps_s
        late_s = self._wall_s + self.site.steps_s + ROUNDING_S
        allowed, others = set[int](), idset(status.get("exclude", ""))
        for call in self._moving:
            others |= idset(call.payload["targets"])
        for planned, is_sure in self._planned(asked_s - within_s):
            there = None if planned.queue or planned.reservation else planned.at(early_s)
            if there is None or there.from_s > late_s:
                continue
            allowed |= there.targets
            if is_sure and there.from_s < early_s and there.until_s > late_s:
                moved_s = there.from_s - EPOCH_S - self.site.steps_s
                due = {rank for rank in there.targets - others if self._moved_s.get(rank, -inf) < moved_s}
                if missing := due - drained:
                    raise self.broken(f"{sorted(missing)} are not drained while {there} lasts")
        for rank in drained_for(status, OUTAGE_REASON) - allowed:
            raise self.broken(f"{rank} is drained by an outage, and none is on: {status['drain']}")

    def _planned(self, asked_s: float) -> Iterator[tuple[Outage, bool]]:
        """All that may be planned, and whether that is sure."""
        for name in self._names:
            possible = self._set.possible(("outage", name), asked_s, self.now_s) or set()
            for planned in possible:
                if isinstance(planned, Outage):
                    yield planned, len(possible) == 1
        yield from ((outage, True) for outage in self.site.outages)


def _moves(call: Call) -> bool:
    return call.topic in MOVES and not names_parts(call.payload)


def _read(row: Mapping[str, Any]) -> Outage:
    every_s, ends_jobs = row.get("every") or 0.0, bool(row.get("end_jobs"))
    reservation = row["name"] if row.get("reservation") else ""
    is_others = bool(row.get("users"))
    queue, times = row.get("queue") or "", (row["from"], row["until"])
    return Outage(idset(row["targets"]), *times, every_s, ends_jobs, queue, reservation, is_others)

"""Every stream of events, of jobs or the journal, tells a part of the truth, in its order and without gaps.

What a client has seen stays true, whatever is killed afterwards: in the end the events of each stream must be a stretch
of the log that is then read.
"""

from __future__ import annotations

from typing import Any

from tests.chaos.checkers.base import Call, Checker, Site, Truth

AFTER = {
    "alloc": ("priority",), "start": ("alloc",), "finish": ("alloc",), "release": ("alloc",),
    "free": ("release",), "clean": ("submit",),
}  # fmt: skip
"""What must have come before an event in a job's log (RFC 21)."""
UNLOGGED = frozenset({"memo"})
"""Events that watchers may see and the log may not have."""


class Stories(Checker):
    """Keeps what each stream has said."""

    name = "stories"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._watched: dict[Call, dict[int, list[tuple[float, str]]]] = {}
        self._logs: dict[Call, list[dict[str, Any]]] = {}
        self._journals: dict[Call, list[list[dict[str, Any]]]] = {}

    def answered(self, call: Call, payload: Any, errnum: int) -> None:
        """One more piece."""
        if errnum or not call.is_streaming:
            return
        match call.topic:
            case "job-manager.watch":
                jobs = self._watched.setdefault(call, {})
                for jobid, at_s, name, _ in payload["events"]:
                    seen = jobs.setdefault(jobid, [])
                    if seen and seen[-1][1] == "clean":
                        raise self.broken(f"{call.actor}: event {name} of job {jobid} after its clean")
                    seen.append((at_s, name))
            case "job-manager.eventlog":
                self._logs.setdefault(call, []).extend(payload["events"])
            case "resource.journal":
                self._journal(call, payload["events"])

    def _journal(self, call: Call, events: list[dict[str, Any]]) -> None:
        parts = self._journals.setdefault(call, [[]])
        if events:
            parts[-1] += events
        elif len(parts) == 2:
            raise self.broken(f"{call.actor}: a second marker in the journal")
        else:
            parts.append([])

    def settled(self, truth: Truth) -> None:
        """All is compared with the logs as they are in the end."""
        for jobid, events in truth.eventlogs.items():
            self._order(jobid, [event["name"] for event in events])
        for call, jobs in self._watched.items():
            for jobid, seen in jobs.items():
                self._watch(call, jobid, seen, truth.eventlogs.get(jobid, []))
        for call, events in self._logs.items():
            log = truth.eventlogs.get(call.payload["id"], [])
            if events != log[: len(events)]:
                raise self.broken(f"{call.actor} was told of job {call.payload['id']}: {events}; its log is {log}")
        if truth.journal:
            for call, parts in self._journals.items():
                self._told_journal(call, [event for part in parts for event in part], truth.journal)

    def _watch(self, call: Call, jobid: int, seen: list[tuple[float, str]], log: list[dict[str, Any]]) -> None:
        names = (call.payload or {}).get("names")
        said = [one for one in seen if one[1] not in UNLOGGED]
        logged = [(event["timestamp"], event["name"]) for event in log if event["name"] not in UNLOGGED]
        self._stretch(call, f"job {jobid}", said, [one for one in logged if not names or one[1] in names])

    def _told_journal(self, call: Call, said: list[dict[str, Any]], journal: list[dict[str, Any]]) -> None:
        begin_s = journal[0]["timestamp"] if journal[0]["name"] == "truncate" else -1.0
        kept = [event for event in said if event["name"] != "truncate" and event["timestamp"] > begin_s]
        self._stretch(call, "the journal", kept, [event for event in journal if event["name"] != "truncate"])

    def _order(self, jobid: int, names: list[str]) -> None:
        for place, name in enumerate(names):
            before = names[:place]
            if "clean" in before:
                raise self.broken(f"the log of job {jobid} goes on after clean: {names}")
            if any(needed not in before for needed in AFTER.get(name, ())):
                raise self.broken(f"event {name} of job {jobid} comes too early: {names}")

    def _stretch(self, call: Call, what: str, said: list[Any], log: list[Any]) -> None:
        """`said` must be found in the log in one piece."""
        if said:
            for start, event in enumerate(log):
                if event == said[0] and log[start : start + len(said)] == said:
                    return
            raise self.broken(f"{call.actor} was told of {what}: {said}; the log is {log}")

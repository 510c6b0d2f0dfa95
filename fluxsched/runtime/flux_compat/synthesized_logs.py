"""What Flux keeps beside a job's own log: how it was executed, and what its tasks printed (RFC 24).

Law: nothing is kept twice. Both are made from what an instance of ours has, the job's log and its spool files, when
a client asks. Spool files have no times: a piece of output has the time at which it was read, at the latest that of
the job's end.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.core.template import is_shared
from fluxsched.errors import FluxschedError
from fluxsched.jobs.effects import Event
from fluxsched.jobs.job.job import count_tasks
from fluxsched.jobs.job.result import shell_status
from fluxsched.protocol.messages.jobs import OutputResponse
from fluxsched.runtime.exec.tasks.layout import JobTasks, TaskBlock, blocks, more_blocks
from fluxsched.runtime.exec.tasks.tags import Tags
from fluxsched.runtime.flux_compat.shell import task_service
from fluxsched.runtime.services.jobs.task_output import STREAM_NAMES

VERSION = 1
"""Of RFC 24's output log and of RFC 34's map of tasks."""
NUL = b"\0"


def event(timestamp: float, name: str, context: Mapping[str, Any] | None = None) -> Event:
    """An event of RFC 18."""
    found: Event = {"timestamp": timestamp, "name": name}
    return found if context is None else {**found, "context": dict(context)}


def own_events(events: Iterable[Event]) -> Iterator[Event]:
    """A job's own events as Flux has them: there a shell passes on what became of the tasks."""
    for one in events:
        if one["name"] == "finish":
            one = event(one["timestamp"], "finish", {"status": shell_status(one["context"]["status"])})
        yield one


def task_counts(record: Mapping[str, Any]) -> list[int]:
    """The tasks of each target, in the order of their numbers; all in one where the job has no targets (yet)."""
    jobspec = Jobspec.parse(record["jobspec"])
    return [block.ntasks for block in _placed(jobspec, record)] or [count_tasks(jobspec)]


def all_tasks(record: Mapping[str, Any]) -> int:
    """How many tasks the job has had so far, those among them that it got with further targets."""
    jobspec = Jobspec.parse(record["jobspec"])
    tasks = JobTasks(_placed(jobspec, record), by_target=True)
    for one in record["eventlog"] if tasks.blocks else ():
        with suppress(FluxschedError):  # they were too many, and not started
            if one["name"] == "grow":
                tasks.blocks += more_blocks(jobspec, ResourceSet.parse(one["context"]["R"]), tasks)
            elif one["name"] == "release" and one["context"]["ranks"] != "all":
                tasks.remove(Idset.parse(one["context"]["ranks"]))
    return tasks.next or count_tasks(jobspec)


def _placed(jobspec: Jobspec, record: Mapping[str, Any]) -> list[TaskBlock]:
    """Where its tasks are; nowhere where it never ran here, or could not."""
    try:
        return blocks(jobspec, ResourceSet.parse(record["R"] or {}))
    except FluxschedError:
        return []


def taskmap(counts: Iterable[int]) -> list[list[int]]:
    """Which task is where, as RFC 34 writes it: runs of [first target, targets, tasks each, repeats]."""
    found, first = [], 0
    for count, run in groupby(counts):
        length = sum(1 for _ in run)
        found.append([first, length, count, 1])
        first += length
    return found


def exec_events(jobid: int, events: Iterable[Event], record: Callable[[], Mapping[str, Any]]) -> Iterator[Event]:
    """The execution log for these events of a job; `record` is called once it has started."""
    service = task_service(jobid)
    for one in own_events(events):
        at_s, name = one["timestamp"], one["name"]
        if name == "alloc":
            yield event(at_s, "init")
            yield event(at_s, "starting")
        elif name == "start":
            counts = task_counts(record())
            yield event(at_s, "shell.init", {"service": service, "leader-rank": 0, "size": len(counts)})
            yield event(at_s, "shell.start", {"taskmap": {"version": VERSION, "map": taskmap(counts)}})
        elif name == "finish":
            yield event(at_s, "complete", {"status": one["context"]["status"]})
            yield event(at_s, "done")


class OutputLog:
    """Makes the events of one job's output."""

    def __init__(self, jobid: int, record: Mapping[str, Any], now_s: Callable[[], float]) -> None:
        self._tasks = all_tasks(record)
        self._files = redirected(jobid, record)
        self._now_s = now_s

    def begin(self) -> Iterator[Event]:
        """The header, and which streams go to files of the user's choice."""
        now_s = self._now_s()
        count = dict.fromkeys(STREAM_NAMES, self._tasks)
        encoding = dict.fromkeys(STREAM_NAMES, "UTF-8")
        yield event(now_s, "header", {"version": VERSION, "encoding": encoding, "count": count, "options": {}})
        for stream, paths in self._files.items():
            for path, run in groupby(range(self._tasks), partial(_path_of, paths)):
                yield event(now_s, "redirect", {"stream": stream, "rank": str(Idset.of(run)), "path": path})

    def data(self, piece: OutputResponse) -> Iterator[Event]:
        """A piece of output, a line an event: clients that label output label each event."""
        now_s, rank = self._now_s(), str(piece.task or 0)
        for line in _lines(piece.data):
            yield event(now_s, "data", {"stream": piece.stream, "rank": rank, **_encoded(line)})

    def end(self) -> Iterator[Event]:
        """Nothing more comes from any task."""
        now_s = self._now_s()
        for task in range(self._tasks):
            for stream in STREAM_NAMES:
                if stream not in self._files:
                    yield event(now_s, "data", {"stream": stream, "rank": str(task), "eof": True})


def redirected(jobid: int, record: Mapping[str, Any]) -> dict[str, list[str]]:
    """The files of the user's choice: one for all tasks, or one for each; that of stdout takes stderr too, unless that
    has its own.
    """
    jobspec = Jobspec.parse(record["jobspec"])
    placed = _placed(jobspec, record)
    tags = Tags(jobid, jobspec, placed, record["R"] or {})
    error = jobspec.output if jobspec.error is None else jobspec.error
    found = {}
    for stream, template in (("stdout", jobspec.output), ("stderr", error)):
        if template is not None:
            ntasks = 1 if is_shared(template) else sum(block.ntasks for block in placed) or count_tasks(jobspec)
            found[stream] = [tags.fill(template, task) for task in range(ntasks)]
    return found


def _path_of(paths: list[str], task: int) -> str:
    return paths[min(task, len(paths) - 1)]


def _lines(data: bytes) -> list[bytes]:
    """Lines end in newlines only: a carriage return within one is the program's own business."""
    *whole, rest = data.split(b"\n")
    lines = [line + b"\n" for line in whole]
    return [*lines, rest] if rest else lines


def _encoded(data: bytes) -> dict[str, str]:
    """Text as text, anything else in base64 (to clients in C a NUL is not text)."""
    if NUL not in data:
        try:
            return {"data": data.decode()}
        except UnicodeDecodeError:
            pass
    return {"encoding": "base64", "data": base64.b64encode(data).decode()}

"""Columns of `fluxsched jobs`, with the field names of `flux jobs -o`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from fluxsched.cli.common import show
from fluxsched.cli.common.options import TableSpec
from fluxsched.cli.common.table import Field
from fluxsched.cli.jobs import usage as job_usage
from fluxsched.core.job_attributes import JOB_ATTRIBUTES
from fluxsched.core.jobid import format_dothex, format_f58, format_hex
from fluxsched.views.jobs import ABBREVIATIONS, PENDING, PREEMPTED, RESULTS, RETURNED, JobRow, parts_text


def _of(key: str) -> Callable[[JobRow], object]:
    return lambda row: row.info.get(key)


def _jobid(key: str) -> Callable[[JobRow], object]:
    return lambda row: show.jobid_text(row.info[key]) if row.info.get(key) else None


def _used(figure: Callable[[Mapping[str, Any]], object]) -> Callable[[JobRow], object]:
    def value(row: JobRow) -> object:
        usage = row.info.get("usage")
        return None if usage is None else figure(usage)

    return value


def _colour(value: object) -> str | None:
    return _COLOURS.get(str(value))


_COLOURS = {
    "F": show.RED, "FAILED": show.RED, "TO": show.RED, "TIMEOUT": show.RED, "CA": show.YELLOW, "CANCELED": show.YELLOW,
    "PR": show.YELLOW, PREEMPTED: show.YELLOW, "RT": show.YELLOW, RETURNED: show.YELLOW,
    "R": show.GREEN, "RUN": show.GREEN,
}  # fmt: skip


FIELDS = {
    **{name: Field(one.heading, _of(name)) for name, one in JOB_ATTRIBUTES.items() if one.heading},
    "id": Field("JOBID", lambda row: row.info["id"]),
    "id.dec": Field("JOBID", lambda row: row.info["id"]),
    "id.f58": Field("JOBID", lambda row: show.jobid_text(row.info["id"])),
    "id.f58plain": Field("JOBID", lambda row: format_f58(row.info["id"], ascii=True)),
    "id.hex": Field("JOBID", lambda row: format_hex(row.info["id"])),
    "id.dothex": Field("JOBID", lambda row: format_dothex(row.info["id"])),
    "nodelist": Field("NODELIST", JobRow.nodelist),
    "array": Field("ARRAY", _jobid("array")),
    "requeue_of": Field("REQUEUE-OF", _jobid("requeue_of")),
    "requeued_as": Field("REQUEUED-AS", _jobid("requeued_as")),
    "username": Field("USER", lambda row: show.user_name(row.info["userid"])),
    "status": Field("STATUS", JobRow.status, _colour),
    "status_abbrev": Field("ST", JobRow.status_abbrev, _colour),
    "state_single": Field("S", lambda row: ABBREVIATIONS.get(row.info["state"], "?")),
    "runtime": Field("RUNTIME", JobRow.runtime_s),
    "t_remaining": Field("REMAINING", JobRow.remaining_s),
    "contextual_time": Field(
        "TIME", lambda row: row.info["duration"] if row.info["state"] in PENDING else row.runtime_s()
    ),
    "contextual_info": Field("INFO", JobRow.contextual_info),
    "exception": Field("EXCEPTION", JobRow.exception),
    "exception.type": Field("EXCEPTION-TYPE", lambda row: (row.info.get("exception") or {}).get("type")),
    "exception.note": Field("EXCEPTION-NOTE", lambda row: (row.info.get("exception") or {}).get("note")),
    "exception.severity": Field("EXCEPTION-SEVERITY", lambda row: (row.info.get("exception") or {}).get("severity")),
    "result_abbrev": Field("RESULT", lambda row: RESULTS.get(str(row.info.get("result")).lower()), _colour),
    "sched.reason_pending": Field("REASON", lambda row: row.sched().get("reason_pending")),
    "sched.t_estimate": Field("T-ESTIMATE", lambda row: row.sched().get("t_estimate")),
    "sched.resource_summary": Field("RESOURCES", lambda row: row.sched().get("resource_summary")),
    "dependencies": Field("DEPENDENCIES", lambda row: ",".join(row.info.get("dependencies") or ())),
    "inactive_reason": Field("INACTIVE-REASON", JobRow.end_reason),
    "wall": Field("WALL", _used(lambda usage: usage["wall_s"])),
    "cpu": Field("CPU", _used(job_usage.cpu_s)),
    "cpu_user": Field("USER-CPU", _used(lambda usage: usage["user_s"])),
    "cpu_system": Field("SYSTEM-CPU", _used(lambda usage: usage["system_s"])),
    "max_rss": Field("MAXRSS", _used(job_usage.peak_text)),
    "max_rss_bytes": Field("MAXRSS", _used(lambda usage: usage["max_rss_bytes"])),
    "uri": Field("URI", JobRow.address),
    "parts": Field("PARTS", lambda row: parts_text(row.info.get("parts") or {})),
    "command": Field("COMMAND", lambda row: shlex.join(row.info.get("command") or ())),
}

_FIRST = "{id.f58:>12} ?:{queue:<8.8} +:{username:<8} {name:<10.10+}"
JOBS = TableSpec(
    {
        "default": f"{_FIRST} {{status_abbrev:>2.2}} {{ntasks:>6}} {{nnodes:>6h}} "
        "{contextual_time!F:>8h} {contextual_info}",
        "long": f"{_FIRST} {{status:>9.9}} {{ntasks:>6}} {{nnodes:>6h}} {{t_submit!d:%b%d %R::>12}} "
        "{t_remaining!F:>12h} {contextual_time!F:>8h} {contextual_info}",
        "deps": "{id.f58:>12} ?:{queue:<8.8} {name:<10.10+} {urgency:<3} {priority:<12} {state:<8.8} {dependencies}",
        "usage": f"{_FIRST} {{status_abbrev:>2.2}} {{ntasks:>6}} {{wall!F:>8h}} {{cpu!F:>8h}} "
        "{max_rss:>7h} {inactive_reason}",
        "endreason": f"{_FIRST} {{status_abbrev:>2.2}} {{t_inactive!d:%b%d %R::>12h}} {{inactive_reason}}",
    },
    FIELDS,
)

"""The columns of the tables: jobs with reason and estimated start, queues, groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.screen.panes.table import TableColumn
from fluxsched.views.jobs import PENDING, RUNNING, JobRow, queue_reason
from fluxsched.views.words import duration_text, user_name

TableEntry = Mapping[str, Any]

_STATUS_STYLES = {"R": "good", "C": "info", "F": "bad", "TO": "bad", "CA": "warn", "PR": "warn", "RT": "warn"}


def id_text(row: JobRow) -> str:
    """The id of a job, as f58 (RFC 19)."""
    return format_f58(row.info["id"], ascii=row.is_ascii)


def time_shown(row: JobRow) -> str:
    """How long it has run; a job that waits has the time until its estimated start, with a `~`."""
    if row.info["state"] in PENDING:
        return ""
    return duration_text(row.runtime_s())


def start_shown(row: JobRow) -> str:
    """In how long a job that waits starts by its scheduler's estimate."""
    estimate_s = row.estimate_s()
    return "" if not estimate_s else "~" + duration_text(max(0.0, round(estimate_s - row.now_s)))


def left_shown(row: JobRow) -> str:
    """How long a running job may still run, or how long one that waits may run."""
    left_s = row.remaining_s() if row.info["state"] in RUNNING else row.info.get("duration") or 0.0
    return duration_text(round(left_s) if left_s > 10 else left_s) if left_s else ""


def is_held(row: JobRow) -> bool:
    """Whether it waits because its urgency is 0."""
    return row.info["state"] in PENDING and row.info["urgency"] == 0


def _status_style(row: JobRow) -> str:
    return "warn" if is_held(row) else _STATUS_STYLES.get(row.status_abbrev(), "")


def _of(key: str) -> Callable[[JobRow], str]:
    return lambda row: "" if row.info.get(key) is None else str(row.info[key])


def _row_style(row: JobRow) -> str:
    return "dim" if row.info["state"] == "INACTIVE" else ""


JOB_COLUMNS = (
    TableColumn("JOBID", id_text, 14, ">", _row_style,
                lambda row: row.info["id"], fits=True),
    TableColumn("USER", lambda row: user_name(row.info["userid"]), 8, "<", _row_style,
                lambda row: user_name(row.info["userid"]), fits=True),
    TableColumn("QUEUE", _of("queue"), 10, "<", _row_style, _of("queue"), shown_from=72, fits=True,
                droppable=True),
    TableColumn("NAME", _of("name"), 10, "<", _row_style, _of("name"), share=1),
    TableColumn("ST", JobRow.status_abbrev, 2, "<", _status_style, JobRow.status_abbrev),
    TableColumn("URG", _of("urgency"), 3, ">", _row_style, lambda row: row.info["urgency"], shown_from=100),
    TableColumn("NODES", _of("nnodes"), 6, ">", _row_style, lambda row: row.info.get("nnodes"), fits=True),
    TableColumn("CORES", _of("ncores"), 8, ">", _row_style,
                lambda row: row.info.get("ncores"), shown_from=90, fits=True),
    TableColumn("TIME", time_shown, 6, ">", _row_style, JobRow.runtime_s),
    TableColumn("LEFT", left_shown, 6, ">", _row_style, lambda row: row.remaining_s() or None, shown_from=86),
    TableColumn("START", start_shown, 6, ">", lambda row: "info", JobRow.estimate_s,
                shown_from=66),
    TableColumn("REASON OR NODES", JobRow.reason, 10, "<", lambda row: "dim" if row.info["state"] in RUNNING else "",
                JobRow.reason, share=4),
)  # fmt: skip


def _yes(word: str, otherwise: str, key: str) -> Callable[[TableEntry], str]:
    return lambda entry: word if entry.get(key) else otherwise


def _closed_reason(entry: TableEntry) -> str:
    """Why a queue takes or starts nothing."""
    return "; ".join(filter(None, (str(entry.get("enable_reason") or ""), queue_reason(entry))))


QUEUE_COLUMNS = (
    TableColumn("QUEUE", lambda entry: str(entry["name"] or "(default)"), 16, "<", order=lambda entry: entry["name"],
                fits=True),
    TableColumn("SUBMIT", _yes("open", "closed", "enable"), 7, "<",
                lambda entry: "" if entry.get("enable") else "warn", fits=True),
    TableColumn("START", _yes("starts", "stopped", "start"), 8, "<",
                lambda entry: "" if entry.get("start") else "warn", fits=True),
    TableColumn("WAITING", lambda entry: _count(entry.get("pending")), 9, ">",
                order=lambda entry: entry.get("pending"), fits=True),
    TableColumn("RUNNING", lambda entry: _count(entry.get("running")), 9, ">",
                order=lambda entry: entry.get("running"), fits=True),
    TableColumn("GROUP", lambda entry: ",".join(entry.get("groups") or [entry.get("group") or "default"]), 12, "<",
                order=lambda entry: entry.get("group"), fits=True),
    TableColumn("POLICY", lambda entry: str(entry.get("policy") or ""), 14, "<", shown_from=66, fits=True),
    TableColumn("REASON", _closed_reason, 6, "<", share=1),
)  # fmt: skip


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else ""


def _size(key: str) -> Callable[[TableEntry], int]:
    return lambda entry: len(Idset.parse(entry.get(key) or ""))


def _acquired(entry: TableEntry) -> str:
    return str(entry.get("acquirer") or "yes") if entry.get("acquired") else "no scheduler"


GROUP_COLUMNS = (
    TableColumn("GROUP", lambda entry: str(entry["name"]), 16, "<", order=lambda entry: entry["name"], fits=True),
    TableColumn("TARGETS", lambda entry: _count(_size("targets")(entry)), 9, ">", order=_size("targets")),
    TableColumn("LEAVING", lambda entry: _count(_size("leaving")(entry) or None), 8, ">",
                lambda entry: "warn", _size("leaving")),
    TableColumn("COMING", lambda entry: _count(_size("incoming")(entry) or None), 8, ">",
                lambda entry: "warn", _size("incoming")),
    TableColumn("ACQUIRED BY", _acquired, 14, "<",
                lambda entry: "" if entry.get("acquired") or entry["name"] == "exclude" else "dim", _acquired),
    TableColumn("DIALECT", lambda entry: str(entry.get("dialect") or ""), 8, "<", shown_from=60),
    TableColumn("RANKS", lambda entry: str(entry.get("targets") or ""), 10, "<", share=1),
)  # fmt: skip

"""Jobs as people read them, and the filters of job lists.

A row shows a job's status, its times, and what one wants to know of it in this state. A filter turns options and
queries into the constraint of job-manager.list (rfc/jobs.md).

Law: command line, page and screen have the same filters, and they mean the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fluxsched.core.batch import ADDRESS_KEY
from fluxsched.core.jobid import format_f58
from fluxsched.errors import InvalidValue
from fluxsched.views.words import duration_text, time_text

PENDING = ("NEW", "DEPEND", "PRIORITY", "SCHED")
RUNNING = ("RUN", "CLEANUP")
JOB_STATES = {
    "pending": PENDING, "running": RUNNING, "active": PENDING + RUNNING, "inactive": ("INACTIVE",),
    **{state.lower(): (state,) for state in PENDING + RUNNING},
}  # fmt: skip
RESULTS = {"completed": "CD", "failed": "F", "canceled": "CA", "timeout": "TO"}
"""Names and abbreviations of how inactive jobs ended."""
PREEMPTED, RETURNED = "PREEMPTED", "RETURNED"
"""Status of a job that failed because it was preempted, as Slurm has it, or because its cluster did not begin it."""
_TAKEN = {"preempt": (PREEMPTED, "PR"), "return": (RETURNED, "RT")}
"""Status and letters by the type of the exception."""

ABBREVIATIONS = {"NEW": "N", "DEPEND": "D", "PRIORITY": "P", "SCHED": "S", "RUN": "R", "CLEANUP": "C", "INACTIVE": "I"}

WORDS = {"DEPEND": "depends", "PRIORITY": "waiting", "SCHED": "waiting", "RUN": "running", "CLEANUP": "ending"}
"""Statuses whose word for people is not simply their name."""


def parts_text(parts: Mapping[str, str]) -> str:
    """Return the ranks of each part as text: `coordinator:0 workers:1-6`."""
    return " ".join([f"{label}:{ranks}" for label, ranks in parts.items()])


class JobRow(NamedTuple):
    """A job as job-manager.list gives it, the time at which it was asked, and why its queue schedules nothing."""

    info: Mapping[str, Any]
    now_s: float
    blocked: str = ""
    is_ascii: bool = False
    """True if ids are written without the florin sign."""

    def runtime_s(self) -> float:
        """Return the run time of the job so far, or in all."""
        started_s = self.info.get("t_run")
        ended_s = self.info.get("t_cleanup") or self.info.get("t_inactive") or self.now_s
        return max(0.0, ended_s - started_s) if started_s else 0.0

    def remaining_s(self) -> float:
        """Return the time that a running job has left; 0 if unknown."""
        expiration_s = self.info.get("expiration") or 0.0
        return max(0.0, expiration_s - self.now_s) if expiration_s and self.info["state"] in RUNNING else 0.0

    def status(self) -> str:
        """Return the result if it has one, else the state."""
        return self._taken[0] or str(self.info.get("result") or self.info["state"])

    def word(self) -> str:
        """Return the status in one plain word."""
        status = self.status()
        return WORDS.get(status) or status.lower()

    @property
    def _taken(self) -> tuple[str, str]:
        """The status and its letters if it failed because it was preempted or returned; else empty texts."""
        if self.info.get("result") != "FAILED":
            return "", ""
        return _TAKEN.get((self.info.get("exception") or {}).get("type", ""), ("", ""))

    def status_abbrev(self) -> str:
        """Return the status in one or two letters."""
        if taken := self._taken[1]:
            return taken
        return RESULTS.get(self.status().lower()) or ABBREVIATIONS.get(self.status(), "?")

    def sched(self) -> Mapping[str, Any]:
        """Return the scheduler's annotations of the job."""
        return (self.info.get("annotations") or {}).get("sched") or {}

    def address(self) -> str | None:
        """Return the address of the instance that the job is, if it is one and runs."""
        said: Mapping[str, str] = (self.info.get("annotations") or {}).get("user") or {}
        return said.get(ADDRESS_KEY) if self.info["state"] in RUNNING else None

    def estimate_s(self) -> float | None:
        """Return the expected start (wall time), if the scheduler has one for a job that waits for resources."""
        waits = self.info["state"] in PENDING and not self._holding_back()
        # a row of views has what the scheduler said when it was asked, too (`JobReasons`)
        return self.sched().get("t_estimate") or self.info.get("estimate") or None if waits else None

    def contextual_info(self) -> str:
        """Return the information of interest in this state: what the job waits for, or how long still; where it is, why
        it failed.
        """
        estimate_s = self.estimate_s()
        return f"eta:{duration_text(max(0.0, estimate_s - self.now_s))}" if estimate_s else self.reason()

    def reason(self) -> str:
        """Return the same information as `contextual_info`, without the time that the job may wait."""
        sched = self.sched()
        if taken := self._taken[0]:
            again, note = self.info.get("requeued_as"), self.info["exception"].get("note") or taken.lower()
            return f"again as {format_f58(again, ascii=self.is_ascii)}; {note}" if again else str(note)
        if self.info["state"] == "CLEANUP" and self.info.get("exception"):
            return self.exception()
        if self.info["state"] not in PENDING:
            return self._failure() or self._place() or self.exception()
        return self._holding_back() or str(sched.get("reason_pending") or self.blocked)

    def _place(self) -> str:
        lease = self._lease()
        if lease and not lease.get("nodelist") and self.info["state"] == "RUN":
            return f"waits to start in cluster {lease['cluster']}"
        return self.nodelist()

    def nodelist(self) -> str:
        """Return where it runs or ran: in a cluster on hosts of its choice, perhaps not on those granted here."""
        lease = self._lease()
        if lease.get("nodelist"):
            return f"{lease['cluster']}:{lease['nodelist']}"
        return str(self.info.get("nodelist") or "")

    def _lease(self) -> Mapping[str, Any]:
        lease: Mapping[str, Any] = (self.info.get("annotations") or {}).get("lease") or {}
        return lease

    def _holding_back(self) -> str:
        """Return the condition that keeps a job from waiting for resources; empty if there is none."""
        if self.info.get("dependencies") and self.info["state"] == "DEPEND":
            return f"depends:{','.join(map(_readable, self.info['dependencies']))}"
        return "held" if self.info.get("priority") == 0 or self.info["urgency"] == 0 else ""

    def _failure(self) -> str:
        """Why it failed, or was canceled if that was said."""
        result = self.info.get("result")
        is_told = result == "CANCELED" and (self.info.get("exception") or {}).get("note")
        return self.end_reason() if is_told or result in ("FAILED", "TIMEOUT") else ""

    def end_reason(self) -> str:
        """Why an inactive job is no longer active: its fatal exception, else how its tasks ended. Else nothing."""
        if self.info["state"] != "INACTIVE":
            return ""
        exception, ended = self.info.get("exception") or {}, str(self.info.get("ended") or "")
        return ended if exception.get("severity") and ended else self.exception() or ended

    def exception(self) -> str:
        """Type and note of the exception that ended it."""
        exception = self.info.get("exception") or {}
        return ": ".join(str(exception[key]) for key in ("type", "note") if exception.get(key))


def _readable(dependency: str) -> str:
    """Return a dependency as a job has it, `SCHEME=VALUE`; the time of begin-time as a date."""
    scheme, _, value = dependency.partition("=")
    try:
        return f"{scheme}={time_text(float(value))}" if scheme == "begin-time" else dependency
    except ValueError:
        return dependency


def queue_reason(status: Mapping[str, Any]) -> str:
    """Why nothing of a queue is scheduled (a queue-status answer), empty if it is."""
    if status["start"]:
        return ""
    reason = str(status.get("start_reason") or "")
    return reason if status.get("blocked") else f"queue stopped{reason and ': '}{reason}"


# ---- filters of jobs

JobConstraint = dict[str, Any]

ANY_USER = "all"
RANGES = "JOBID..JOBID"
"""Name for ranges of ids among the terms."""
_WILD = frozenset("*?[")


class Jobs(NamedTuple):
    """The operands JOBID...: single jobs, and ranges as texts."""

    ids: tuple[int, ...] = ()
    ranges: tuple[str, ...] = ()


def in_states(*words: str) -> JobConstraint:
    """Jobs in one of these states or with one of these results."""
    states = sorted({state for word in words for state in JOB_STATES.get(word, ())})
    results = sorted(word.upper() for word in words if word in RESULTS)
    parts = [{operator: values} for operator, values in (("states", states), ("results", results)) if values]
    return parts[0] if len(parts) == 1 else {"or": parts}


def named(names: Iterable[str]) -> JobConstraint:
    """Jobs of one of these names; a name with `*`, `?` or `[...]` is also a pattern."""
    texts = list(names)
    patterns = [text for text in texts if not _WILD.isdisjoint(text)]
    exact: JobConstraint = {"name": texts}
    return {"or": [exact, {"name-pattern": patterns}]} if patterns else exact


def on_targets(text: str) -> JobConstraint:
    """Jobs that have resources on one of these hosts or ranks, or in one of these sets, which the instance knows."""
    from fluxsched.core.constraint import split_targets

    ranks, hosts, sets = split_targets(text)
    terms = [{"ranks": [str(ranks)]}] if ranks or not (hosts or sets) else []
    terms += [{"hostlist": [str(hosts)]}] if hosts else []
    terms += [{"targets": [",".join(map(str, sets))]}] if sets else []
    return terms[0] if len(terms) == 1 else {"or": terms}


def user_id(text: str) -> int | None:
    """Return a user by name or number; None for all. Raises InvalidValue."""
    import pwd

    try:
        return None if text == ANY_USER else int(text) if text.isdecimal() else pwd.getpwnam(text).pw_uid
    except (KeyError, ValueError):
        raise InvalidValue(f"there is no user {text!r}") from None


def terms_of(
    jobs: Jobs,
    *,
    user: int | None,
    names: tuple[str, ...],
    queues: tuple[str, ...],
    words: tuple[str, ...] | None,
    array: tuple[int, ...],
    sets: JobConstraint | None,
    targets: JobConstraint | None,
) -> dict[str, JobConstraint]:
    """Return the constraint of each option that was given, by the option's name."""
    found: dict[str, JobConstraint] = {}
    if jobs.ranges:
        found[RANGES] = {"id": [*jobs.ranges, *jobs.ids]}
    if user is not None:
        found["--user"] = {"userid": [user]}
    if names:
        found["--name"] = named(names)
    if queues:
        found["--queue"] = {"queue": list(queues)}
    if words:
        found["--filter"] = in_states(*words)
    if array:
        found["--array"] = {"array": list(array)}
    if sets is not None:
        found["--set"] = sets
    if targets is not None:
        found["--include"] = targets
    return found


def list_request(
    terms: Sequence[JobConstraint], ids: Sequence[int], wants_all: bool, since_s: float | None, count: int
) -> dict[str, Any]:
    """Return the job-manager.list request: active jobs, unless all are wanted or those that ended since."""
    every = [*terms] if wants_all or since_s is not None else [*terms, in_states("active")]
    constraint: JobConstraint | None = every[0] if len(every) == 1 else {"and": every} if every else None
    request = {"max_entries": count, "ids": [*ids] or None, "constraint": constraint, "since": since_s}
    return {key: value for key, value in request.items() if value is not None}

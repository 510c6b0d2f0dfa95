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
from fluxsched.core.text import counted, some_of
from fluxsched.errors import InvalidValue
from fluxsched.views.words import duration_text, rounded, size_text, span_text, time_text

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
            return f"depends:{some_of(list(map(_readable, self.info['dependencies'])))}"
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


# ---- queues in words


def queue_state(status: Mapping[str, Any]) -> tuple[str, str]:
    """Return whether a queue (a queue-status answer) is open, stopped or disabled, in words, and the reason."""
    words, reasons = [], []
    if not status["enable"]:
        words.append("disabled")
        reasons.append(str(status.get("enable_reason") or ""))
    if not status["start"]:
        words.append("not scheduled" if status.get("blocked") else "stopped")
        reasons.append(str(status.get("start_reason") or ""))
    return ", ".join(words) or "open", "; ".join(dict.fromkeys(filter(None, reasons)))


def queue_limits(
    status: Mapping[str, Any], limits: Sequence[Mapping[str, Any]], counts: Mapping[str, int]
) -> list[str]:
    """Return the limits of a queue in words, `3 of 10 running`: those of one job, then those of `[[limits]]` on it.

    `counts` has what is in use of each amount, as far as it is known: `running`, `waiting`, `nodes`, `cores`.
    """
    found = [text] if (text := _job_limits(status)) else []
    for limit in limits:
        if limit.get("queue") not in ("*", status.get("name")) or not status.get("name"):
            continue
        holders = [(kind, limit.get(kind)) for kind in ("user", "bank") if limit.get(kind) is not None]
        whose = " in ".join([f"each {kind}" if name == "*" else f"{kind} {name}" for kind, name in holders])
        used = {} if whose else counts
        parts = [
            f"{used[key]} of {limit[key]} {key}" if key in used else f"at most {limit[key]} {key}"
            for key in ("running", "waiting", "nodes", "cores", "gpus") if key in limit
        ]  # fmt: skip
        parts += [f"at most {span_text(limit['minutes'] * 60)} a job"] if "minutes" in limit else []
        found.append(f"{whose}{whose and ': '}{', '.join(parts)}")
    return found


def _job_limits(status: Mapping[str, Any]) -> str:
    """Return the limits of the queue on one job in words; empty if there are none."""
    least, most = status.get("nnodes_min"), status.get("nnodes_max")
    parts = [span_text(status["duration_max"])] if status.get("duration_max") else []
    if least is not None or most is not None:
        parts.append(f"{least or 1}-{'' if most is None else most} nodes")
    parts += [f"{status[key]} {word}" for key, word in (("ncores_max", "cores"), ("ngpus_max", "gpus"))
              if status.get(key) is not None]  # fmt: skip
    return f"a job: {', '.join(parts)}" if parts else ""


# ---- usage against what was asked

ADVISED_BELOW = 0.5
"""Part of what a job asked for: one that used less is advised to ask for less."""
ADVISED_FROM_S = 60.0
"""Time that a job must have run to be advised (seconds): of less nothing follows, and little is wasted."""
NOT_KNOWN = "not known"


class UsedLine(NamedTuple):
    """Something that a job asked for, as people read it, and what it used: also in per cent, if both are known."""

    name: str
    asked: str
    used: str
    percent: str


class Efficiency(NamedTuple):
    """Usage of a job against what it asked for, and advice."""

    lines: list[UsedLine]
    advice: list[str]


def cpu_s(usage: Mapping[str, Any]) -> float:
    """User and system time together."""
    return float(usage["user_s"] + usage["system_s"])


def peak_text(usage: Mapping[str, Any]) -> str:
    """Return the peak of the largest process; `<` before a bound."""
    bound = "<" if usage.get("max_rss_is_bound") else ""
    return bound + size_text(usage["max_rss_bytes"])


def finish_usage(events: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return what the tasks of a job have used, and each of them, by its event log; None where that is not known."""
    return next((event["context"].get("usage") for event in events if event["name"] == "finish"), None)


def memory_held(r: object) -> int:
    """Return the memory (bytes) in a job's R; 0 where there is none."""
    from fluxsched.core.resources import ResourceSet

    return ResourceSet.parse(r).count("memory") if isinstance(r, dict) else 0


def memory_asked(jobspec: object, r: object) -> int | None:
    """Return the memory (bytes) of a job's R if it asked for some, by its record; None where that is not known."""
    from fluxsched.core.jobspec import Jobspec, asks_for_memory

    is_asked = isinstance(jobspec, dict) and asks_for_memory(Jobspec.parse(jobspec))
    return memory_held(r) or None if is_asked else None


def gpus_held(r: object) -> int:
    """Return the number of GPUs in a job's R."""
    from fluxsched.core.resources import ResourceSet

    return ResourceSet.parse(r).count("gpu") if isinstance(r, dict) else 0


def efficiency(
    info: Mapping[str, Any], usage: Mapping[str, Any] | None, memory_bytes: int | None, ngpus: int = 0
) -> Efficiency:
    """Compare what a job, an entry of job-manager.list, has used with what it asked for: cores that it held while its
    tasks ran, the memory and the GPUs of its R, its limit of time.
    """
    found = _compared(info, usage, memory_bytes)
    if not ngpus:
        return found
    gpus = (usage or {}).get("gpus")
    if not gpus or not gpus["held_s"]:
        return found._replace(lines=[*found.lines, UsedLine("GPUs", str(ngpus), NOT_KNOWN, "")])
    part = gpus["busy_s"] / gpus["held_s"]
    used = rounded(part * ngpus)
    lines = [
        UsedLine("GPUs", str(ngpus), used, _percent(part)),
        UsedLine("GPU memory", "-", f"{size_text(gpus['max_bytes'])} (of one)", ""),
    ]
    is_wasted = part < ADVISED_BELOW and usage is not None and usage["wall_s"] >= ADVISED_FROM_S
    told = f"asked {counted(ngpus, 'GPU')}, used {used}: " + ("ask for fewer" if ngpus > 1 else "is it needed?")
    return Efficiency([*found.lines, *lines], [*found.advice, *([told] if is_wasted else [])])


def _compared(info: Mapping[str, Any], usage: Mapping[str, Any] | None, memory_bytes: int | None) -> Efficiency:
    limit_s, asked_cores = info.get("duration") or 0.0, info.get("ncores")
    memory, limit = "-" if memory_bytes is None else size_text(memory_bytes), span_text(limit_s) if limit_s else "-"
    if usage is None:
        asked = {"cores": str(asked_cores or NOT_KNOWN), "CPU time": NOT_KNOWN, "memory": memory, "time": limit}
        return Efficiency([UsedLine(name, text, NOT_KNOWN, "") for name, text in asked.items()], [])
    wall_s, used_s, peak, lost = usage["wall_s"], cpu_s(usage), _peak(info, usage), _unmeasured(info, usage)
    held_s = _held_core_s(info, wall_s)
    cores = held_s / wall_s if held_s and wall_s else asked_cores
    part = used_s / held_s if held_s and not lost else None
    used_cores = rounded(used_s / wall_s) if wall_s else NOT_KNOWN
    of_memory = peak["max_rss_bytes"] / memory_bytes if memory_bytes and "is_part" not in peak else None
    lines = [
        UsedLine("cores", rounded(cores) if cores else NOT_KNOWN, used_cores, _percent(part)),
        UsedLine("CPU time", span_text(held_s) if held_s else NOT_KNOWN, span_text(used_s), _percent(part)),
        UsedLine("memory", memory, peak_text(peak) + peak.get("is_part", ""), _percent(of_memory)),
        UsedLine("time", limit, span_text(wall_s), _percent(wall_s / limit_s if limit_s else None)),
    ]
    if lost:
        told = f"what {counted(lost, 'task')} used is not known: their host is lost, or does not answer"
        return Efficiency(lines, [told])
    advice, is_long = [], wall_s >= ADVISED_FROM_S
    if is_long and part is not None and part < ADVISED_BELOW and cores and round(cores) > 1:
        advice.append(f"asked {counted(round(cores), 'core')}, used {used_cores}: ask for fewer, or use all of them")
    if is_long and of_memory is not None and of_memory < ADVISED_BELOW:
        advice.append(f"asked {memory} of memory, used {peak_text(peak)}: ask for less")
    if info.get("result") == "COMPLETED" and limit_s > ADVISED_FROM_S and wall_s < ADVISED_BELOW * limit_s:
        advice.append(f"asked {limit}, ran {span_text(wall_s)}: with a shorter limit it may start earlier")
    return Efficiency(lines, advice)


def _percent(part: float | None) -> str:
    return "" if part is None else f"{100 * part:.1f}"


def _held_core_s(info: Mapping[str, Any], time_s: float) -> float | None:
    """Core-seconds that a job held in its first seconds; None where that is not known."""
    begin_s, held_s = info.get("t_run"), 0.0
    if not begin_s or not info.get("ncores"):
        return None
    end_s = begin_s + time_s
    for _, until_s, ncores in info.get("sizes") or ():
        if not ncores:  # several former sizes, which are not listed
            return None
        held_s += ncores * max(0.0, min(until_s, end_s) - begin_s)
        begin_s = max(begin_s, until_s)
    return float(held_s + info["ncores"] * max(0.0, end_s - begin_s))


def _unmeasured(info: Mapping[str, Any], usage: Mapping[str, Any]) -> int:
    """Return how many tasks are not in the sums, since their host was lost."""
    if info["ntasks"] < 2 or info.get("sizes"):
        return 0
    return int(max(0, info["ntasks"] - len(usage.get("tasks") or ()) - usage.get("tasks_left_out", 0)))


def _peak(info: Mapping[str, Any], usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sum of the peaks of all tasks; `is_part` says what else it is."""
    tasks = usage.get("tasks") or ()
    if info["state"] == "RUN":  # what has ended may have had more, and what is to come
        return {**usage, "is_part": " (largest process now)"}
    if info["ntasks"] < 2:
        return dict(usage)
    if len(tasks) < info["ntasks"] or info.get("sizes") or usage.get("has_others"):
        return {**usage, "is_part": " (largest process)"}
    peak = {"max_rss_bytes": sum(task["max_rss_bytes"] for task in tasks)}
    return {**peak, "max_rss_is_bound": any(task.get("max_rss_is_bound") for task in tasks)}


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

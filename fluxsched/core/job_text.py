"""Words for a job that others read: its attributes in listings, the reasons why it does not run, its wait status.

Law: each attribute is declared once, with its JSON key, which listing has it and how it is shown: listings, the
messages of protocol and the columns of the command line agree on this table. What a job has under these names is
`jobs.query`'s business. The reasons in each of a job's groups and clusters are joined into one text and taken apart
again here alone.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class JobAttribute(NamedTuple):
    """`listed`: job-manager.list has it.

    `flux`: Flux's job-list has it (RFC 43). `heading`: that of its column in `fluxsched jobs`, empty if it is not shown
    under its own name.
    """

    name: str
    type: str
    """Of its value in job-manager.list: a type of JSON Schema."""
    heading: str = ""
    listed: bool = True
    flux: bool = True


_ALL: Final = (
    JobAttribute("id", "integer", flux=False),  # Flux's job-list always gives it, it is not asked for
    JobAttribute("state", "string", "STATE"),
    JobAttribute("name", "string", "NAME"),
    JobAttribute("userid", "integer", "UID"),
    JobAttribute("urgency", "integer", "URG"),
    JobAttribute("priority", "integer", "PRI"),
    JobAttribute("t_submit", "number", "SUBMIT"),
    JobAttribute("ntasks", "integer", "NTASKS"),
    JobAttribute("duration", "number", "DURATION"),
    JobAttribute("annotations", "object"),
    JobAttribute("dependencies", "array"),
    JobAttribute("command", "array", flux=False),
    JobAttribute("queue", "string", "QUEUE"),
    JobAttribute("array", "integer", flux=False),
    JobAttribute("t_depend", "number", listed=False),
    JobAttribute("t_priority", "number", listed=False),
    JobAttribute("t_sched", "number", listed=False),
    JobAttribute("t_run", "number", "RUN"),
    JobAttribute("t_cleanup", "number", "CLEANUP"),
    JobAttribute("t_inactive", "number", "INACTIVE"),
    JobAttribute("status", "integer", flux=False),
    JobAttribute("waitstatus", "integer", listed=False),
    JobAttribute("exception", "object", flux=False),
    JobAttribute("exception_occurred", "boolean", listed=False),
    JobAttribute("exception_type", "string", listed=False),
    JobAttribute("exception_severity", "integer", listed=False),
    JobAttribute("exception_note", "string", listed=False),
    JobAttribute("returncode", "integer", "RETURNCODE", flux=False),
    JobAttribute("ended", "string", "ENDED", flux=False),
    JobAttribute("usage", "object", flux=False),
    JobAttribute("asked", "string", "ASKED", flux=False),
    JobAttribute("nnodes", "integer", "NNODES"),
    JobAttribute("ncores", "integer", "NCORES"),
    JobAttribute("ranks", "string", "RANKS"),
    JobAttribute("nodelist", "string", "NODELIST"),
    JobAttribute("sizes", "array", flux=False),
    JobAttribute("parts", "object", flux=False),
    JobAttribute("switch", "string", "SWITCH", flux=False),
    JobAttribute("expiration", "number", "EXPIRATION"),
    JobAttribute("success", "boolean", "SUCCESS"),
    JobAttribute("result", "string", "RESULT"),
    JobAttribute("cwd", "string", listed=False),
    JobAttribute("project", "string", listed=False),
    JobAttribute("bank", "string", "BANK"),
    JobAttribute("job_set", "string", "SET", flux=False),
    JobAttribute("preemptible_after", "number", "PREEMPTIBLE", flux=False),
    JobAttribute("requeue", "integer", "REQUEUE", flux=False),
    JobAttribute("attempt", "integer", "ATTEMPT", flux=False),
    JobAttribute("requeue_of", "integer", flux=False),
    JobAttribute("requeued_as", "integer", flux=False),
)

JOB_ATTRIBUTES: Final[Mapping[str, JobAttribute]] = MappingProxyType({one.name: one for one in _ALL})


# ---- reasons why a job does not run

_BETWEEN: Final = "; "
_PLACE: Final = re.compile(rf"(?:^|{_BETWEEN})(?=(?:group|cluster) [\w.-]+(?::| is silent))")


class Why(NamedTuple):
    """`reason` is what blocks the job and has to change, `rule` the rule behind it.

    `earliest_s` (wall time, seconds) is when it may start at the earliest, None if unknown; `when` is what
    the estimate rests on, or why there is none. The last three are empty for a job that no longer waits.
    """

    reason: str
    rule: str = ""
    when: str = ""
    earliest_s: float | None = None


def in_groups(texts: Iterable[tuple[str, str]]) -> str:
    """`group a: needs 4 nodes; group b: ...`: what holds in each group."""
    return _BETWEEN.join([f"group {name}: {text}" for name, text in texts])


def and_in_clusters(reason: str, texts: Iterable[str]) -> str:
    """Return a reason, if there is one, and what holds in clusters: texts that begin with `cluster NAME:` or `cluster
    NAME is silent`.
    """
    return _BETWEEN.join(filter(None, [reason, *texts]))


def apart(text: str) -> tuple[str, list[str]]:
    """Split a joined text into the reason that holds everywhere, which may be empty, and a text for each place."""
    reason, *places = _PLACE.split(text)
    return reason, places


# ---- wait statuses, as wait(2) gives them

def return_code(status: int) -> int:
    """Return the exit code of a wait status, or minus the signal that ended it (as Python and Flux have it)."""
    signum = status & 0x7F
    return -signum if signum else status >> 8 & 0xFF


def ended_text(status: int) -> str:
    """Return `exited 3`, `killed by SIGSEGV`."""
    code = return_code(status)
    return f"exited {code}" if code >= 0 else f"killed by {signal_name(-code)}"


def exit_code(fault: SystemExit) -> int:
    """Return the status with which Python leaves for what `sys.exit` was given."""
    return fault.code if isinstance(fault.code, int) else 0 if fault.code is None else 1


def signal_name(signum: int) -> str:
    """`SIGSEGV`; `signal 40` for one without a name of its own."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"

"""The attributes of a job as others see them, each declared once: its JSON key, which listing has it, how it is shown.

Law: what a job has under these names is `jobs.query.attributes`' business; this table is what its listings, the
messages of protocol and the columns of the command line agree on.
"""

from __future__ import annotations

from collections.abc import Mapping
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

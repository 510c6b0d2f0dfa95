"""What of a jobspec is refused when the job is submitted, and only then.

Law: a job that is in the store was accepted by the rules of its day, and is read again whatever these say now.
"""

from __future__ import annotations

from fluxsched.core.jobspec import Jobspec
from fluxsched.core.template import check_outputs
from fluxsched.errors import LimitExceeded

NAME_CHARS_MAX = 1024
"""A job's name is for people, and is in every listing."""


def check_submitted(jobspec: Jobspec) -> None:
    """Raises InvalidValue for unknown tags in names of output files, LimitExceeded for a name above NAME_CHARS_MAX."""
    check_outputs(jobspec.output, jobspec.error)
    name = jobspec.job_name or ""
    if len(name) > NAME_CHARS_MAX:
        raise LimitExceeded(f"the job's name has {len(name)} characters, limit {NAME_CHARS_MAX}: shorten it")

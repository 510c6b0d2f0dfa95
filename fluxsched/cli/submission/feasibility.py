"""Before a job is submitted: could it ever run? If not, it is refused here, with the reason.

Law: only the scheduler's own "never" refuses a job. If its group has no scheduler, or none answers in time, it is
submitted and waits; whatever else is wrong with it the submission says. One question serves all copies of a job.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Sequence
from typing import Any

from fluxsched.cli.common.options import InstanceHandle
from fluxsched.cli.submission.jobspec_options import UNSATISFIABLE
from fluxsched.errors import Refused, RPCError

ANSWER_S = 5.0
"""A scheduler answers within milliseconds; one that does not must not prevent submission."""

QUESTIONS_MAX = 100
"""Different jobs of one command that the scheduler is asked to check; a thousand would take a second."""


def check_feasible(handle: InstanceHandle, jobspecs: Iterable[dict[str, Any]], names: Sequence[str] = ()) -> None:
    """Raises Refused if the scheduler says of one of them that it could never run; then none is to be submitted.

    One that is to wait anyway (`--allow-infeasible`) is not checked. Jobs that ask for the same are checked once, and
    of many different ones only the first QUESTIONS_MAX. The error names all that could never run, by `names` where
    there are several.
    """
    asked: set[str] = set()
    faults: list[str] = []
    for at, jobspec in enumerate(jobspecs):
        system = jobspec.get("attributes", {}).get("system", {})
        wanted = json.dumps(
            (jobspec.get("resources"), system.get("constraints"), system.get("queue"), system.get("duration"))
        )
        if wanted in asked or UNSATISFIABLE in system:
            continue
        if len(asked) == QUESTIONS_MAX:
            break
        asked.add(wanted)
        try:
            if not _asked(handle, jobspec):
                break
        except Refused as fault:
            faults.append(f"{names[at]}: {fault}" if names and names[at] else str(fault))
    if faults:
        text = f"{'; '.join(faults)}; use --allow-infeasible to submit it and wait until it can"
        raise Refused(text, errno.EOVERFLOW)


def _asked(handle: InstanceHandle, jobspec: dict[str, Any]) -> bool:
    """Whether there was an answer; raises Refused if the job can never run."""
    from fluxsched.core.jobspec import without_bulk

    try:
        handle.rpc("feasibility.check", {"jobspec": without_bulk(jobspec)}, timeout_s=ANSWER_S)
    except RPCError as fault:
        if fault.errnum == errno.EOVERFLOW:
            raise Refused(f"can never run: {fault}", errno.EOVERFLOW) from None
        return fault.errnum not in (errno.ENOSYS, errno.ETIMEDOUT)
    return True

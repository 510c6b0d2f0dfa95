"""Before a job is submitted: could it ever run? What never could is refused here, with the reason.

Law: only the scheduler's own "never" refuses a job. Where nobody serves its group, or nobody answers in time, it is
submitted and waits; whatever else is wrong with it the submission says. One question serves all copies of a job.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Any

from fluxsched.cli.jobspec_options import UNSATISFIABLE
from fluxsched.cli.options import Handle
from fluxsched.errors import Refused, RPCError

ANSWER_S = 5.0
"""A scheduler answers within milliseconds; one that does not keeps nobody from submitting."""

QUESTIONS_MAX = 100
"""Different jobs of one command about which the scheduler is asked; of a thousand it would take a second."""


def check_feasible(handle: Handle, jobspecs: Iterable[dict[str, Any]]) -> None:
    """Raises Refused if the scheduler says of one of them that it could never run; then none is to be submitted.

    Nobody is asked about one that is to wait all the same (`--allow-infeasible`). Jobs in a row that ask for the same
    are asked about once, and of many different ones only the first QUESTIONS_MAX.
    """
    asked, questions = None, 0
    for jobspec in jobspecs:
        system = jobspec.get("attributes", {}).get("system", {})
        wanted = (jobspec.get("resources"), system.get("constraints"), system.get("queue"), system.get("duration"))
        if wanted == asked or UNSATISFIABLE in system:
            continue
        if questions == QUESTIONS_MAX or not _asked(handle, jobspec):
            return
        asked, questions = wanted, questions + 1


def _asked(handle: Handle, jobspec: dict[str, Any]) -> bool:
    """Whether somebody answers; raises Refused if he says never."""
    attributes = jobspec.get("attributes", {})
    system = {key: value for key, value in attributes.get("system", {}).items() if key != "environment"}
    bare = {**jobspec, "attributes": {**attributes, "system": system}}
    try:
        handle.rpc("feasibility.check", {"jobspec": bare}, timeout_s=ANSWER_S)
    except RPCError as fault:
        if fault.errnum == errno.EOVERFLOW:
            text = f"can never run: {fault}; --allow-infeasible submits it, to wait until it can"
            raise Refused(text, errno.EOVERFLOW) from None
        return fault.errnum not in (errno.ENOSYS, errno.ETIMEDOUT)
    return True

"""Texts for Flux's users, tools and tests: its form of our denials and of the line that reports that we are ready.

Law: our own reason is always in the text, after the words that people grep for under Flux.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue
from fluxsched.protocol.messages.alloc import HelloResponse
from fluxsched.protocol.messages.jobs import RaiseRequest
from fluxsched.sched.decisions import PREEMPT

NOT_AGAIN: Final = "; Flux does not submit it again"


def unsatisfiable(why: str) -> str:
    """The note of a denial that no change of availability lifts."""
    return f"unsatisfiable request: {why}"


def unreadable(jobspec: Mapping[str, Any], fault: InvalidValue) -> str:
    """The note of a denial: the jobspec cannot be read."""
    attributes = jobspec.get("attributes")
    if not isinstance(attributes, dict) or "system" not in attributes:
        return f"cannot parse jobspec: getting duration: Object item not found: system ({fault})"
    return f"cannot parse jobspec: {fault}"


def read(jobspec: Mapping[str, Any]) -> Jobspec:
    """Read the jobspec of an alloc request, which Flux has accepted. Raises InvalidValue, the denial's note."""
    try:
        return Jobspec.for_scheduler(jobspec)
    except InvalidValue as fault:
        raise InvalidValue(unreadable(jobspec, fault)) from fault


def preempted(wanted: RaiseRequest) -> RaiseRequest:
    """An exception of ours as Flux is asked for it: what a jobspec says of being submitted again is not done here."""
    if wanted.type != PREEMPT:
        return wanted
    return RaiseRequest(wanted.id, wanted.type, wanted.severity, f"{wanted.note}{NOT_AGAIN}")


def ready(depth: int | None, level: str, decides: str, resources: str) -> str:
    """The line that an admin looks for after loading a scheduler; `decides` names policy and plugins."""
    return f"ready: queue-depth={depth or 'unlimited'} log-level={level} {decides} Rv1 {resources}"


def hello(name: str, job: HelloResponse) -> str:
    """The debug line of one job that runs already."""
    return f"hello: id={name} priority={job.priority} userid={job.userid} t_submit={job.t_submit:.1f}"


def free(name: str, resources: str, final: bool) -> str:
    """The debug line of what a job frees."""
    return f"free: {name}: {resources}{' (final)' if final else ''}"

"""A job's way through the points from reserve on: what each plugin answers, and what is taken back.

Law: what was reserved is unreserved in the reverse order, all of it, whatever a plugin raises meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fluxsched.sched.hooks.api import PASS, JobSeen, Skip, Wait
from fluxsched.sched.hooks.chain import Chain, PluginFault, Point, ask, check_later, check_wait, why_of, wrong
from fluxsched.sched.pool.placement import Fits

ANNOTATION_KEYS_MAX = 64
"""Of one plugin and job; they are stored with the job."""


class Refusal(NamedTuple):
    """A job does not start: why, and when it is worth another pass (wall time, seconds), None if after any event."""

    why: str
    at_s: float | None = None
    is_fault: bool = False


class PermitWaits(NamedTuple):
    """Who has the job wait for a permit, with the reasons, and for how long (seconds)."""

    whys: dict[str, str]
    timeout_s: float


def refusal(name: str, point: str, answer: Any) -> Refusal | None:
    """What comes of the answer of a point that says PASS or Later."""
    found = check_later(name, point, answer)
    if found is None:
        return None
    if isinstance(found, PluginFault):
        return Refusal(found.why, None, True)
    return Refusal(why_of(name, found), found.at_s)


def objection(looks: Sequence[Point], job: JobSeen, rank: int) -> Refusal | None:
    """What a plugin says against this target."""
    for name, method in looks:
        found = refusal(name, "look", ask(name, method, job, rank))
        if found is not None:
            return found
    return None


def reserve(chain: Chain, job: JobSeen, fit: Fits) -> tuple[list[str], Refusal | None]:
    """The plugins that have reserved, in their order, and what the next one answered unless all have."""
    done: list[str] = []
    for name, method in chain.reserves:
        answer = ask(name, method, job, fit)
        if answer is not PASS:
            found = refusal(name, "reserve", answer)
            if found is not None:
                return done, found
        done.append(name)
    return done, None


def unreserve(chain: Chain, done: Sequence[str], job: JobSeen, fit: Fits, faults: list[str]) -> None:
    """Takes back what these plugins have reserved, the last first."""
    for name in reversed(done):
        method = chain.unreserves.get(name)
        if method is not None:
            tell(((name, method),), job, fit, faults)


def tell(points: Sequence[Point], job: JobSeen, fit: Fits, faults: list[str]) -> None:
    """Calls that answer nothing."""
    for name, method in points:
        answer = ask(name, method, job, fit)
        if isinstance(answer, PluginFault):
            faults.append(f"{answer.why} (told of job {job.jobid})")


def permit(points: Sequence[Point], job: JobSeen, fit: Fits) -> PermitWaits | Refusal | None:
    """Asks these for their permit: None if all have given it."""
    whys: dict[str, str] = {}
    timeout_s = 0.0
    for name, method in points:
        answer = ask(name, method, job, fit, job.now_s)
        if isinstance(answer, Wait):
            wait = check_wait(name, answer)
            if isinstance(wait, PluginFault):
                return Refusal(wait.why, None, True)
            timeout_s = min(timeout_s, wait.timeout_s) if whys else wait.timeout_s
            whys[name] = wait.why
        else:
            found = refusal(name, "permit", answer)
            if found is not None:
                return found
    return PermitWaits(whys, timeout_s) if whys else None


def bind(chain: Chain, job: JobSeen, fit: Fits) -> Mapping[str, Any] | Refusal:
    """Asks for the last objections, then for annotations: those of the first plugin that does not skip."""
    for name, method in chain.pre_binds:
        found = refusal(name, "pre_bind", ask(name, method, job, fit))
        if found is not None:
            return found
    for name, method in chain.binds:
        answer = ask(name, method, job, fit)
        if isinstance(answer, Skip):
            continue
        if not _are_annotations(answer):
            allowed = f"a mapping of at most {ANNOTATION_KEYS_MAX} annotations, or SKIP"
            return Refusal(wrong(name, "bind", answer, allowed).why, None, True)
        return {name: dict(answer)}
    return {}


def _are_annotations(answer: Any) -> bool:
    if not isinstance(answer, Mapping) or len(answer) > ANNOTATION_KEYS_MAX:
        return False
    return all(isinstance(key, str) for key in answer)


def wait_text(whys: Mapping[str, str]) -> str:
    """Whose permit a job waits for."""
    texts = [f"plugin {name!r}: {why or 'has not permitted it yet'}" for name, why in whys.items()]
    return "; ".join(texts)

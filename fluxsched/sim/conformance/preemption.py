"""Judges preemptions: whether the job allowed it, how many there are in a minute, and what becomes of the other job.

Law: nothing is shared with what is judged. Ages, victims and the rate are counted here; shares have changed when other
users have jobs than when a job was preempted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fluxsched.core.jobid import format_f58
from fluxsched.sched.fair.accounts import RATE_WINDOW_S, FairSettings
from fluxsched.sched.policy import Policy, Preempt
from fluxsched.sim.conformance.rule_broken import RuleBroken

ALLOWED, RATE, IN_VAIN = "allowed", "rate", "in-vain"
"""Laws, by the names of the rules that they belong to."""


class Preemptible(NamedTuple):
    """A running job that may be preempted from a time on (wall time, seconds)."""

    from_s: float


class _Awaited(NamedTuple):
    """A job for which others were preempted: the users who had jobs then, and the policy's line."""

    users: frozenset[int]
    line: str | None


class PreemptionJudge:
    """`running` are all jobs that run, None where one never may be preempted; `users` has the user of each job that
    waits or runs. `rate` jobs may be preempted in any RATE_WINDOW_S.
    """

    def __init__(self, rate: int, running: Mapping[int, Preemptible | None], users: Mapping[int, int]) -> None:
        self.preempted = 0
        self._rate = rate
        self._running = running
        self._users = users
        self._going: dict[int, int] = {}
        self._begun_s: list[float] = []
        self._awaited: dict[int, _Awaited] = {}

    def judge(self, decision: Preempt, waits: bool, now_s: float, line: str | None) -> None:
        """Raises RuleBroken for a decision that may not be; `waits`: the job for which it is may start."""
        jobid, beneficiary, _ = decision
        name = format_f58(jobid)
        if jobid not in self._running:
            raise RuleBroken(ALLOWED, f"job {name} is preempted, although it does not run")
        if jobid in self._going:
            raise RuleBroken(ALLOWED, f"job {name} is preempted again, although it is being preempted already")
        allows = self._running[jobid]
        if allows is None:
            raise RuleBroken(ALLOWED, f"job {name} is preempted, although it may never be")
        if now_s < allows.from_s:
            early_s = allows.from_s - now_s
            raise RuleBroken(ALLOWED, f"job {name} is preempted {early_s:g} s before it may be")
        if not waits:
            text = f"job {name} is preempted for job {format_f58(beneficiary)}, which does not wait"
            raise RuleBroken(IN_VAIN, text)
        self._begun_s = [begun_s for begun_s in self._begun_s if now_s < begun_s + RATE_WINDOW_S]
        if len(self._begun_s) >= self._rate:
            text = f"job {name} is preempted, the {len(self._begun_s) + 1}th within {RATE_WINDOW_S:g} s"
            raise RuleBroken(RATE, f"{text}: the rate is {self._rate}")
        self._begun_s.append(now_s)
        self._going[jobid] = beneficiary
        self._awaited[beneficiary] = _Awaited(frozenset(self._users.values()), line)
        self.preempted += 1

    def ended(self, jobid: int) -> None:
        """A job has ended."""
        self._going.pop(jobid, None)

    def passed(self, waiting: Mapping[int, Any]) -> None:
        """A pass has ended. Raises RuleBroken if a job still waits for which all have gone, and shares are the same."""
        going = set(self._going.values())
        users = frozenset(self._users.values())
        for jobid, awaited in list(self._awaited.items()):
            if jobid in going:
                continue
            del self._awaited[jobid]
            if jobid in waiting and awaited.users == users:
                text = f"job {format_f58(jobid)} waits on, although all have gone that were preempted for it"
                raise RuleBroken(IN_VAIN, text, awaited.line)


def rate_of(policy: Policy, fair: FairSettings) -> int:
    """How many jobs the policy may preempt in RATE_WINDOW_S."""
    rate = getattr(policy, "fair_overrides", {}).get("rate", fair.rate)
    assert isinstance(rate, int)
    return rate


def line_of(decisions: Iterator[object]) -> str | None:
    """`mine.py:12`, the line of the innermost `yield` at which a generator stands; None for what is no generator."""
    frame, at = None, decisions
    while (found := getattr(at, "gi_frame", None)) is not None:
        frame, at = found, at.gi_yieldfrom  # type: ignore[attr-defined]
    return None if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"

"""Programs of the site in a simulated world: they take their time, fail now and then, or never end by themselves.

The last word of a program in the configuration says what it is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import NamedTuple

from fluxsched.core.jobid import parse_jobid
from fluxsched.executor.base import JobLaunch
from tests.chaos.observations import ProgramBegan, ProgramEnded
from tests.chaos.wire import cores_of

SHELL = "/bin/sh"
RUNS_S = 0.01, 1.0
"""How long they take (seconds)."""
FAILED, ENDLESS = (0.1, 0.1, 0.6), 0.06
"""How often they fail, which differs from world to world, or do not end before they are asked to."""
ENDLESS_S = 1e6
HEALTH = "health"
CHECKS_S = 0.01, 0.3
"""How long its checks take (seconds)."""
OF_HEALTH = ("0", "0", "0", "256", str(75 << 8), "endless")
"""How checks of health end, each as often."""


class Program(NamedTuple):
    """One run of a program, which has a number as jobs have."""

    number: int
    what: str
    jobid: int
    host: str
    cores: Mapping[int, frozenset[int]]

    def began(self, at_s: float) -> ProgramBegan:
        """What is seen of its begin."""
        return ProgramBegan(at_s, *self)

    def ended(self, at_s: float, status: int) -> ProgramEnded:
        """What is seen of its end."""
        return ProgramEnded(at_s, self.number, status)


class Programs:
    """What becomes of each."""

    def __init__(self, chance: Random) -> None:
        self.is_calm = False
        """Whether all end well."""
        self._chance = chance
        self._failed = chance.choice(FAILED)

    def read(self, job: JobLaunch) -> tuple[tuple[str, ...], Program | None]:
        """The words of a simulated task, and the program if it is one."""
        words, known = tuple(job.jobspec.command), {name: text or "" for name, text in job.jobspec.environment.items()}
        if words[0] != SHELL:
            return words, None
        of = parse_jobid(known["FLUXSCHED_JOBID"]) if "FLUXSCHED_JOBID" in known else 0
        program = Program(job.jobid, words[-1], of, known["FLUXSCHED_HOST"], cores_of(dict(job.R)))
        if program.what == HEALTH:
            end = "0" if self.is_calm else self._chance.choice(OF_HEALTH)
            run_s = ENDLESS_S if end == "endless" else self._chance.uniform(*CHECKS_S)
            return ("task", str(run_s), "0" if end == "endless" else end), program
        run_s, luck = self._chance.uniform(*RUNS_S), 1.0 if self.is_calm else self._chance.random()
        if luck < ENDLESS:
            return ("task", str(ENDLESS_S), "0"), program
        return ("task", str(run_s), "256" if luck < ENDLESS + self._failed else "0"), program

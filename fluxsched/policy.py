"""The interface of policies, for those who write one (rfc/policies.md): import it from here, it stays."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from fluxsched.sched.policy import (
    ANYTHING,
    BACKFILLED,
    BEST_FIT,
    BINPACKING,
    FAIR,
    FIFO,
    IMMEDIATE,
    ITS_START,
    ITSELF,
    LEAST_LOST,
    LXF,
    NOTHING,
    ORDER,
    PAUSE,
    PLACEMENT,
    RESERVED,
    WORST_FIT,
    Decision,
    Deny,
    Fits,
    Grow,
    Infeasible,
    Insufficient,
    Option,
    Outcome,
    Part,
    Pause,
    Pending,
    PendingJob,
    Plan,
    Policy,
    Preempt,
    Reservation,
    Reserve,
    Running,
    Shrink,
    Skips,
    Start,
    View,
    Wake,
    Withhold,
    decide,
    enough,
)
from fluxsched.sched.registry import make

__all__ = [
    "ANYTHING", "BACKFILLED", "BEST_FIT", "BINPACKING", "FAIR", "FIFO", "IMMEDIATE", "ITSELF", "ITS_START",
    "LEAST_LOST", "LXF", "NOTHING", "ORDER", "PAUSE", "PLACEMENT", "RESERVED", "WORST_FIT", "Decision", "Deny",
    "Fits", "Grow", "Infeasible", "Insufficient", "Option", "Outcome", "Part", "Pause", "Pending", "PendingJob",
    "Plan", "Policy", "Preempt", "Reservation", "Reserve", "Running", "Shrink", "Skips", "Start", "View", "Wake",
    "Withhold", "decide", "enough", "make",
]  # fmt: skip

RENAMED = {"Waiting": "PendingJob"}
"""Names of 0.1.0 that go with the next version."""


if TYPE_CHECKING:
    Waiting = PendingJob
else:  # a type checker would take any name for one of this module

    def __getattr__(name: str) -> Any:
        if name not in RENAMED:
            raise AttributeError(
                f"module 'fluxsched.policy' has no attribute {name!r}; its public names are in its __all__"
            )
        # not DeprecationWarning, which Python hides in modules that others load, as policies are
        warnings.warn(f"fluxsched.policy.{name} is named {RENAMED[name]} now", FutureWarning, stacklevel=2)
        return globals()[RENAMED[name]]

"""The interfaces of plugins and of submit filters, for those who write one (rfc/plugins.md, rfc/submit-filters.md):
import them from here, they stay.
"""

from __future__ import annotations

from fluxsched.config.submit_filters import SubmitFilter, SubmittedJob
from fluxsched.errors import Refused
from fluxsched.sched.hooks import (
    ARRIVAL,
    FREE,
    PASS,
    SKIP,
    START,
    TARGETS,
    Fits,
    Gate,
    GroupSeen,
    Idset,
    JobSeen,
    Kind,
    Later,
    Never,
    Option,
    Part,
    Pass,
    Plugin,
    Preempt,
    Request,
    Shape,
    Skip,
    Wait,
)

__all__ = [
    "ARRIVAL", "FREE", "PASS", "SKIP", "START", "TARGETS", "Fits", "Gate", "GroupSeen", "Idset", "JobSeen", "Kind",
    "Later", "Never", "Option", "Part", "Pass", "Plugin", "Preempt", "Refused", "Request", "Shape", "Skip",
    "SubmitFilter", "SubmittedJob", "Wait",
]  # fmt: skip

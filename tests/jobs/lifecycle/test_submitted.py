"""What is refused of a job when it is submitted, and is no fault of one that is stored."""

from __future__ import annotations

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import LimitExceeded
from fluxsched.jobs.lifecycle.requests import NAME_CHARS_MAX, check_submitted


def test_a_name_longer_than_the_limit_is_refused_where_a_job_is_submitted() -> None:
    check_submitted(Jobspec.from_command(["true"], name="x" * NAME_CHARS_MAX))
    long = Jobspec.from_command(["true"], name="x" * (NAME_CHARS_MAX + 1))  # a stored one is still read
    with pytest.raises(LimitExceeded, match="the job's name has 1025 characters, limit 1024: shorten it"):
        check_submitted(long)

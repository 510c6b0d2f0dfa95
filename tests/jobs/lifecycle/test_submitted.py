"""What is refused of a job when it is submitted, and is no fault of one that is stored."""

from __future__ import annotations

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.jobs.lifecycle.requests import NAME_CHARS_MAX, check_submitted


def test_a_name_longer_than_the_limit_is_refused_where_a_job_is_submitted() -> None:
    check_submitted(Jobspec.from_command(["true"], name="x" * NAME_CHARS_MAX))
    long = Jobspec.from_command(["true"], name="x" * (NAME_CHARS_MAX + 1))  # a stored one is still read
    with pytest.raises(LimitExceeded, match="the job's name has 1025 characters, limit 1024: shorten it"):
        check_submitted(long)


def test_an_attribute_of_ours_that_means_nothing_is_refused_where_a_job_is_submitted() -> None:
    raw = Jobspec.from_command(["true"], nodes="1-2", elastic=True, max_hops=2).to_json()
    check_submitted(Jobspec.parse(raw))
    raw["attributes"]["system"]["fluxsched"]["max_hops"] = 2
    stored = Jobspec.parse(raw)
    told = "attributes.system.fluxsched.max_hops: unknown; known: elastic, max-hops, requeue"
    with pytest.raises(InvalidValue, match=told):
        check_submitted(stored)

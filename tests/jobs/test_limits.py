"""Limits of the job manager, each reached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluxsched.errors import InvalidValue, LimitExceeded, RemoteProtocolError
from fluxsched.jobs import grants
from fluxsched.jobs.allocation import ANNOTATIONS_KEPT
from fluxsched.jobs.dependencies import DESCRIPTION_CHARS_MAX, parse_dependency
from fluxsched.jobs.grants import RANK_CHARS_MAX, RANKS_CACHED_MAX, TARGETS_CACHED_MAX, parse_grant
from fluxsched.jobs.lifecycle import LIMIT_MAX
from fluxsched.jobs.query import LIST_MAX
from fluxsched.jobs.requests import TYPE_CHARS_MAX


def test_a_dependency_is_described_in_few_words() -> None:
    longest = "begin-time=1" + "0" * (DESCRIPTION_CHARS_MAX - len("begin-time=1"))
    assert parse_dependency(longest).at_s > 0
    with pytest.raises(LimitExceeded, match=f"longer than {DESCRIPTION_CHARS_MAX} characters"):
        parse_dependency(longest + "0")


def test_the_type_of_an_exception_is_a_short_word(world: Any) -> None:
    world.submit(1)
    world.do("raise_exception", 1, "x" * TYPE_CHARS_MAX, 7, "", None)
    with pytest.raises(InvalidValue, match=f"a word of 1-{TYPE_CHARS_MAX} characters"):
        world.do("raise_exception", 1, "x" * (TYPE_CHARS_MAX + 1), 7, "", None)


def test_the_queue_depth_of_a_scheduler_is_a_32_bit_number(alone: Any) -> None:
    alone.manager.allocation.hello("sched")
    with pytest.raises(RemoteProtocolError, match=f"is not within 1-{LIMIT_MAX}"):
        alone.manager.allocation.ready("sched", LIMIT_MAX + 1, 1.0)
    alone.manager.allocation.ready("sched", LIMIT_MAX, 1.0)


def test_a_listing_is_short_unless_asked_otherwise(alone: Any, spec: Callable[..., Any]) -> None:
    jobspec = spec()
    for jobid in range(1, LIST_MAX + 2):
        alone.manager.requests.submit(jobid, jobspec, userid=1, now_s=1.0)
    assert len(alone.listing()) == LIST_MAX


def test_grants_of_one_target_are_remembered_up_to_a_number(r_of: Callable[..., Any]) -> None:
    remembered = grants._one_target.cache_info
    assert remembered().maxsize == TARGETS_CACHED_MAX
    misses = remembered().misses
    for _ in range(2):
        parse_grant(1, r_of("131071", "0-62"))
    assert remembered().misses == misses + 1
    rlite = [{"rank": "9" * (RANK_CHARS_MAX + 1), "children": {}}]
    with pytest.raises(RemoteProtocolError, match="R for job 1 is not an RFC 20 R"):
        parse_grant(1, {"execution": {"R_lite": rlite}})
    assert remembered().misses == misses + 1, "a text that is too long is no key"


def test_jobs_on_one_target_share_its_set(r_of: Callable[..., Any]) -> None:
    first = parse_grant(1, r_of("7", "0"))
    assert parse_grant(2, r_of("7", "1")).ranks is first.ranks
    for rank in range(8, RANKS_CACHED_MAX + 8):
        parse_grant(3, r_of(str(rank), "2"))
    again = parse_grant(4, r_of("7", "3")).ranks
    assert again == first.ranks
    assert again is not first.ranks, "as many others are remembered"


def test_annotations_that_jobs_get_first_are_merged_once_up_to_a_number(world: Any) -> None:
    world.submit(1)
    job, allocation = world.job(1), world.manager.allocation
    for turn in range(ANNOTATIONS_KEPT + 2):
        given = {"sched": {"resource_summary": f"rank{turn}/core0", "reason_pending": None}}
        merged = allocation._merged(job, given)
        assert merged == {"sched": {"resource_summary": f"rank{turn}/core0"}}
        assert allocation._merged(job, given) is merged
        assert len(allocation._first_annotations) <= ANNOTATIONS_KEPT
    job.annotations = {"user": {"note": "x"}}
    assert allocation._merged(job, given) == {**merged, "user": {"note": "x"}}

"""How updates change annotations."""

from __future__ import annotations

from typing import Any

import pytest

from fluxsched.errors import LimitExceeded
from fluxsched.jobs.job.annotations import DEPTH_MAX, KEYS_MAX, merge


def test_annotations_merge_by_the_rules_of_rfc27() -> None:
    old = {"sched": {"t_estimate": 5.0, "reason_pending": "full"}, "user": "text"}
    new = merge(old, {"sched": {"t_estimate": None, "queue": 3}, "user": {"a": {"b": None, "c": 1}}, "gone": None})
    assert new == {"sched": {"reason_pending": "full", "queue": 3}, "user": {"a": {"c": 1}}}
    assert old == {"sched": {"t_estimate": 5.0, "reason_pending": "full"}, "user": "text"}


def test_jobs_may_share_annotations_that_merge_with_nothing() -> None:
    update = {"sched": {"resource_summary": "rank0/core0"}, "user": 1}
    assert merge({}, update) is update
    assert merge({"user": 2}, update) == update
    assert merge({}, {"sched": {"t_estimate": None}, "user": None}) == {"sched": {}}


def test_annotations_are_bounded() -> None:
    deep: dict[str, Any] = {"leaf": 1}
    for _ in range(DEPTH_MAX):
        deep = {"d": deep}
    with pytest.raises(LimitExceeded, match="nest deeper than 8"):
        merge({}, deep)
    with pytest.raises(LimitExceeded, match=f"limit {KEYS_MAX}"):
        merge({}, {str(key): 1 for key in range(KEYS_MAX + 1)})

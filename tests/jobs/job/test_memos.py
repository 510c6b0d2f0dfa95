"""Memos (RFC 21): what users and nested instances say of a job."""

from __future__ import annotations

from typing import Any

import pytest

from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.jobs.job.annotations import KEYS_MAX, MEMO_CHARS_MAX
from fluxsched.jobs.lifecycle.restore import read
from fluxsched.jobs.queue.queues import JobQueue, QueueConfig


def test_a_memo_is_an_event_below_user_and_null_takes_it_back(alone: Any) -> None:
    alone.scheduler()
    alone.run(1)
    alone.do("memo", 1, {"uri": "ssh://host/path", "note": "mine"})
    alone.do("memo", 1, {"note": None})
    assert alone.job(1).annotations["user"] == {"uri": "ssh://host/path"}
    assert alone.contexts(1, "memo") == [{"uri": "ssh://host/path", "note": "mine"}, {"note": None}]
    [row] = alone.rows()
    assert read(row, JobQueue(QueueConfig()))[0].annotations == alone.job(1).annotations


def test_a_volatile_memo_is_in_no_log(alone: Any) -> None:
    alone.submit(1)
    alone.do("memo", 1, {"note": "mine"}, volatile=True)
    assert alone.job(1).annotations["user"] == {"note": "mine"}
    assert "memo" not in alone.names(1)


def test_a_memo_outlives_the_scheduler_whose_own_words_do_not(alone: Any) -> None:
    alone.scheduler()
    alone.submit(1)
    alone.do("memo", 1, {"note": "mine"})
    alone.do("annotate", "sched", 1, {"sched": {"reason_pending": "no cores"}})
    alone.do("scheduler_lost", "sched")
    assert alone.job(1).annotations == {"user": {"note": "mine"}}


@pytest.mark.parametrize(
    ("memo", "kind", "error"),
    [
        ({}, InvalidValue, "an empty memo"),
        ({"x": "y" * MEMO_CHARS_MAX}, LimitExceeded, f"above the limit of {MEMO_CHARS_MAX}"),
        ({str(at): at for at in range(KEYS_MAX + 1)}, LimitExceeded, "annotations would have"),
    ],
)
def test_a_wrong_memo_changes_nothing(
    alone: Any, memo: dict[str, Any], kind: type[Exception], error: str
) -> None:
    alone.submit(1)
    with pytest.raises(kind, match=error):
        alone.manager.requests.memo(1, memo, 200.0)
    assert "memo" not in alone.names(1)
    assert alone.job(1).annotations is None


def test_a_job_that_has_ended_takes_no_memo(alone: Any) -> None:
    alone.scheduler()
    alone.run(1)
    alone.end(1)
    with pytest.raises(Refused, match="has ended"):
        alone.manager.requests.memo(1, {"x": 1}, 200.0)

"""Limits of a queue in words."""

from __future__ import annotations

from typing import Any

from fluxsched.views.jobs import queue_limits


def test_limits_say_for_whom_they_are() -> None:
    status: dict[str, Any] = {"name": "debug", "nnodes_min": 2, "ncores_max": 8}
    limits = [
        {"user": "*", "queue": "debug", "running": 2, "gpus": 4},
        {"user": "ann", "bank": "*", "queue": "*", "minutes": 30},
        {"queue": "batch", "running": 1},
        {"user": "*", "running": 9},
    ]
    assert queue_limits(status, limits, {"running": 3}) == [
        "a job: 2- nodes, 8 cores", "each user: at most 2 running, at most 4 gpus",
        "user ann in each bank: at most 30m a job",
    ]  # fmt: skip
    assert queue_limits({}, limits, {}) == []

"""Conversations with a real flux-core 0.88, played again: the same inputs bring the same outputs, word for word."""

from __future__ import annotations

from pathlib import Path

import pytest

RECORDINGS = Path(__file__).parent / "recordings"
OPTIONS = {
    "jobs": ["policy=firstfit", "log-level=debug"],  # properties, denials, an update, cancels, feasibility, a drain
    "hello": ["policy=firstfit", "log-level=debug", "queue-depth=4"],  # two jobs run, one waits
    # hello with ranks that a job has freed, a backfilled job, a new end of all, a drain, a shrink
    "changes": ["policy=easy", "log-level=debug"],
    "burst": ["policy=firstfit", "log-level=debug"],  # 60 jobs at once on 8 cores
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_recording_is_answered_as_it_was(name, replay):
    bridge = replay(RECORDINGS / f"{name}.jsonl", OPTIONS[name])
    stats = bridge.scheduler.report.stats()
    assert stats["running"] == 0
    assert stats["granted"] > 0
    assert bridge.waiting == {}


def test_every_recording_is_played():
    assert {path.stem for path in RECORDINGS.glob("*.jsonl")} == set(OPTIONS)

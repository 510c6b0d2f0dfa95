"""What Flux's clients see of a job that grew and shrank: events of ours beside theirs, its R, all its tasks."""

from __future__ import annotations

import json
from typing import Any

from fluxsched.core.jobspec import Jobspec
from fluxsched.runtime.flux_compat.job_info import CURRENT, JSON_DECODE, _resources, text_of
from fluxsched.runtime.flux_compat.synthesized_logs import OutputLog, all_tasks, exec_events, own_events


def r_of(ranks: str) -> dict[str, Any]:
    lite = [{"rank": ranks, "children": {"core": "0-1"}}]
    return {"version": 1, "execution": {"R_lite": lite, "starttime": 0.0, "expiration": 0.0}}


EVENTS: list[dict[str, Any]] = [
    {"timestamp": float(at), "name": name} | ({} if context is None else {"context": context})
    for at, (name, context) in enumerate([
        ("submit", {"userid": 1000, "urgency": 16, "flags": 0, "version": 1}), ("validate", None), ("depend", None),
        ("priority", {"priority": 16}), ("alloc", {}), ("start", None), ("grow", {"R": r_of("3")}),
        ("shrink", {"ranks": "1", "note": "for another"}), ("release", {"ranks": "1", "final": False}),
        ("grow", {"R": r_of("1")}), ("resource-update", {"expiration": 90.0}),
    ])
]  # fmt: skip
RECORD = {
    "eventlog": EVENTS,
    "jobspec": Jobspec.from_command(["work"], nodes="1-8", exclusive=True, elastic=True).to_json(),
    "R": r_of("0-1"),
}


def test_the_log_has_a_line_for_each_event() -> None:
    lines = text_of(own_events(EVENTS)).splitlines()
    assert [json.loads(line)["name"] for line in lines] == [event["name"] for event in EVENTS]
    assert [event["name"] for event in exec_events(1, EVENTS, lambda: RECORD)] == [
        "init", "starting", "shell.init", "shell.start",
    ]  # fmt: skip


def test_r_is_as_it_is_now_or_as_it_was_at_the_start() -> None:
    now: Any = _resources(1, RECORD, JSON_DECODE | CURRENT)
    assert now["execution"]["R_lite"] == [{"rank": "0-1,3", "children": {"core": "0-1"}}]
    assert now["execution"]["expiration"] == 90.0
    assert _resources(1, RECORD, JSON_DECODE) == r_of("0-1")


def test_output_is_that_of_all_tasks_that_ever_were() -> None:
    assert all_tasks(RECORD) == 4
    header = next(OutputLog(1, RECORD, lambda: 5.0).begin())
    assert header["context"]["count"] == {"stdout": 4, "stderr": 4}

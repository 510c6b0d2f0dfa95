"""Pages as they are read without script: every cell of their tables says something."""

from __future__ import annotations

import re
from typing import Any

JOB = {
    "jobid": "ƒ2", "user": "kim", "userid": 1, "name": "<b>fft</b>", "queue": "", "state": "RUN", "status": "RUN",
    "word": "running", "reason": "n7", "estimate": None, "urgency": 16, "ntasks": 1, "nnodes": 1, "t_submit": 90.0,
    "t_run": 100.0,
    "t_cleanup": 145.0, "duration": 3600.0, "annotations": {},
}  # fmt: skip
WAITS = {
    **{key: value for key, value in JOB.items() if not key.startswith("t_")}, "jobid": "ƒ3", "state": "SCHED",
    "status": "SCHED", "word": "waiting", "reason": "needs 3 targets", "estimate": 2_000_000_000.0, "t_submit": 90.0,
}  # fmt: skip


def cells(body: str, marked: str) -> list[str]:
    """The texts of the cells of the row that has this."""
    [row] = [row for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL) if marked in row]
    return [re.sub(r"<[^>]*>", "", each).strip() for each in re.findall(r"<t[dh].*?</t[dh]>", row, re.DOTALL)]


async def test_jobs_have_their_time_and_start(page: Any) -> None:
    page.follower.wholes["jobs"] = {"jobs": [JOB, WAITS], "order": ["ƒ2", "ƒ3"], "left_out": 0}
    body = (await page.ask("GET /jobs")).body
    assert cells(body, "ƒ2") == ["ƒ2", "running", "kim", "&lt;b&gt;fft&lt;/b&gt;", "", "1", "1", "45s", "16", "n7"]
    assert re.fullmatch(r"needs 3 targets · starts 2033-05-1\d .*", cells(body, "ƒ3")[-1])


async def test_a_job_has_times_as_dates(page: Any) -> None:
    page.follower.wholes["job"] = {
        "job": JOB, "why": None, "events": [{"timestamp": 90.0, "name": "submit"}], "output": [], "output_left_out": 0
    }  # fmt: skip
    body = (await page.ask("GET /jobs/%C6%922")).body
    record = dict(re.findall(r"<dt>(.*?)</dt><dd[^>]*>(.*?)</dd>", body))
    assert record["t_run"].startswith("19")
    assert (record["duration"], record["user"]) == ("1h", "kim")
    assert re.search(r'<time data-time="90.0">19\S+ .*</time>', body)


async def test_drains_have_their_size_and_time(page: Any) -> None:
    drain = {"timestamp": 90.0, "reason": "fan", "user": "ops", "state": "drained"}
    page.follower.wholes["machine"] = {**page.follower.wholes["machine"], "drains": {"1-3": drain}}
    ranks, size, state, since, *rest = cells((await page.ask("GET /machine")).body, 'data-ranks="1-3"')
    assert (ranks, size, state, rest) == ("1-3", "3", "drained", ["ops", "fan"])
    assert since.startswith("19")


async def test_the_history_has_its_steps(page: Any) -> None:
    samples = {
        "step": 60, "t": [600.0, 660.0], "cores": {"allocated": [6.0, 3.0], "free": [2.0, 1.0]}, "started": [1, 2],
        "pending": {"a": [1.0, 4.0], "b": [0.0, 2.0]}, "running": {"a": [3.0, 7.0]},
        "wait_p50": [None, 90.0], "wait_p95": [None, 120.0],
    }  # fmt: skip
    page.follower.wholes["history"] = {
        "samples": samples, "report": None, "intervals": [["1,3-4", "drained", 90.0, 180.0, "fan"]], "now": 700.0
    }  # fmt: skip
    body = (await page.ask("GET /history")).body
    assert cells(body, "7</td>")[1:] == ["3", "75%", "7", "6", "2", "1.5m", "2m"]
    assert cells(body, "1,3-4")[1:3] == ["3", "drained"]
    assert cells(body, "1,3-4")[4:] == ["1.5m", "fan"]

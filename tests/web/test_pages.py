"""Pages as they are read without script: every cell of their tables says something."""

from __future__ import annotations

import csv
import errno
import re
from datetime import datetime
from io import StringIO
from typing import Any

import pytest

from fluxsched.core.jobfields import WHEN_MAX
from fluxsched.errors import RPCError
from fluxsched.protocol.messages.jobs import LIST_START_MAX
from fluxsched.views.feeds import ROWS_MAX
from fluxsched.web.pages import CSV_COLUMNS

from .conftest import DRAINED

JOB = {
    "jobid": "ƒ2", "user": "kim", "userid": 1, "name": "<b>fft</b>", "queue": "", "state": "RUN", "status": "RUN",
    "word": "running", "reason": "n7", "estimate": None, "urgency": 16, "ntasks": 1, "nnodes": 1, "ncores": 4,
    "t_submit": 90.0, "t_run": 100.0,
    "t_cleanup": 145.0, "duration": 3600.0, "annotations": {},
}  # fmt: skip
WAITS = {
    **{key: value for key, value in JOB.items() if not key.startswith(("t_", "n"))}, "jobid": "ƒ3", "name": "x",
    "ntasks": 2, "nodes_asked": 2, "state": "SCHED",
    "status": "SCHED", "word": "waiting", "reason": "needs 3 targets", "estimate": 2_000_000_000.0, "t_submit": 90.0,
}  # fmt: skip


def cells(body: str, marked: str) -> list[str]:
    """The texts of the cells of the row that has this."""
    [row] = [row for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL) if marked in row]
    return [re.sub(r"<[^>]*>", "", each).strip() for each in re.findall(r"<t[dh].*?</t[dh]>", row, re.DOTALL)]


async def test_jobs_have_their_time_and_start(page: Any) -> None:
    page.follower.wholes["jobs"] = {"jobs": [JOB, WAITS], "order": ["ƒ2", "ƒ3"], "left_out": 0}
    body = (await page.ask("GET /jobs")).body
    assert cells(body, "ƒ2") == [
        "ƒ2", "running", "kim", "&lt;b&gt;fft&lt;/b&gt;", "", "", "1", "1", "4", "10s", "45s", "1h", "16", "", "n7"
    ]  # fmt: skip
    assert cells(body, "ƒ3")[7:9] == ["2", ""]
    assert re.fullmatch(r"needs 3 targets · starts 2033-05-1\d .*", cells(body, "ƒ3")[-1])


def links(body: str) -> dict[str, str]:
    """Where the links to other pages lead, which stand there for readers without script."""
    found = re.findall(r'<a href="/jobs\?([^"]*)">(‹ Previous|Next ›)</a>', body)
    return {words: address for address, words in found}


@pytest.mark.parametrize(("query", "shown", "left", "said", "expected"), [
    ("", 0, 0, "0 jobs shown", {}),
    ("", 1, 0, "1 job shown", {}),
    ("", 2, 1498, "1–2 of 1,500 jobs shown", {"Next ›": "start=2"}),
    ("max_entries=1&start=3", 1, 4, "job 4 of 5 shown", {
        "‹ Previous": "max_entries=1&amp;start=2", "Next ›": "max_entries=1&amp;start=4"}),
    ("start=2099", 0, 1500, "0 of 1,500 jobs shown", {"‹ Previous": "start=1400"}),
    (f"start={LIST_START_MAX - 2}", 2, 9000, "4,999–5,000 of 9,002 jobs shown", {
        "‹ Previous": "start=4798", "Next ›": "start=5000"}),
    (f"start={LIST_START_MAX}", 2, 9000, "5,001–5,002 of 9,002 jobs shown", {"‹ Previous": "start=4800"}),
])  # fmt: skip
async def test_pages_of_jobs_lead_to_those_that_can_be_reached(
    page: Any, query: str, shown: int, left: int, said: str, expected: dict[str, str]
) -> None:
    page.follower.wholes["jobs"] = {"jobs": [JOB] * shown, "order": [], "left_out": left}
    body = (await page.ask(f"GET /jobs?{query}")).body
    assert re.findall(r'id="jobs-note"[^>]*>(.*)</p>', body) == [said]
    assert links(body) == expected


async def test_jobs_are_a_file_for_spreadsheets_without_formulas(page: Any) -> None:
    hostile = {**WAITS, "name": "=1+1", "bank": 'a,"b"\x1b', "nodes_asked": 2, "urgency": -1}
    page.follower.wholes["jobs"] = {"jobs": [JOB, hostile], "order": ["ƒ2", "ƒ3"], "left_out": 3}
    answer = await page.ask("GET /jobs.csv?user=kim&max_entries=1&start=200")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/csv; charset=utf-8")
    assert answer.headers["content-disposition"] == 'attachment; filename="jobs-2-of-5.csv"'
    assert page.follower.params["jobs"] == {"user": "kim", "max_entries": str(ROWS_MAX)}
    first, second = csv.DictReader(StringIO(answer.body.removeprefix("\ufeff")))
    assert (tuple(first), first["name"]) == (CSV_COLUMNS, "<b>fft</b>")
    assert re.fullmatch(r"19\S+:\d\d[+-]\d\d:\d\d", first["t_run"])
    assert datetime.fromisoformat(first["t_run"]).timestamp() == 100.0
    assert [second[key] for key in ("name", "bank", "nnodes", "t_run", "urgency")] == [
        "'=1+1", 'a,"b"\\x1b', "2", "", "-1"
    ]  # fmt: skip
    page.follower.wholes["jobs"] = {"refused": "no user <x>"}
    assert "no user &lt;x&gt;" in (await page.ask("GET /jobs.csv")).body


async def test_a_job_has_times_as_dates(page: Any) -> None:
    page.follower.wholes["job"] = {
        "job": JOB, "why": None, "events": [{"timestamp": 90.0, "name": "submit"}], "output": [], "output_left_out": 0
    }  # fmt: skip
    assert 'id="usage" class="card" hidden' in (await page.ask("GET /jobs/%C6%922")).body
    lines = [["cores", "8", "1.1", "13.8"], ["memory", "-", "<3G", ""]]
    page.follower.wholes["job"]["usage"] = {"lines": lines, "advice": ["asked 8 cores, used <1>"]}
    body = (await page.ask("GET /jobs/%C6%922")).body
    assert [re.sub(r"<[^>]*>", "|", row) for row in re.findall(r"<tr><th scope=\"row\">.*?</tr>", body)] == [
        "||cores||8||1.1||13.8||", "||memory||-||&lt;3G||||"
    ]  # fmt: skip
    assert "<p>asked 8 cores, used &lt;1&gt;</p>" in body
    record = dict(re.findall(r"<dt>(.*?)</dt><dd[^>]*>(.*?)</dd>", body))
    assert record["t_run"].startswith("19")
    assert (record["duration"], record["user"]) == ("1h", "kim")
    assert re.search(r'<time data-time="90.0">19\S+ .*</time>', body)


async def test_drains_and_planned_outages_have_their_size_and_time(page: Any) -> None:
    drained = [DRAINED, {**DRAINED, "targets": "0", "hosts": "n0", "parts": "cores 4-7", "until": 900.0}]
    outage = {"name": "upd", "targets": "0-1", "hosts": "n[0-1]", "from": 90.0, "until": 150.0, "every": 86400.0,
              "reason": "firmware", "user": "kim", "on": True}  # fmt: skip
    talk = {**outage, "name": "talk", "targets": "0", "hosts": "n4", "reservation": True, "for": "ann,bob"}
    page.follower.wholes["machine"] |= {"drained": drained, "outages": [outage, talk]}
    body = (await page.ask("GET /machine")).body
    hosts, size, parts, state, since, *rest = cells(body, 'class="mono wraps">n[1-3]<')
    assert (hosts, size, parts, state, rest) == ("n[1-3]", "3", "all", "drained", ["", "ops", "fan"])
    assert since.startswith("19")
    _, size, parts, _, _, until, *_ = cells(body, 'class="mono wraps">n0<')
    assert (size, parts, until[:2]) == ("1", "cores 4-7", "19")
    _, size, kind, name, state, begin, _, every, users, user, reason = cells(body, 'class="mono wraps">n[0-1]<')
    assert (size, kind, name, state, begin[:2]) == ("2", "outage", "upd", "on", "19")
    assert (every, users, user, reason) == ("1d", "", "kim", "firmware")
    _, _, kind, _, _, _, _, _, users, *_ = cells(body, 'class="mono wraps">n4<')
    assert (kind, users) == ("reservation", "ann,bob")


async def test_groups_say_how_their_targets_are_and_an_empty_exclude_is_left_out(page: Any) -> None:
    empty = {"name": "exclude", "targets": "", "leaving": "", "incoming": "", "acquired": False, "states": {}}
    lab = {**empty, "name": "lab", "targets": "0-1999,2001", "states": {"drained": 1, "free": 2000}}
    page.follower.wholes["groups"] = {"groups": [empty, lab, {**empty, "name": "new"}], "queues": [], "holders": {}}
    body = re.sub("<[^>]*>", "", (await page.ask("GET /groups")).body)
    assert "2,001 targets1 drained2,000 free" in body
    assert "exclude" not in body
    assert "0 targets" in body


async def test_queues_have_their_targets_limits_and_first_start(page: Any) -> None:
    head = {"jobid": "ƒ3", "start": 2_000_000_000.0, "promised": True, "reason": "needs 3 nodes"}
    batch = {
        "name": "batch", "groups": ["default", "gpu"], "policy": "fair", "has_accounts": True, "state": "stopped",
        "reason": "<power>", "targets": {"total": 2000, "online": 1999, "free": 7}, "running": 1234, "waiting": 300,
        "limits": ["1 of 5 running", "each user: at most 2 running"], "looked_at": 100,
        "reasons": [["no free nodes", 97], ["held", 3]], "head": head,
    }  # fmt: skip
    debug = {**batch, "name": "", "policy": None, "has_accounts": False, "reason": "", "state": "open", "waiting": None,
             "targets": {"total": 2, "online": 2, "free": 2}, "head": {**head, "start": None}}  # fmt: skip
    page.follower.wholes["queues"] = {"queues": [batch, debug]}
    body = (await page.ask("GET /queues")).body
    *words, start = cells(body, ">batch<")
    assert words == [
        "batch", "default, gpu", "fair", "7 free of 2,000, 1,999 online", "1,234", "300", "stopped: &lt;power&gt;",
        "1 of 5 running; each user: at most 2 running", "no free nodes 97, held 3, of the first 100",
    ]  # fmt: skip
    assert start.startswith("ƒ3 planned 2033-05-1")
    assert 'href="/jobs?queue=batch"' in body
    assert 'href="/shares?group=default"' in body
    _, _, policy, targets, _, waiting, state, _, reasons, start = cells(body, "(unnamed)")
    assert (policy, targets, waiting, state) == ("", "2 free of 2", "", "open")
    assert (reasons, start) == ("no free nodes 97, held 3", "ƒ3 not known")


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
    assert cells(body, "7</td>")[1:] == ["3", "75%", "7", "6", "2", "1m 30s", "2m"]
    assert cells(body, "1,3-4")[1:3] == ["3", "drained"]
    assert cells(body, "1,3-4")[4:] == ["1m 30s", "fan"]


async def test_a_form_says_when_jobs_of_some_sizes_would_start(page: Any) -> None:
    entry = {"when": "it fits now", "start": 0.0, "short": None, "refused": False}
    later = {**entry, "when": "behind <2> jobs", "start": 4e9, "short": 1800.0}
    never = {**entry, "start": None, "refused": True, "limit": 60.0}
    page.follower.answers["job-manager.when"] = {"estimates": [entry, later, never]}
    assert 'id="starts"' not in (await page.ask("GET /when")).body
    body = (await page.ask("GET /when?nodes=1,+4-8:30+64&limit=2h&queue=debug")).body
    (_, asked) = page.follower.asked[-1]
    systems = [each["attributes"]["system"] for each in asked["jobspecs"]]
    assert [each["duration"] for each in systems] == [7200.0, 1800.0, 7200.0]
    assert [each["queue"] for each in systems] == ["debug"] * 3
    assert all(each["resources"][0]["exclusive"] for each in asked["jobspecs"])
    shown = re.findall(r"<td[^>]*>(.*?)</td>", body)
    assert shown[:4] == ["1", "2h", "now", "it fits now"]
    assert shown[4:6] == ["4-8", "30m"]
    assert shown[6].startswith("in ")
    assert shown[7] == "behind &lt;2&gt; jobs; now, for 30m at most"
    assert shown[9:11] == ["1m", "never"]
    page.follower.answers["job-manager.when"] = {"estimates": [entry]}
    assert 'name="bank" value="lab"' in (await page.ask("GET /when?nodes=2&cores=8&bank=lab")).body
    (_, asked) = page.follower.asked[-1]
    assert asked["jobspecs"][0]["attributes"]["system"]["bank"] == "lab"
    (node,) = asked["jobspecs"][0]["resources"]
    assert (node.get("exclusive", False), node["with"][0]["with"][0]["count"]) == (False, 8)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("nodes=x", "x"),
        ("nodes=1&cores=all", "cores &#39;all&#39; is not a number of cores: leave it empty for whole nodes"),
        ("nodes=1&limit=soon", "soon"),
        ("nodes=" + ",".join(["1"] * (WHEN_MAX + 1)), "33 sizes, the limit is 32: ask about fewer at a time"),
    ],
)
async def test_sizes_that_are_none_are_named(page: Any, query: str, words: str) -> None:
    reply = await page.ask(f"GET /when?{query}")
    assert reply.status == 400
    assert words in reply.body


async def test_what_the_instance_refuses_is_no_fault_of_the_form(page: Any) -> None:
    page.follower.refusal = RPCError("job-manager.when: guests may not", errno.EPERM)
    assert (await page.ask("GET /when?nodes=1")).status == 403

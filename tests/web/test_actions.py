"""What may be changed: only with our own form, once confirmed; what the instance is asked and what it said."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from fluxsched.errors import RPCError
from fluxsched.web import server as actions
from fluxsched.web.pages import ACTION_TOPICS
from fluxsched.web.server import ACTIONS, BODY_BYTES_MAX, FAULTS_MAX, FIELDS_MAX, IDS_MAX, URGENCY_MAX

JSON = {"Accept": "application/json"}


async def act(page: Any, name: str, **fields: str) -> tuple[int, dict[str, Any]]:
    sent = {"csrf": page.secrets.csrf, "confirmed": "yes", **fields}
    answer = await page.post(f"/actions/{name}", sent, JSON)
    return answer.status, json.loads(answer.body)


@pytest.mark.parametrize(
    ("name", "fields", "asked", "said"),
    [
        ("drain", {"targets": " 0-1 ", "reason": "fan", "mode": "overwrite"},
         ("resource.drain", {"targets": "0-1", "reason": "fan", "mode": "overwrite"}), "drained 0-1"),
        ("undrain", {"targets": "node7"}, ("resource.undrain", {"targets": "node7"}), "node7 back in service"),
        ("cancel", {"ids": "123"}, ("job-manager.cancel", {"id": 123, "note": "on the page"}), "canceled ƒ38"),
        ("cancel", {"ids": "123", "note": "no"}, ("job-manager.cancel", {"id": 123, "note": "no (on the page)"}),
         "canceled ƒ38"),
        ("urgency", {"ids": "ƒ38", "urgency": "0"}, ("job-manager.urgency", {"id": 123, "urgency": 0}),
         "held ƒ38"),
        ("raise", {"ids": "123", "type": "test"},
         ("job-manager.raise", {"id": 123, "type": "test", "severity": 0, "note": "on the page"}),
         "exception test raised on ƒ38"),
    ],
)  # fmt: skip
async def test_what_is_done(page: Any, name: str, fields: dict[str, str], asked: Any, said: str) -> None:
    assert await act(page, name, **fields) == (200, {"said": said})
    assert page.follower.asked == [asked]


@pytest.mark.parametrize(
    ("name", "fields", "error"),
    [
        ("drain", {"reason": "x"}, "name targets"),
        ("cancel", {}, "name jobs"),
        ("cancel", {"ids": "x" * 30}, "x"),
        ("cancel", {"ids": "1 " * (IDS_MAX + 1)}, f"the limit is {IDS_MAX}"),
        ("urgency", {"ids": "1", "urgency": "-1"}, "0 \\(hold\\) to 31"),
        ("urgency", {"ids": "1", "urgency": "٣"}, "is not a number"),
        ("urgency", {"ids": "1", "urgency": str(URGENCY_MAX + 1)}, "is not a number"),
        ("drain", {"targets": "99999999"}, "99999999"),
        ("drain", {"targets": "node[0-"}, "node"),
        ("raise", {"ids": "1"}, "not one word"),
        ("raise", {"ids": "1", "type": "{x} y"}, "not one word"),
    ],
)
async def test_what_is_wrong_is_said_before_it_is_confirmed(
    page: Any, name: str, fields: dict[str, str], error: str
) -> None:
    for confirmed in ("yes", ""):
        status, answer = await act(page, name, **{**fields, "confirmed": confirmed})
        assert status == 400
        assert re.search(error, answer["error"])
        assert page.follower.asked == []


async def test_unknown_targets_and_jobs_are_not_asked_about(page: Any) -> None:
    page.follower.refusal = RPCError("unknown ranks 7000: the ranks here are 0-3", 22)
    refused = await page.post("/actions/drain", {"csrf": page.secrets.csrf, "targets": "7000"})
    assert refused.status == 400
    assert "unknown ranks 7000" in refused.body
    page.follower.refusal, page.follower.answers = None, {"job-manager.list": {"jobs": [{"id": 1}]}}
    refused = await page.post("/actions/cancel", {"csrf": page.secrets.csrf, "ids": "1 123"})
    assert "no such job: ƒ38" in refused.body


async def test_jobs_that_are_ticked_are_one_list(page: Any) -> None:
    page.follower.answers = {"job-manager.list": {"jobs": [{"id": 1}, {"id": 123}]}}
    form = f"csrf={page.secrets.csrf}&ids=1&ids=%C6%9238&ids=1".encode()
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    asked = await page.ask("POST /actions/cancel", {**kind, "Content-Length": str(len(form))}, form)
    assert 'name="ids" value="1 ƒ38 1"' in asked.body
    page.follower.asked.clear()
    form += b"&confirmed=yes"
    done = await page.ask("POST /actions/cancel", {**kind, "Content-Length": str(len(form))}, form)
    assert (done.status, done.headers["location"]) == (303, "/jobs")
    assert [payload["id"] for _, payload in page.follower.asked] == [1, 123]


async def test_the_instances_own_words_are_shown(page: Any) -> None:
    page.follower.refusal = RPCError("Request requires admin credentials", 1)
    assert await act(page, "drain", targets="0") == (403, {"error": "Request requires admin credentials"})
    status, answer = await act(page, "cancel", ids=" ".join(map(str, range(1, FAULTS_MAX + 4))))
    assert (status, answer["error"].count("admin")) == (400, FAULTS_MAX)
    assert answer["error"].endswith("and 3 more")


async def test_without_script_it_is_asked_first_and_users_texts_stay_texts(page: Any) -> None:
    fields = {"csrf": page.secrets.csrf, "targets": "0", "reason": "<script>alert(1)</script>"}
    asked = await page.post("/actions/drain", fields)
    assert asked.status == 200
    assert "&lt;script&gt;alert" in asked.body
    assert "<script>alert" not in asked.body
    assert page.follower.asked == [("job-manager.running", {"targets": "0", "max_entries": 1})]
    done = await page.post("/actions/drain", {**fields, "confirmed": "yes"})
    assert (done.status, done.headers["location"]) == (303, "/machine")
    for ids, back in (("123", "/jobs/%C6%9238"), ("1 2", "/jobs")):
        done = await page.post("/actions/cancel", {"csrf": page.secrets.csrf, "confirmed": "yes", "ids": ids})
        assert done.headers["location"] == back
    page.follower.refusal = RPCError("target 9 is unknown", 22)
    failed = await page.post("/actions/drain", {**fields, "confirmed": "yes"})
    assert failed.status == 400
    assert "target 9 is unknown" in failed.body


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "none"},
    ],
)  # fmt: skip
async def test_another_sites_form_changes_nothing(page: Any, headers: dict[str, str]) -> None:
    fields = {"csrf": page.secrets.csrf, "confirmed": "yes", "targets": "0"}
    assert (await page.post("/actions/drain", fields, headers)).status == 403
    assert page.follower.asked == []


async def test_our_own_form_without_its_token_changes_nothing(page: Any) -> None:
    fields = {"confirmed": "yes", "targets": "0"}
    for csrf in ("", "0" * 64, page.secrets.cookie, page.secrets.token):
        refused = await page.post("/actions/drain", {**fields, "csrf": csrf})
        assert refused.status == 403
        assert "<h1>Not done</h1>" in refused.body
    assert page.follower.asked == []
    ours = {"Origin": f"http://{page.host}", "Sec-Fetch-Site": "same-origin", "X-CSRF": page.secrets.csrf, **JSON}
    assert (await page.post("/actions/drain", fields, ours)).status == 200


async def test_a_form_is_limited_in_size_time_and_kind(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    post, form = "POST /actions/drain", {"Content-Type": "application/x-www-form-urlencoded"}
    big = b"x" * (BODY_BYTES_MAX + 1)
    assert (await page.ask(post, {**form, "Content-Length": str(len(big))}, big)).status == 413
    assert (await page.post("/actions/drain", {str(n): "" for n in range(FIELDS_MAX + 1)})).status == 413
    assert (await page.ask(post, {"Content-Type": "text/plain", "Content-Length": "2"}, b"{}")).status == 400
    assert (await page.ask(post, {**form, "Content-Length": "2"}, b"\xff\xfe")).status == 400
    monkeypatch.setattr(actions, "BODY_S", 0.05)
    assert (await page.ask(post, {**form, "Content-Length": "9"}, b"csrf=")).status == 408
    assert page.follower.asked == []


async def test_methods_and_names_that_there_are_not(page: Any) -> None:
    assert (await page.post("/actions/format", {"csrf": page.secrets.csrf})).status == 404
    wrong = await page.ask("GET /actions/drain")
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    assert "<nav" in wrong.body  # in the page's look
    for line in ("DELETE /machine", "OPTIONS /machine", "TRACE /machine"):
        assert (await page.ask(line)).status == 405
    missing = await page.ask("GET /<script>alert(1)</script>")
    assert missing.status == 404
    assert "<script>alert" not in missing.body
    head = await page.ask("HEAD /machine")
    assert (head.status, head.body) == (200, "")


def test_each_action_has_a_topic_by_which_it_is_shown() -> None:
    assert ACTIONS.keys() == ACTION_TOPICS.keys()

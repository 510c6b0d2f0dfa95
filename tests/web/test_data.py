"""Wholes as JSON and files, compressed, and asked for anew."""

from __future__ import annotations

import errno
import json
import random
from typing import Any

import pytest

from fluxsched.core.idset import Idset
from fluxsched.errors import RPCError
from fluxsched.web import pages
from fluxsched.web.pages import IDSET_CHARS_MAX

from .conftest import DRAINED


async def test_a_whole_is_json(page: Any) -> None:
    answer = await page.ask("GET /data/machine")
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.body)["states"] == {"free": "0-3"}
    assert page.follower.open == {}


async def test_a_big_machine_is_compressed_and_in_the_page_only_its_sum(page: Any) -> None:
    chance = random.Random(1)
    cores: dict[str, list[int]] = {}
    for first in range(0, 131_072, 8):
        cores.setdefault(str(chance.choice((0, 16, 64, 64))), []).extend(range(first, first + 8))
    page.follower.wholes["machine"]["busy"] = {n: str(Idset.of(ranks)) for n, ranks in cores.items()}
    page.follower.wholes["machine"]["states"] = {"free": str(Idset.of(cores["0"]))}
    answer = await page.ask("GET /data/machine", {"Accept-Encoding": "gzip, br"})
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) < 80_000
    shown = await page.ask("GET /machine")
    assert "…" in shown.body
    assert len(shown.body) < 12_000 + IDSET_CHARS_MAX


async def test_without_script_too_control_characters_are_spelled_out(page: Any) -> None:
    row = {"jobid": "ƒA", "status": "RUN", "user": "kim", "name": "\x1b[31m", "ntasks": 1, "urgency": 16, "reason": "",
           "nodelist": "n0", "t_run": 100.0, "estimate": None, "word": "running"}  # fmt: skip
    page.follower.wholes["jobs"] = {"jobs": [row], "order": ["ƒA"], "left_out": 0}
    page.follower.wholes["machine"]["drained"] = [{**DRAINED, "reason": "\u202efan"}]
    shown = (await page.ask("GET /jobs")).body
    assert r"\x1b[31m" in shown
    assert "\x1b" not in shown
    assert r"\u202efan" in (await page.ask("GET /machine")).body


async def test_a_job_that_runs_is_not_said_to_wait(page: Any) -> None:
    job = {"jobid": "ƒA", "status": "RUN", "state": "RUN", "word": "running", "user": "kim", "name": "x", "urgency": 16}
    page.follower.wholes["job"] = {"job": job, "why": {"reason": "it runs on n0"}, "events": [], "output": []}
    assert 'class="card why" hidden' in (await page.ask("GET /jobs/%C6%92A")).body


async def test_files_are_checked_and_sent_when_they_have_changed(page: Any) -> None:
    first = await page.ask("GET /static/style.css")
    assert (first.status, first.headers["content-type"]) == (200, "text/css; charset=utf-8")
    again = await page.ask("GET /static/style.css", {"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, "")
    colours = await page.ask("GET /static/states.css")
    assert "--state-drained:" in colours.body


async def test_output_is_a_file_of_the_bytes_as_they_were_written(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [{"stream": "stdout", "data": b"\x1b[1ma\r"}, {"stream": "stderr", "data": b"bcd"}]
    page.follower.streams["job-manager.output"] = pieces
    answer = await page.ask("GET /jobs/%C6%92A/output")
    assert answer.body == "\x1b[1ma\rbcd"
    assert answer.headers["content-disposition"] == 'attachment; filename="fA.out"'
    assert (answer.headers["content-type"], answer.headers["x-content-type-options"]) == (
        "application/octet-stream", "nosniff")  # fmt: skip
    monkeypatch.setattr(pages, "DOWNLOAD_BYTES_MAX", 8)
    assert (await page.ask("GET /jobs/%C6%92A/output")).body.startswith("\x1b[1ma\rbc\n[there is more")
    page.follower.streams.clear()
    assert (await page.ask("GET /jobs/%C6%92A/output")).body == ""
    page.follower.refusal = RPCError("not yours", errno.EPERM)
    assert "not yours" in (await page.ask("GET /jobs/%C6%92A/output")).body

"""The instance's log: a flood of one kind of line is cut, counted, and costs the others nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from fluxsched.core.jobid import format_f58
from fluxsched.runtime.messaging import limits
from fluxsched.runtime.system import log as logs
from fluxsched.runtime.system.logs.format import JSON, of_job

World = Any


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    logs.setup(tmp_path / "log", 0)
    yield tmp_path / "log"
    logs.setup(None, 0)


def say(kind: str, at_s: float, *values: object) -> None:
    record = logging.LogRecord("fluxsched.router", logging.WARNING, "", 0, kind, values, None)
    record.created = at_s
    logging.getLogger("fluxsched").handle(record)


def test_a_flood_of_one_kind_is_cut_and_summed_up(path: Path) -> None:
    for number in range(1_000):
        say("peer %s sent nonsense", 1_000.0 + number / 1_000, number)
    say("a peer came", 1_001.0)
    say("a peer came", 1_011.0)
    lines = [line.partition(" fluxsched.router: ")[2] for line in path.read_text().splitlines()]
    assert lines[: logs.LINES_MAX] == [f"peer {number} sent nonsense" for number in range(logs.LINES_MAX)]
    assert lines[logs.LINES_MAX :] == [
        "a peer came",
        f"{1_000 - logs.LINES_MAX} more like this in the last 11 s: peer %s sent nonsense",
        "a peer came",
    ]


def test_a_kind_is_heard_again_when_its_window_is_over(path: Path) -> None:
    for begin_s in (1_000.0, 1_000.0 + logs.WINDOW_S):
        for _ in range(logs.LINES_MAX + 1):
            say("again", begin_s)
    assert path.read_text().count(" fluxsched.router: again") == 2 * logs.LINES_MAX
    assert path.read_text().count("1 more like this in the last 10 s: again") == 1


async def test_a_peer_that_sends_malformed_messages_in_a_loop_fills_no_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if its connection is not ended for it."""
    monkeypatch.setattr(limits, "MALFORMED_BURST", 10_000)
    site = await world.bare()
    peer, size = world.second(site), len((site.run_directory / "log").read_text())
    for _ in range(2_000):
        peer.socket.send_multipart([b"", b"instance.info", b"no header"])
    await peer.settle()
    said = (site.run_directory / "log").read_text()[size:]
    assert said.count("sent a malformed message") == logs.LINES_MAX
    assert len(said) < 200 * (logs.LINES_MAX + 5)


class About:
    """What is being handled."""

    def log_fields(self) -> dict[str, str]:
        return {"request": "0000002a", "topic": "a.b", "peer": "p"}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_in_json_say_what_they_are_about(tmp_path: Path) -> None:
    subject: list[About | None] = [None]
    logs.setup(tmp_path / "log", 0, JSON, lambda: subject[0])
    log = logs.logger("x")
    log.info("nothing is %s", "handled")
    subject[0] = About()
    log.warning("a request is, of \udcff and\nlines")
    log.info("of a job", extra=of_job(42, rank=3) | {"peer": "another"})
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("it failed")
    logs.setup(None, 0)
    first, second, third, fourth = lines_of(tmp_path / "log")
    assert first.items() >= {"level": "info", "logger": "fluxsched.x", "text": "nothing is handled"}.items()
    assert datetime.fromisoformat(first["time"]).tzinfo is not None
    assert first.keys() == {"time", "level", "logger", "text"}
    assert second["text"] == "a request is, of \udcff and\nlines"
    assert (second["request"], second["topic"]) == ("0000002a", "a.b")
    assert (third["jobid"], third["rank"], third["peer"]) == (format_f58(42), "3", "another")
    assert fourth["traceback"].endswith("ValueError: no")
    assert all(line.endswith('"}') for line in (tmp_path / "log").read_text().splitlines())


def test_a_flood_is_cut_in_json_too(tmp_path: Path) -> None:
    logs.setup(tmp_path / "log", 0, JSON)
    for _ in range(logs.LINES_MAX + 5):
        say("again", 1_000.0)
    say("later", 1_011.0)
    logs.setup(None, 0)
    assert [line["text"] for line in lines_of(tmp_path / "log")[logs.LINES_MAX :]] == [
        "5 more like this in the last 11 s: again", "later"
    ]  # fmt: skip


def test_lines_for_debugging_are_never_cut(tmp_path: Path) -> None:
    logs.setup(tmp_path / "log", 2)
    for number in range(2 * logs.LINES_MAX):
        logs.logger("x").debug("again %d", number)
    logs.setup(None, 0)
    assert (tmp_path / "log").read_text().count("again") == 2 * logs.LINES_MAX

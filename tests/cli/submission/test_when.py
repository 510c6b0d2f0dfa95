"""`submit --when`: a table of starts, and nothing submitted."""

from __future__ import annotations

import json

import pytest

from fluxsched.system.clock import SystemClock
from tests.cli.conftest import Cli

NOW_S = 1700000100.0
BEHIND = "behind 3 jobs, if all use up their limits"
FOUND = [
    {"start": NOW_S + 2400.0, "when": BEHIND, "short": 1800.0, "refused": False},
    {"start": NOW_S, "when": "it fits now", "short": None, "refused": False},
    {"start": None, "when": "the queue accepts no jobs: closed", "short": None, "refused": True},
]
TABLE = """\
NODES LIMIT    START      AT           WHY
   64 2h       in 40m     Nov14 22:55  behind 3 jobs, if all use up their limits
   64 30m      now        Nov14 22:15  it fits now, but not for longer
   16 2h       now        Nov14 22:15  it fits now
    8 1.5h     -          -            the queue accepts no jobs: closed
"""
ASK = ("submit", "--when", "-N64", "-t2h", "--or", "16,8:90m")


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemClock, "wall_s", staticmethod(lambda: NOW_S))


def test_sizes_and_the_longest_limit_that_starts_now_are_rows(cli: Cli) -> None:
    done = cli(*ASK, answers={"job-manager.when": {"estimates": FOUND}})
    assert (done.code, done.out, done.err) == (0, TABLE, "")
    [(topic, payload)] = done.calls
    asked = [(one["resources"][0]["count"], one["attributes"]["system"]["duration"]) for one in payload["jobspecs"]]
    assert (topic, payload["urgency"]) == ("job-manager.when", 16)
    assert asked == [(64, 7200.0), (16, 7200.0), (8, 5400.0)]


def test_json_and_the_status_where_none_would_be_accepted(cli: Cli) -> None:
    done = cli(*ASK, "--json", answers={"job-manager.when": {"estimates": FOUND}})
    assert json.loads(done.out) == FOUND
    done = cli("submit", "--when", "true", answers={"job-manager.when": {"estimates": FOUND[2:]}})
    assert (done.code, done.out.splitlines()[1].split()[:4]) == (1, ["-", "-", "-", "-"])
    by_queue = [{**FOUND[1], "limit": 600.0}]
    done = cli("submit", "--when", "true", answers={"job-manager.when": {"estimates": by_queue}})
    assert (done.code, done.out.splitlines()[1].split()[:3]) == (0, ["-", "10m", "now"])


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--or", "3", "true"], "--or adds sizes to a question: give --when, too"),
        (["--when", "--cc=1-2", "true"], "--when asks about one job"),
        (["--when", "--dry-run", "true"], "--when asks about one job"),
        (["--when", "--or", "3,x"], "'x' is neither a number of nodes"),
        (["--when", "--or", "3:x"], "duration 'x' is not a number"),
        (["--when", "--or", ",".join("1" * 32)], "33 sizes, the limit is 32: ask about fewer at a time"),
    ],
)
def test_wrong_usage(cli: Cli, more: list[str], text: str) -> None:
    done = cli("submit", *more)
    assert (done.code, done.calls) == (2, [])
    assert text in done.err

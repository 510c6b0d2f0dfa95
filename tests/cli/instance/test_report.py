"""`fluxsched report`: a table that people read, CSV and JSON that programs do, and times that cannot be."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest

T = 1_795_384_800.0


def row(name: str, **values: Any) -> dict[str, Any]:
    results = {"completed": 8, "failed": 1, "canceled": 2, "timeout": 1}
    usual = {
        "name": name, "jobs": 12, "running": 0, "results": results, "core_seconds": 7200.0, "gpu_seconds": 0.0,
        "cpu_seconds": 0.0, "cpu_core_seconds": 0.0, "waits": 12, "wait_mean": 75.0, "wait_p50": 31.5,
        "wait_p95": 600.0,
    }  # fmt: skip
    return usual | values


ROWS = [
    row("optics", running=3, gpu_seconds=1800.0, cpu_seconds=900.0, cpu_core_seconds=1000.0),
    row("", core_seconds=36.0, wait_mean=None, wait_p50=None, wait_p95=None),
]
CAPACITY = {"allocated": 7236.0, "free": 5364.0, "drained": 1800.0, "down": 0.0, "excluded": 99_999.0}


@pytest.fixture
def shown(cli: Any) -> Any:
    def run(*args: str, **values: Any) -> Any:
        answer = {
            "by": "bank", "since": T - 7200.0, "until": T, "rows": ROWS, "left_out": 0,
            "total": row("", jobs=24, core_seconds=7236.0), "observed": 3600.0, "capacity": CAPACITY,
        }  # fmt: skip
        return cli("report", "--by", "bank", *args, answers={"history.report": answer | values})

    return run


def test_the_table_ends_with_a_total_and_with_what_became_of_the_machine(shown: Any) -> None:
    done = shown()
    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert lines[0].startswith("Use by bank, 2026-")
    assert lines[1:] == [
        "NAME           JOBS RUNNING FAILURES CORE-HOURS  USED% GPU-HOURS  CPU%    WAIT     P50     P95",
        "optics           12       3        2       2.00   50.0      0.50  90.0   1.25m   31.5s     10m",
        "(none)           12       -        2       0.01    0.2",
        "total            24       -        2       2.01   50.2                   1.25m   31.5s     10m",
        "",
        "Machine: 4.00 core-hours observed in 1h: 50.2% used, 37.2% idle, 12.5% lost to drains (0.50 core-hours)",
    ]


def test_without_the_machine_there_is_no_share_of_it(shown: Any) -> None:
    done = shown(capacity=None, left_out=7)
    assert "USED%" not in done.out
    assert "Machine" not in done.out
    assert done.err == "7 more rows: see --count\n"


def test_csv_has_full_precision_and_no_total(shown: Any) -> None:
    rows = list(csv.DictReader(shown("--csv").out.splitlines()))
    assert [one["bank"] for one in rows] == ["optics", "(none)"]
    assert rows[0]["core_hours"] == "2.0000"
    assert (rows[0]["timeout"], rows[0]["wait_p95_s"], rows[1]["wait_p95_s"]) == ("1", "600.000", "")


def test_csv_without_a_header_and_not_as_json_too(shown: Any) -> None:
    assert shown("--csv", "-n").out.splitlines() == shown("--csv").out.splitlines()[1:]
    assert "give one of them" in shown("--csv", "--json").err


def test_until_now_may_be_said(shown: Any) -> None:
    assert "Use by bank" in shown("--until", "now").out


def test_what_users_have_written_stays_text(shown: Any) -> None:
    evil = 'a"b,\n\x1b[31m'
    assert "\x1b" not in shown(rows=[row(evil)]).out
    (one,) = csv.DictReader(shown("--csv", rows=[row(evil)]).out.splitlines())
    assert one["bank"] == 'a"b,\\n\\x1b[31m'


def test_json_is_the_answer(shown: Any) -> None:
    assert json.loads(shown("--json").out)["capacity"] == CAPACITY


def test_an_empty_history_says_so(shown: Any) -> None:
    done = shown(rows=[], capacity=None)
    assert done.err == "no job ran in this time\n"
    assert "total" not in done.out


@pytest.mark.parametrize(("args", "said"), [
    (("--since", "2100-01-01"), "is not between 1970 and now"),
    (("--since", "-1h", "--until", "-2h"), "--since is after --until"),
    (("--since", "soon"), "neither a duration"),
    (("--count", "0"), "10000"),
    (("--by", "colour"), "property"),
])  # fmt: skip
def test_what_cannot_be_is_refused(shown: Any, args: tuple[str, ...], said: str) -> None:
    done = shown(*args)
    assert done.code != 0
    assert said in done.err


def test_times_are_asked_for_as_they_were_given(cli: Any) -> None:
    asked: list[dict[str, Any]] = []
    answer = {"by": "user", "since": 0.0, "until": T, "rows": [], "left_out": 0, "total": row(""), "observed": 0.0,
              "capacity": None}  # fmt: skip
    cli("report", "--since", "2026-01-01", "--until", "-1h", "-c", "5",
        answers={"history.report": lambda payload: asked.append(payload) or answer})  # fmt: skip
    assert asked[0]["since"] < asked[0]["until"]
    assert (asked[0]["by"], asked[0]["max_entries"]) == ("user", 5)

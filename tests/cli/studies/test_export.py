"""`sim export` at the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxsched.cli import studies
from fluxsched.cli.studies import EXPORTED_MAX
from fluxsched.instance.record import Record
from fluxsched.sim.traces import read_trace
from tests.cli.conftest import Cli
from tests.sim.test_export import ROWS, SPEC, R


def test_the_command_says_what_is_left_out(cli: Cli, tmp_path: Path) -> None:
    answers = {
        "job-manager.list": {"jobs": ROWS}, "job-manager.lookup": {"jobspec": SPEC.to_json()},
        "resource.sched-status": {"all": R},
    }  # fmt: skip
    path = tmp_path / "a.jsonl"
    done = cli("sim", "export", "--anonymous", "-o", str(path), answers=answers)
    assert (done.code, done.out) == (0, "")
    assert done.err == "fluxsched: sim export: left out 1 of 4 jobs: never ran\n"
    assert len(read_trace(path).jobs) == 3
    assert done.calls[0] == ("job-manager.list", {"states": ["INACTIVE"], "max_entries": EXPORTED_MAX})


def test_the_command_says_that_the_machine_is_another_one(cli: Cli, tmp_path: Path) -> None:
    rows = [{**row, "ranks": ranks} for row, ranks in zip(ROWS, ("0-3", "4-5", "0", "1-4"), strict=True)]
    answers = {
        "job-manager.list": {"jobs": rows}, "job-manager.lookup": {"jobspec": SPEC.to_json()},
        "resource.sched-status": {"all": R},
    }  # fmt: skip
    done = cli("sim", "export", "-o", str(tmp_path / "a.jsonl"), answers=answers)
    assert done.err.splitlines()[-1].startswith(
        "fluxsched: sim export: 2 jobs had targets that this instance does not have: give `sim run` their machine"
    )


def test_the_command_says_that_a_record_names_no_machine(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record([(row, SPEC.to_json()) for row in ROWS], 0.0, 2000.0, None, {}, [], [], 0)
    monkeypatch.setattr(studies, "_record", lambda *given, is_run: record)
    done = cli("sim", "export", "--statedir", str(tmp_path), "-o", str(tmp_path / "a.jsonl"))
    assert done.err.splitlines()[-1] == (
        "fluxsched: sim export: the record does not name its machine, as older versions did not: give `sim run` the "
        "machine with --R or --config"
    )

"""`what-if` at the terminal: what is refused before a record is read, and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxsched.cli import studies
from fluxsched.cli.studies import MORE_DIGITS_MAX
from fluxsched.core.resources import ResourceSet
from fluxsched.instance.record import Record
from tests.cli.conftest import Cli
from tests.sim.test_export import ROWS, SPEC, R


@pytest.mark.parametrize("command", [["what-if"], ["sim", "export"]])
def test_one_instance_is_named(cli: Cli, tmp_path: Path, command: list[str]) -> None:
    done = cli(*command, "--statedir", str(tmp_path), "--uri", "ipc:///none")
    assert done.code == 2
    assert "give either --statedir or --uri: both name an instance" in done.err


@pytest.mark.parametrize("text", ["+1" + "0" * MORE_DIGITS_MAX, "+12345678901", "-3", "+0", "+"])
def test_a_number_of_targets_is_whole_or_refused(cli: Cli, tmp_path: Path, text: str) -> None:
    done = cli("what-if", "--statedir", str(tmp_path), "--nodes", text)
    assert done.code == 2
    assert "is not a number of targets to add, such as +16, of at most 9 digits" in done.err


def test_a_fault_of_the_record_is_no_wrong_usage(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [(row, SPEC.to_json()) for row in ROWS]
    record = Record(jobs, 0.0, 2000.0, ResourceSet.parse(R), {}, [["/none/x.py", []]], [], 0)
    monkeypatch.setattr(studies, "_record", lambda *given, is_run: record)
    done = cli("what-if", "--statedir", str(tmp_path))
    assert (done.code, "/none/x.py" in done.err, "Usage" in done.err) == (1, True, False)

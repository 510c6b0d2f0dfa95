"""The environment of a job: rules as Flux has them, and what cannot be sent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fluxsched.cli import jobspec_options
from fluxsched.cli.jobspec_options import NAMES_SHOWN_MAX, RULE_FILES_MAX, edited_environment
from fluxsched.errors import InvalidValue, LimitExceeded

BASE = {"HOME": "/h", "PATH": "/p", "PATH_X": "x"}
LATIN = os.fsdecode(b"caf\xe9")


@pytest.mark.parametrize(
    ("rules", "want"),
    [
        ([], BASE),
        (["-PATH*", "Z=1=2", "E="], {"HOME": "/h", "Z": "1=2", "E": ""}),
        (["-*", "PATH*"], {"PATH": "/p", "PATH_X": "x"}),
        (["-/.*/", "A=1"], {"A": "1"}),
        (["-/PATH/"], {"HOME": "/h"}),
        (["-/PATH$"], {"HOME": "/h", "PATH_X": "x"}),
        (["-*", "PATH=/bin", "PATH=$PATH:/usr/bin", "NOW=${HOME}!", "USD=$$5"],
         {"PATH": "/bin:/usr/bin", "NOW": "/h!", "USD": "$5"}),
        (["PATH=/mine", "PATH*"], {**BASE, "PATH": "/mine"}),
        (["NOSUCH", "/NO.SUCH/"], BASE),
    ],
)  # fmt: skip
def test_rules_apply_in_order_as_in_flux(rules: list[str], want: dict[str, str]) -> None:
    before = dict(BASE)
    assert edited_environment(BASE, rules) == want
    assert before == BASE


def test_rules_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("# all new\n-*\n\nPATH*\nFOO=bar\nBAR=${FOO}/baz\n")
    assert edited_environment(BASE, [f"^{tmp_path}/rules"]) == {
        "PATH": "/p", "PATH_X": "x", "FOO": "bar", "BAR": "bar/baz"
    }  # fmt: skip
    (tmp_path / "again").write_text(f"^{tmp_path}/again\n")
    with pytest.raises(LimitExceeded, match=f"more than {RULE_FILES_MAX} deep"):
        edited_environment(BASE, [f"^{tmp_path}/again"])
    (tmp_path / "latin").write_bytes(b"A=caf\xe9\n")
    with pytest.raises(InvalidValue, match="latin' is not UTF-8"):
        edited_environment(BASE, [f"^{tmp_path}/latin"])


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("A=$NOSUCH", "the variable NOSUCH is not set"),
        ("A=${x:-foo}", "\\$ must be followed"),
        ("A=$", "\\$ must be followed"),
        ("=1", "names no variable"),
        ("-/(/", "is not a regular expression"),
    ],
)
def test_a_wrong_rule_is_named(rule: str, text: str) -> None:
    with pytest.raises(InvalidValue, match=text):
        edited_environment(BASE, [rule])


def test_the_options_for_rules_keep_their_order(cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jobspec_options.os, "environ", BASE)
    (tmp_path / "rules").write_text("A=1\nB=2\n")
    for options, want in (
        (["--env-remove=*", f"--env-file={tmp_path}/rules", "--env=-A", "--env", "C=3"], {"B": "2", "C": "3"}),
        (["--env=-A", "--env-remove", "*", "--env=C=3", "--env-file", f"{tmp_path}/rules"],
         {"A": "1", "B": "2", "C": "3"}),
    ):  # fmt: skip
        done = cli("submit", "--dry-run", *options, "true", "--env-remove=*")
        assert json.loads(done.out)["attributes"]["system"]["environment"] == want


def test_what_is_not_utf8_is_left_out_with_a_warning(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobspec_options.os, "environ", {"KEPT": "ü", "LATIN": LATIN, LATIN: "1", "": "nameless"})
    done = cli("submit", "--dry-run", "--cc=1-2", "true")
    assert done.err == (
        "fluxsched: submit: omitted from the job's environment, because it is not UTF-8 text: LATIN, caf\\xe9, ''\n"
    )
    for line in done.out.splitlines():
        assert json.loads(line)["attributes"]["system"]["environment"].keys() == {"KEPT", "FLUX_JOB_CC"}
    done = cli("submit", "--dry-run", "--env=-*", "true")
    assert (done.code, done.err) == (0, ""), "what was removed is nobody's loss"
    many = {f"V{at}": LATIN for at in range(NAMES_SHOWN_MAX + 3)}
    monkeypatch.setattr(jobspec_options.os, "environ", many)
    assert cli("submit", "--dry-run", "true").err.endswith("V7 and 3 more\n")


def test_a_directory_that_no_job_can_be_told(cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    odd = tmp_path / LATIN
    odd.mkdir()
    monkeypatch.chdir(odd)
    done = cli("submit", "--dry-run", "true")
    assert (done.code, "caf\\xe9', where the job would run, is not UTF-8" in done.err) == (1, True)
    assert cli("submit", "--dry-run", "--cwd", str(tmp_path), "true").code == 0
    odd.rmdir()
    done = cli("submit", "--dry-run", "true")
    assert (done.code, "current directory has been removed" in done.err) == (1, True)
    assert cli("submit", "--dry-run", "--cwd=/", "true").code == 0


@pytest.mark.parametrize(
    ("text", "limit_s"),
    [("1", 60.0), ("0.5", 30.0), ("1s", 1.0), ("1m", 60.0), ("1.5h", 5400.0), ("2d", 172800.0), ("250ms", 0.25),
     ("0", 0.0), ("+2", 120.0)],
)  # fmt: skip
def test_a_bare_time_limit_is_minutes_as_in_flux(cli, text: str, limit_s: float) -> None:
    done = cli("submit", "--dry-run", "-t", text, "true")
    assert json.loads(done.out)["attributes"]["system"]["duration"] == limit_s

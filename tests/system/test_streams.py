"""Standard streams that are closed, full or without a reader, and signals that end `run`: no traceback, no lost job."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

PLAIN = ("jobs -a", "resource status --json", "policy list", "run --help")


def shell(site: Any, words: str, redirection: str) -> tuple[int, str]:
    """Status and stderr of `fluxsched WORDS REDIRECTION`."""
    done = subprocess.run(
        ["bash", "-c", f"fluxsched {words} {redirection}; exit ${{PIPESTATUS[0]}}"], cwd=site.directory,
        env=site.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", PLAIN)
@pytest.mark.parametrize(
    ("redirection", "status", "text"),
    [
        (">&-", 1, "cannot write the output: Bad file descriptor\n"),
        (">/dev/full", 1, "cannot write the output: No space left on device\n"),
        ("| true", 141, ""),
    ],
)
def test_a_stdout_that_takes_nothing_is_an_error_of_one_line(
    site: Any, words: str, redirection: str, status: int, text: str
) -> None:
    found, err = shell(site, words, redirection if redirection != "| true" else "| (exec <&-; sleep 0.02)")
    assert found == status or (found == 0 and status == 141), err  # it may have written before the reader left
    assert err.endswith(text), err
    assert len(err.splitlines()) == bool(text), err


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "2>&- >/dev/null <&-"])
def test_a_stderr_that_takes_nothing_changes_no_status(site: Any, redirection: str) -> None:
    assert shell(site, "run sh -c 'echo oh; exit 7'", redirection)[0] == 7
    assert shell(site, "job info nope", redirection)[0] == 2


def test_with_both_closed_the_descriptors_are_not_given_to_sockets(site: Any) -> None:
    assert shell(site, "run sh -c 'exit 3'", "<&- >&- 2>&-")[0] == 3
    status, _ = shell(site, "resource drain 3 fan", "<&- >&- 2>&-")
    assert (status, site("resource", "undrain", "3").status) == (0, 0)


def test_what_this_locale_cannot_say_is_printed_with_escapes(site: Any) -> None:
    jobid = site.submit("--job-name", "müsli⌘", "true")
    done = subprocess.run(
        ["fluxsched", "jobs", "-n", "-o", "{name}", jobid], env={**site.environment, "PYTHONIOENCODING": "latin-1"},
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"m\xfcsli\\u2318\n", b"")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_run_that_is_ended_cancels_its_job(site: Any, signum: int) -> None:
    with site.popen("run", "sh", "-c", "echo $FLUX_JOB_ID; exec sleep 100") as process:
        jobid = process.stdout.readline().strip()
        process.send_signal(signum)
        process.communicate(timeout=60)
    assert process.returncode == 128 + signum
    site("wait", jobid, status=128 + signal.SIGTERM)
    assert site.info(jobid)["exception"]["note"] == f"run was ended by {signal.Signals(signum).name}"


def test_run_whose_reader_leaves_cancels_its_job(site: Any) -> None:
    with site.popen("run", "sh", "-c", "echo $FLUX_JOB_ID; exec yes") as process:
        jobid = process.stdout.readline().strip()
        process.stdout.close()
        assert process.wait(20) == 141
    site("wait", jobid, status=128 + signal.SIGTERM)
    assert site.info(jobid)["exception"]["note"] == "the output of run is closed or full"


def test_attach_that_is_ended_leaves_the_job_alone(site: Any) -> None:
    jobid = site.running("sh", "-c", "echo up; exec sleep 100")
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        with site.popen("job", "attach", jobid) as process:
            assert process.stdout.readline() == "up\n"
            process.send_signal(signum)
            process.communicate(timeout=60)
    assert site.info(jobid)["state"] == "RUN"
    site("cancel", jobid)


def test_a_removed_variable_does_not_come_back_from_the_instance(site: Any) -> None:
    found = site("run", "--env=-HOME", "/bin/sh", "-c", "echo ${HOME-gone} ${PATH:+path}")
    assert found.out == "gone path\n"
    found = site("run", "--env=-*", "--env=ONLY=1", "/usr/bin/env")
    names = {line.partition("=")[0] for line in found.out.splitlines()}
    assert "ONLY" in names
    inherited = {name for name in site.environment if not name.startswith("FLUX")} - {"TMPDIR"}  # a job has its own
    assert not names & inherited


def test_words_of_the_system_that_are_not_utf8(site: Any, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(odd)
    environment = {**{os.fsencode(k): os.fsencode(v) for k, v in site.environment.items()}, b"LATIN": b"\xe9"}
    for words, status, text in (
        ([b"run", b"true"], 1, "is not UTF-8 text: give another --cwd DIR"),
        ([b"run", b"--cwd=/", b"true"], 0, "omitted from the job's environment, because it is not UTF-8 text: LATIN"),
        ([b"submit", b"--cwd=/", b"echo", b"\xe9"], 2, "'\\xe9' is not UTF-8 text"),
        ([b"resource", b"drain", b"0", b"\xe9"], 2, "'\\xe9' is not UTF-8 text"),
    ):
        done = subprocess.run(
            [b"fluxsched", *words], cwd=odd, env=environment, capture_output=True, timeout=60, check=False
        )
        assert (done.returncode, text in done.stderr.decode()) == (status, True), done
        assert b"Traceback" not in done.stderr


def test_addresses_and_directories_of_the_environment_that_are_not_utf8(site: Any, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(odd)
    environment = {os.fsencode(k): os.fsencode(v) for k, v in site.environment.items()}
    for name, value, words, text in (
        (b"FLUXSCHED_URI", b"ipc:///\xe9", ["jobs"], "FLUXSCHED_URI or --uri: 'ipc:///\\xe9' is not UTF-8 text"),
        (b"FLUXSCHED_URI", b"ipc:///\xe9", ["run", "true"], "FLUXSCHED_URI or --uri: 'ipc:///\\xe9' is not UTF-8 text"),
        (b"XDG_RUNTIME_DIR", odd, ["start", "--fake=1x1", "true"], "is not UTF-8 text: set XDG_RUNTIME_DIR"),
    ):
        found = subprocess.run(
            ["fluxsched", *words], env={**environment, name: value}, capture_output=True, timeout=60, check=False
        )
        assert (found.returncode, text in found.stderr.decode()) == (1, True), found
        assert b"Traceback" not in found.stderr

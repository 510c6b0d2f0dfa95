"""`fluxsched batch` and `alloc`: what they submit, and what they refuse; and `--parent`."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from fluxsched.cli.options import FILE_BYTES_MAX
from fluxsched.core.batch import SCRIPT_BYTES_MAX, parse_archive
from fluxsched.core.jobspec import Jobspec

SCRIPT = """#!/bin/sh
#flux: -N2 -n4 --job-name=mine --env=A=1
#flux: --env=B=2 -t 5m --setattr=user.x='''it's "x"'''
true
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.sh").write_text(SCRIPT)
    Path("plain.sh").write_text("#!/bin/sh\n")


def dry(cli: Any, *words: str, stdin: str | None = None) -> Jobspec:
    done = cli(words[0], "--dry-run", *words[1:], stdin=stdin)
    assert done.code == 0, done.err
    return Jobspec.parse(json.loads(done.out))


def test_batch_reads_directives_and_stores_the_script(cli: Any) -> None:
    jobspec = dry(cli, "batch", "job.sh", "a", "--b")
    assert jobspec.command == ("flux", "broker", "{{tmpdir}}/script", "a", "--b")
    assert (jobspec.request.nodes.min, jobspec.ntasks(4), jobspec.duration_s) == (2, 4, 300.0)
    assert (jobspec.job_name, jobspec.output, jobspec.input) == ("mine", "flux-{{id}}.out", os.devnull)
    assert jobspec.raw["attributes"]["user"]["x"] == 'it\'s "x"'
    assert (jobspec.environment["A"], jobspec.environment["B"]) == ("1", "2")
    [script] = parse_archive(jobspec.files)
    assert script.data.decode() == SCRIPT


def test_batch_options_that_are_typed_win(cli: Any) -> None:
    jobspec = dry(cli, "batch", "-N1", "--job-name=yours", "--env=A=3", "--output=none", "-t", "7", "job.sh")
    assert (jobspec.request.nodes.min, jobspec.job_name, jobspec.duration_s) == (1, "yours", 420.0)
    assert (jobspec.environment["A"], jobspec.environment["B"], jobspec.output) == ("3", "2", None)


def test_batch_of_nodes_alone_is_exclusive_as_in_flux(cli: Any) -> None:
    assert dry(cli, "batch", "-N2", "plain.sh").request.exclusive
    assert dry(cli, "batch", "-n2", "-c3", "-g1", "plain.sh").request.cores == 3
    assert dry(cli, "batch", "-n2", "plain.sh").job_name == "plain.sh"
    found = cli("batch", "plain.sh")
    assert found.code == 2
    assert "give the resources: -n SLOTS, or -N NODES" in found.err


@pytest.mark.parametrize(
    ("words", "stdin", "script", "name"),
    [
        (["--wrap", "echo", "a b"], None, "#!/bin/sh\necho 'a b'\n", "echo"),
        (["--wrap"], "#flux: --job-name=x\nhostname\n", "#!/bin/sh\n#flux: --job-name=x\nhostname\n", "x"),
        ([], "#!/bin/sh\nhostname\n", "#!/bin/sh\nhostname\n", "stdin"),
    ],
)
def test_batch_wrap_and_stdin(cli: Any, words: list[str], stdin: str | None, script: str, name: str) -> None:
    jobspec = dry(cli, "batch", "-n1", *words, stdin=stdin)
    assert parse_archive(jobspec.files)[0].data.decode() == script
    assert (jobspec.job_name, jobspec.command[2:]) == (name, ("{{tmpdir}}/script",))


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (b"#!/bin/sh\n#flux: -N2x\n", "bad.sh: line 2: Invalid value for '-N' / '--nodes'"),
        (b"#!/bin/sh\n\n#flux: --nosuch\n", "bad.sh: line 3: No such option"),
        (b"#!/bin/sh\n#flux: -J x\n", "bad.sh: line 2: No such option '-J': use --job-name."),
        (b"#!/bin/sh\n#flux: --partition=b\n", "bad.sh: line 2: No such option '--partition': use --queue."),
        (b"#!/bin/sh\n#flux: -n2 foo\n", "bad.sh: line 2: 'foo' is not an option"),
        (b"#!/bin/sh\n#flux: --help\n", "bad.sh: line 2: --help is only for the command line"),
        (b'#!/bin/sh\n#flux: "-n2\n', "bad.sh: line 2: quote"),
        (b"#!/bin/sh\n#flux: -n1\ntrue\n#flux: -n2\n", "bad.sh: line 4: 'flux:' after line 3"),
        (b"echo\n", "bad.sh does not begin with #!"),
        (b"#!/bin/sh\n\xff\n", "bad.sh is not a script: it is not UTF-8 text"),
        (b"\x7fELF\0\0", "bad.sh is a program, not a script: use --wrap bad.sh"),
        (b"#!" + b"x" * SCRIPT_BYTES_MAX, "bad.sh: a script of 1048577 bytes is above the limit of 1048576"),
    ],
)
def test_batch_refuses_a_wrong_script_with_its_line(cli: Any, script: bytes, error: str) -> None:
    Path("bad.sh").write_bytes(script)
    found = cli("batch", "-n1", "bad.sh")
    assert (found.code, found.calls) == (2, [])
    assert error in found.err


def test_batch_names_a_script_that_is_not_there(cli: Any) -> None:
    found = cli("batch", "-n1", "nosuch.sh")
    assert (found.code, found.err) == (1, "fluxsched: batch: nosuch.sh: No such file or directory\n")


def test_batch_conf_is_put_together_and_stored(cli: Any) -> None:
    Path("a.toml").write_text('[queues.debug]\n[resource]\nexclude = "0"\n')
    Path("b.json").write_text('{"queues": {"batch": {}}}')
    more = 'policy.jobspec.defaults.system.queue="debug"'
    words = ("--conf", "a.toml", "--conf", "b.json", "--conf", more, "--conf", "[resource]\nexclude = '1'\n")
    jobspec = dry(cli, "batch", "-n1", *words, "plain.sh")
    assert jobspec.command[2:] == ("-c{{tmpdir}}/conf.json", "{{tmpdir}}/script")
    assert json.loads(parse_archive(jobspec.files)[1].data) == {
        "queues": {"debug": {}, "batch": {}},
        "resource": {"exclude": "1"},
        "policy": {"jobspec": {"defaults": {"system": {"queue": "debug"}}}},
    }


@pytest.mark.parametrize(
    ("conf", "error"),
    [("nosuch", "'nosuch' is neither KEY=VALUE nor"), (".x=1", "'' is not a dotted key"), ("x\ny", "is not TOML")],
)
def test_batch_conf_that_is_none(cli: Any, conf: str, error: str) -> None:
    found = cli("batch", "-n1", "--conf", conf, "plain.sh")
    assert found.code == 1
    assert error.replace("'' is", "") in found.err


def test_batch_conf_is_read_up_to_a_limit(cli: Any) -> None:
    Path("big.toml").write_text("#" * (FILE_BYTES_MAX + 1))
    found = cli("batch", "-n1", "--conf", "big.toml", "plain.sh")
    said = f"fluxsched: batch: --conf: the file 'big.toml' is larger than {FILE_BYTES_MAX} bytes\n"
    assert (found.code, found.err) == (1, said)


def test_alloc_makes_an_instance_that_stays(cli: Any) -> None:
    assert dry(cli, "alloc", "-n2", "sh", "-c", "true").command == ("flux", "broker", "-Sbroker.rc2_none=1")
    assert dry(cli, "alloc", "-n2", "--bg").command == ("flux", "broker", "-Sbroker.rc2_none=1")
    assert dry(cli, "alloc", "-n2", "--bg", "make", "-j").command == ("flux", "broker", "make", "-j")


def test_alloc_whose_id_cannot_be_printed_leaves_no_job(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would know of it."""

    def full(text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fluxsched.cli.batch._await_address", lambda handle, jobid: "ipc:///x")
    monkeypatch.setattr("fluxsched.cli.batch.print_flushed", full)
    found = cli("alloc", "--bg", "-n1", answers={"job-manager.cancel": {}})
    assert (found.code, found.err) == (1, "fluxsched: alloc: No space left on device\n")
    note = "the output of alloc is closed or full"
    assert found.calls[-1] == ("job-manager.cancel", {"id": 1, "note": note})


def test_alloc_says_why_an_instance_did_not_come_up(cli: Any) -> None:
    answers = {
        "submit_many": [5],
        "job-manager.eventlog": [{"events": [{"name": "exception", "context": {}}, {"name": "clean"}]}],
        "job-manager.output": [{"stream": "stderr", "data": "no config\n"}],
        "job-manager.wait": {"id": 5, "success": False, "status": -1, "exception_type": "exec", "exception_note": "no"},
    }
    found = cli("alloc", "-n1", answers=answers)
    assert found.code == 1
    assert found.err == "no config\nfluxsched: alloc: ƒ6: the instance did not start: exception exec: no\n"


@pytest.mark.parametrize(
    "events",
    [
        [{"name": "alloc"}],
        [{"name": "memo", "context": {"note": "mine"}}],
        [{"name": "memo", "context": {"fluxsched_uri": "ipc:///x"}}, {"name": "finish"}],
    ],
)
def test_uri_of_a_job_that_is_no_running_instance(cli: Any, events: list[dict[str, Any]]) -> None:
    found = cli("uri", "5", answers={"job-manager.lookup": {"id": 5, "eventlog": events}})
    assert (found.code, found.out) == (1, "")
    assert "ƒ6 is not a running instance" in found.err


def test_parent_of_an_instance_that_is_in_no_other(cli: Any) -> None:
    found = cli("--parent", "jobs", answers={"instance.info": {"uri": "ipc:///x", "level": 0, "parent": None}})
    assert (found.code, found.err) == (1, "fluxsched: --parent: the instance ipc:///x has no enclosing instance\n")

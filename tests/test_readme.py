"""The README's tour is run for real, in one instance, and prints what the page says.

The first command of the tour starts the instance; all others run in one shell inside it, block by block. What differs
from run to run (job ids, times, process ids, names of users and hosts) is masked on both sides, blanks are squeezed,
and the lines of a block may come in any order, since tasks and a stream in the background write when they like.
"""

from __future__ import annotations

import getpass
import re
import shlex
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from fluxsched.cli.main import SECTIONS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "README.md").read_text()
COMMANDS = (ROOT / "rfc/commands.md").read_text()
PAGES = sorted(path for pattern in ("*.md", "*/*.md") for path in ROOT.glob(pattern))
MARK = "-- end of block --"

MASKS = (
    (r"ƒ\w+", "JOBID"),
    (r"\b[A-Z][a-z]{2}\d\d \d\d:\d\d\b", "DATE"),
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


def blocks(page: str) -> list[tuple[list[str], str]]:
    """Commands and output of each console block."""
    found = []
    for body in re.findall(r"^```console\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        lines = body.splitlines()
        commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        found.append((commands, "\n".join(line for line in lines if not line.startswith("$ "))))
    return found


def test_the_tour_prints_what_the_page_says(program: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    tour = blocks(PAGE)
    start = tour[0][0].pop(0)
    assert start.startswith("fluxsched start ")
    assert tour[-1][0].pop() == "exit"
    script = tmp_path / "tour.sh"
    script.write_text("".join("\n".join([*commands, f"echo '{MARK}'", ""]) for commands, _ in tour))
    status, text = program(*shlex.split(start), "--", "sh", str(script))
    assert status == 0, text
    printed = text.split(MARK)
    assert len(printed) == len(tour) + 1, text
    for (commands, expected), block in zip(tour, printed, strict=False):
        assert masked(block) == masked(expected), f"after {commands}:\n{block}"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("ƒSq5amd: completed", "ƒ2x: completed", True),
        ("a  R 0.4306s vm", "a R   1.2m vm", True),
        ("fake3 is down", "fake2 is down", False),
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

"""Programs of the site, which an administrator names in the configuration: words, time limit, and what they answer.

Law: a program is a list of words that are executed as they are. A text is divided into words as a shell would quote
them, and no shell sees it. Of what it prints no more than `OUTPUT_BYTES_MAX` is kept; the first line is for people.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final

from fluxsched.core.text import printable
from fluxsched.errors import InvalidValue, LimitExceeded

PROGRAM_WORDS_MAX = 256
"""Words of a program; what is longer belongs in a script."""
OUTPUT_BYTES_MAX: Final = 4096
"""Bytes of its output that are kept: the reason of a drain is one line of it."""
REASON_LINE_CHARS_MAX: Final = 200
"""Characters of its first line that are shown as a reason."""
PROGRAM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Directories in which a program is looked up, and which it has as PATH."""


@dataclass(frozen=True, slots=True)
class SiteProgram:
    """A program, its time limit, whether it runs on each host of a job or on the first one alone, and as which user."""

    words: tuple[str, ...]
    timeout_s: float
    is_per_host: bool = True
    is_users: bool = False
    """True if it runs as the user as whom the job's tasks run; else as the instance's."""

    @property
    def name(self) -> str:
        """Return the word by which it is called."""
        return self.words[0]


AT_START, WHILE_IDLE, AT_END = "start", "idle", "end"
WHEN: Final = (AT_START, WHILE_IDLE, AT_END)
"""When a host is checked: before it goes online, now and then while no job uses it, and after each job."""


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A program that says whether a host is good, the interval of its runs, and when it runs, some of WHEN."""

    program: SiteProgram
    interval_s: float
    when: frozenset[str] = frozenset(WHEN)


def parse_words(text: str) -> list[str]:
    """Return the words of a text that quotes them as for a shell. Raises InvalidValue, LimitExceeded."""
    try:
        words = shlex.split(text)
    except ValueError as fault:
        raise InvalidValue(f"{text[:80]!r} is no list of words: {fault}") from fault
    return check_words(words)


def check_words(words: list[str]) -> list[str]:
    """Return the words of a program. Raises InvalidValue if there is none, LimitExceeded if there are too many."""
    if not words or not words[0]:
        raise InvalidValue("names no program: give its path, and its arguments behind it")
    if len(words) > PROGRAM_WORDS_MAX:
        raise LimitExceeded(f"{len(words)} words are above the limit of {PROGRAM_WORDS_MAX}: write them into a script")
    if any("\0" in word for word in words):
        raise InvalidValue("a word of a program cannot have the character NUL")
    return words


def first_line(output: bytes) -> str:
    """Return the first line with text in what a program has printed; empty if there is none."""
    for line in output[:OUTPUT_BYTES_MAX].decode(errors="replace").splitlines():
        if text := printable(line.strip()):
            return text[:REASON_LINE_CHARS_MAX]
    return ""

"""Programs of the site in the configuration: what is taken, and what a start or `config check` refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxsched.config.reader import parse_config
from fluxsched.config.values import PROGRAM_TIMEOUT_MAX_S
from fluxsched.core.programs import (
    OUTPUT_BYTES_MAX,
    PROGRAM_WORDS_MAX,
    REASON_LINE_CHARS_MAX,
    SiteProgram,
    first_line,
    parse_words,
)
from fluxsched.errors import InvalidValue, LimitExceeded


@pytest.fixture
def name(tmp_path: Path) -> str:
    """Return the name of a file beside which there is a program, and another file."""
    (tmp_path / "check").write_text("#!/bin/sh\n")
    (tmp_path / "check").chmod(0o755)
    (tmp_path / "text").write_text("")
    return str(tmp_path / "site.toml")


def test_a_program_is_a_list_or_a_text_of_words(name: str) -> None:
    text = "[prolog]\nprogram = \"./check 'two words' x\"\n"
    text += "[epilog]\nprogram = ['true', '$HOME']\ntimeout = 5\nper = 'job'\nrun-as = 'user'\n"
    config = parse_config(text, name)
    assert config.prolog == SiteProgram((str(Path(name).parent / "check"), "two words", "x"), 60.0)
    assert config.epilog is not None
    assert config.epilog.words[0].endswith("/true")
    assert (config.epilog.words[1], config.epilog.timeout_s) == ("$HOME", 5.0)
    assert (config.epilog.is_per_host, config.epilog.is_users) == (False, True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "[prolog] names no program, such as"),
        ("program = ''", "[prolog] program: names no program: give its path"),
        ("program = []", "names no program"),
        ("program = './absent'", "there is no program"),
        ("program = 'no-such-program'", "in /usr/local/sbin"),
        ("program = './text'", "cannot be executed: name a program, and allow it (chmod +x)"),
        ("program = '/tmp'", "cannot be executed"),
        ('program = "check \'a"', "is no list of words: No closing quotation"),
        ("program = 'true'\ntimeout = 0", "timeout: 0 s is not within 0.1 s and 86400 s"),
        (f"program = 'true'\ntimeout = {PROGRAM_TIMEOUT_MAX_S + 1}", "timeout: 86401 s is not within"),
        ("program = 'true'\nper = 'rank'", "'rank' is not one of host, job"),
        ("program = 'true'\nrun-as = 'root'", "'root' is not one of owner, user"),
        ("program = 'true'\nuser = 'root'", "unknown key 'user'"),
    ],
)
def test_a_faulty_program_is_refused_with_value_limit_and_remedy(name: str, text: str, told: str) -> None:
    with pytest.raises(InvalidValue) as fault:
        parse_config(f"[prolog]\n{text}\n", name)
    assert told in str(fault.value)
    assert "site.toml:" in str(fault.value)


def test_a_health_check_has_an_interval_and_times_at_which_it_runs(name: str) -> None:
    config = parse_config("[health]\nprogram = './check'\nwhen = 'idle, end'\ninterval = '2m'\n", name)
    assert config.health is not None
    assert (config.health.interval_s, config.health.when) == (120.0, {"idle", "end"})
    with pytest.raises(InvalidValue, match=r"interval: 0 s is not within 0.1 s and 86400 s"):
        parse_config("[health]\nprogram = './check'\ninterval = 0\n", name)
    with pytest.raises(InvalidValue, match=r"when: .night. is not one of start, idle, end: name some of them"):
        parse_config("[health]\nprogram = './check'\nwhen = 'start,night'\n", name)


def test_words_are_limited() -> None:
    assert len(parse_words("a " * PROGRAM_WORDS_MAX)) == PROGRAM_WORDS_MAX
    with pytest.raises(LimitExceeded, match=f"{PROGRAM_WORDS_MAX + 1} words are above the limit"):
        parse_words("a " * (PROGRAM_WORDS_MAX + 1))
    with pytest.raises(InvalidValue, match="NUL"):
        parse_words("a 'b\0c'")


def test_the_first_line_with_text_is_shown_cut_and_printable() -> None:
    assert first_line(b"\n  \n disk 3\x1b is ill \nmore") == r"disk 3\x1b is ill"
    assert first_line(b"") == ""
    assert first_line(b"x" * 300) == "x" * REASON_LINE_CHARS_MAX
    assert first_line(b"\n" * OUTPUT_BYTES_MAX + b"late") == ""

"""`fluxsched top` before there is a screen: what it says when there can be none, and what its filter means."""

from __future__ import annotations

import io
from importlib import util
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from fluxsched.cli import top
from fluxsched.cli.main import main
from fluxsched.errors import InvalidValue


def test_without_textual_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "find_spec", lambda name: None if name == "textual" else util.find_spec(name))
    done = CliRunner().invoke(main, ["top"])
    assert done.exit_code == 1
    assert done.stderr == "fluxsched: top: needs Textual: pip install 'fluxsched[tui]'\n"


def test_without_a_terminal_it_names_what_prints() -> None:
    pytest.importorskip("textual")
    done = CliRunner().invoke(main, ["top"])
    assert done.exit_code == 1
    assert "needs a terminal" in done.stderr
    assert "fluxsched jobs --watch" in done.stderr


def test_what_is_drawn_on_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("textual")
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(top, "sys", SimpleNamespace(stdin=terminal, stdout=terminal, stderr=io.StringIO()))
    done = CliRunner().invoke(main, ["top"])
    assert done.exit_code == 1
    assert done.stderr == "fluxsched: top: draws on stderr, which is not a terminal: leave out `2>`\n"


ACTIVE = {"states": ["CLEANUP", "DEPEND", "NEW", "PRIORITY", "RUN", "SCHED"]}


@pytest.mark.parametrize(
    ("text", "constraint", "ids"),
    [
        ("", ACTIVE, ""),
        ("-q batch", {"and": [{"queue": ["batch"]}, ACTIVE]}, ""),
        ("-f failed", {"results": ["FAILED"]}, ""),
        ("-a", {"states": [*ACTIVE["states"][:2], "INACTIVE", *ACTIVE["states"][2:]]}, ""),
        ("--name 'sol*'", {"and": [{"or": [{"name": ["sol*"]}, {"name-pattern": ["sol*"]}]}, ACTIVE]}, ""),
        ("ƒ2 ƒ3", None, "1,2"),
    ],
)
def test_a_filter_has_the_options_of_jobs(text: str, constraint: Any, ids: str) -> None:
    found = top.parse_filter(text)
    assert found["ids"] == ids
    assert constraint is None or found["constraint"] == constraint


@pytest.mark.parametrize(
    "text", ["--colour", "-q", "'", "no-such-job", "-f nonsense", "--help", "-u nobody-of-that-name"]
)
def test_a_wrong_filter_is_refused_with_what_is_wrong(text: str) -> None:
    with pytest.raises(InvalidValue, match="filter"):
        top.parse_filter(text)

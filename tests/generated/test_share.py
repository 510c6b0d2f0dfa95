"""What the plain build leaves out is run by the compiled one."""

from __future__ import annotations

import re

import pytest

from tests.generated import share
from tests.source import ROOT


def test_the_compiled_build_has_every_test_of_which_the_plain_one_runs_a_part() -> None:
    (listed,) = re.findall(r"COMPILED_TESTS := ((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text())
    parts = tuple(word.removeprefix("tests/") for word in re.findall(r"[\w/.]+", listed))
    users = [
        path.relative_to(ROOT / "tests").as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        if "\nfrom tests.generated.share import" in path.read_text()
    ]
    assert len(users) > 1
    assert [path for path in users if not path.startswith(parts)] == []


def test_of_few_cases_one_is_tried_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "ALL", False)
    assert [share.examples(number) for number in (1, 8, 9, 200)] == [1, 1, 2, 25]
    assert list(share.first(range(9))) == [0, 1]
    monkeypatch.setattr(share, "ALL", True)
    assert list(share.first(range(9))) == [*range(9)]

"""Tests that the plain build leaves out are run by the compiled one, and those of `make test` by `make test-slow`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.conftest import OF_EACH_KIND, SLOW
from tests.generated import share
from tests.source import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
LISTED = re.findall(r"COMPILED_TESTS := ((?:.*\\\n)*.*)", MAKEFILE)
PARTS = tuple(word.removeprefix("tests/") for word in re.findall(r"[\w/.]+", *LISTED) if word != "tests/")


def test_the_compiled_build_has_every_test_of_which_the_plain_one_runs_a_part() -> None:
    users = [path for path, text in below_tests() if "\nfrom tests.generated.share import" in text]
    assert len(users) > 1
    assert [path for path in users if not path.startswith(PARTS)] == ["conftest.py"]


def test_continuous_integration_runs_what_make_test_leaves_out() -> None:
    assert re.findall(r"-m '(.*)'", MAKEFILE) == ["not namespaces and not slow", "not namespaces and slow"]
    runs = re.findall(r"^ *make test(?!-)(.*)", (ROOT / ".ci/run").read_text(), re.M)
    assert len(runs) == 2
    assert all(re.match(r" test-slow\b", others) for others in runs)
    assert [entry for entry in (*SLOW, *OF_EACH_KIND) if not (ROOT / "tests" / entry).exists()] == []


def test_a_property_that_the_compiled_build_does_not_try_says_how_many_examples_it_wants() -> None:
    properties = {path: text for path, text in below_tests() if "\n@given(" in text and not path.startswith(PARTS)}
    assert properties
    assert [path for path, text in properties.items() if text.count("max_examples=") < text.count("\n@given(")] == []


def below_tests() -> Iterator[tuple[str, str]]:
    """Each file's path and text."""
    for path in (ROOT / "tests").rglob("*.py"):
        yield path.relative_to(ROOT / "tests").as_posix(), path.read_text()


def test_of_few_cases_one_is_tried_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "ALL", False)
    assert [share.examples(number) for number in (1, 8, 9, 200)] == [1, 1, 2, 25]
    assert list(share.first(range(9))) == [0, 1]
    assert list(share.first(range(9), 4)) == [0, 1, 2]
    monkeypatch.setattr(share, "ALL", True)
    assert list(share.first(range(9))) == [*range(9)]

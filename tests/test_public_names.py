"""The public interface: what programs, policies and plugins of others may import, with the arguments it takes.

`public_names.txt` has it as it is. A change of it is shown there, and to users by rfc/changes-0.2.0.md: what goes, or
takes other arguments, is kept for one version first, with a DeprecationWarning.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fluxsched
import fluxsched.policy

from .golden import WRITES
from .source import ROOT

MODULES = ("fluxsched", "fluxsched.policy", "fluxsched.plugin", "fluxsched.sim")
RECORD = Path(__file__).with_name("public_names.txt")
INHERITED = {name for base in (object, BaseException, tuple, dict) for name in dir(base)}


def arguments(function: Any) -> str:
    """Return the names of its arguments, `=` after those that may be left out."""
    words = []
    for parameter in inspect.signature(function).parameters.values():
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words and not any("*" in word for word in words):
            words.append("*")
        words.append(f"{star}{parameter.name}{'' if parameter.default is parameter.empty else '='}")
    return f"({', '.join(words)})"


def described(name: str, value: Any) -> Iterator[str]:
    """Yield a line for a public name, and one for each public method of a class."""
    if not callable(value):
        yield name
        return
    yield f"{name}{arguments(value)}"
    if not inspect.isclass(value):
        return
    for method in sorted(set(dir(value)) - INHERITED):
        found = inspect.getattr_static(value, method)
        if not method.startswith("_"):
            has_arguments = inspect.isfunction(found) or isinstance(found, classmethod | staticmethod)
            yield f"    .{method}{arguments(getattr(value, method)) if has_arguments else ''}"


def interface() -> str:
    lines = []
    for module in map(importlib.import_module, MODULES):
        for name in sorted(module.__all__):
            lines += described(f"{module.__name__}.{name}", getattr(module, name))
    return "\n".join(lines) + "\n"


def untold(before: str, now: str, page: str) -> set[str]:
    """Return the names whose lines differ and that a page of changes does not have."""
    lines = set(before.splitlines()) ^ set(now.splitlines())
    names = {line.partition("(")[0].strip().rpartition(".")[2] for line in lines}
    return names - set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", page))))


def test_what_others_import_is_what_the_record_has() -> None:
    now = interface()
    if WRITES:
        page = (ROOT / f"rfc/changes-{fluxsched.__version__}.md").read_text()
        missing = untold(RECORD.read_text(), now, page)
        assert missing == set(), f"not written: the page of changes says nothing of {missing}"
        RECORD.write_text(now)
    assert now == RECORD.read_text(), (
        "a public name has changed: say so in rfc/changes-0.2.0.md, and have it written by FLUXSCHED_GOLDEN=write"
    )


@pytest.mark.parametrize(
    ("now", "page", "missing"),
    [
        ("m.f(a)\nm.C(x)\n    .go(y)\n", "", set()),
        ("m.f(a, b)\nm.C(x)\n    .go(y)\n", "`fun`, but of f nothing", {"f"}),
        ("m.f(a, b)\nm.C(x)\n    .go(y)\n", "`f` takes b", set()),
        ("m.f(a)\nm.C(x)\n", "`C` is better", {"go"}),
        ("m.f(a)\nm.C(x)\n    .go(y)\nm.NEW\n", "", {"NEW"}),
    ],
)
def test_a_change_is_recorded_only_once_it_is_told(now: str, page: str, missing: set[str]) -> None:
    assert untold("m.f(a)\nm.C(x)\n    .go(y)\n", now, page) == missing


def test_a_name_that_goes_is_there_for_one_version_with_a_warning() -> None:
    with pytest.warns(FutureWarning, match=r"fluxsched.policy.Waiting is named PendingJob now"):
        assert fluxsched.policy.Waiting is fluxsched.policy.PendingJob
    with pytest.raises(AttributeError, match="no attribute 'Waitin'"):
        _ = fluxsched.policy.Waitin


def test_the_changelog_begins_with_this_version_and_its_date() -> None:
    (heading,) = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[:1]
    assert re.fullmatch(rf"{re.escape(fluxsched.__version__)} \(\d{{4}}-\d\d-\d\d\)", heading)


def test_pages_and_examples_import_public_names_alone() -> None:
    paths = [*(ROOT / "rfc").rglob("*.md"), *(ROOT / "examples").glob("*.py"), ROOT / "README.md"]
    others = {
        f"{path.name}: {name}"
        for path in paths
        for name in re.findall(r"^(?:from|import) (fluxsched[\w.]*)", path.read_text(), re.MULTILINE)
        if name not in MODULES
    }
    # Dask's runner has names of Dask; the scheduler interface of YuniKorn for programs in Python is not promised yet
    assert others == {
        "workflows.md: fluxsched.client.dask",
        *(f"si.md: fluxsched.yunikorn.{name}" for name in ("in_process", "messages", "service")),
    }

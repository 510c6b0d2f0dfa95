"""For the commands `policy new` and `policy check`: a package from a template, and the conformance suite on a policy.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from string import Template

from fluxsched.errors import InvalidValue, Refused
from fluxsched.runtime.config.policies import check_files, check_policy
from fluxsched.sched.policy import Policy
from fluxsched.sched.registry import known_policies, make, parse_spec
from fluxsched.sim.conformance.suite import CASE_S, Finding, RuleVerdict, TimeLimit, examine, unclear
from fluxsched.sim.policy_guard import policy_faults

__all__ = ["CASE_S", "Finding", "RuleVerdict", "check", "check_name", "check_words", "new", "unclear"]

NAME_CHARS_MAX = 60
"""Names of policies stand in tables, file names and one-line specifications."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

TEMPLATE_FILES = (
    ("pyproject.toml.in", "pyproject.toml"),
    ("README.md.in", "README.md"),
    ("policy.py.in", "{module}.py"),
    ("test_policy.py.in", "test_{module}.py"),
)
"""The files of a new package, and what they are made of."""


def check_words(spec: str) -> None:
    """Raises InvalidValue for words that name no policy or file, and for options that one of ours does not have."""
    check_policy(spec)
    check_files(spec)


def check(
    spec: str,
    seed: int,
    stopwatch: Callable[[], float],
    time_limit: TimeLimit,
    began: Callable[[str, int], None] = lambda rule, seed: None,
) -> Iterator[RuleVerdict]:
    """The conformance suite on a policy, `NAME:key=value` or a file; `began` is called before each case, with rule and
    seed.

    Raises InvalidValue if it cannot be made.
    """
    return examine(_made(spec), seed, stopwatch, time_limit=time_limit, began=began)


def _made(spec: str) -> Policy:
    with policy_faults(spec, " while it was imported"):
        return make(*parse_spec(spec))


def new(name: str, directory: Path) -> list[Path]:
    """Writes a package with a working policy of this name; all of it, or nothing. Returns its files.

    Raises InvalidValue for a name that cannot be one, Refused for a directory that is there already.
    """
    check_name(name)
    module = f"fluxsched_{name.replace('-', '_')}"
    words = {"name": name, "module": module, "cls": "".join(part.capitalize() for part in name.split("-"))}
    if keyword.iskeyword(words["cls"]):
        words["cls"] += "Policy"
    source = files("fluxsched.sim") / "plugin_template"
    texts = {
        directory / made.format(module=module): Template((source / raw).read_text("utf-8")).substitute(words)
        for raw, made in TEMPLATE_FILES
    }
    try:
        directory.mkdir()
    except FileExistsError:
        raise Refused(f"{directory} already exists: give another --directory, or remove it") from None
    except FileNotFoundError:
        raise Refused(f"{directory.parent} is not a directory: create it first") from None
    try:
        for path, text in texts.items():
            path.write_text(text, "utf-8")
    except OSError:
        for path in texts:
            path.unlink(missing_ok=True)
        directory.rmdir()
        raise
    return list(texts)


def check_name(name: str) -> None:
    """Raises InvalidValue for what is no name of a policy, or one that is taken."""
    if len(name) > NAME_CHARS_MAX:
        raise InvalidValue(f"a policy's name has at most {NAME_CHARS_MAX} characters: this one has {len(name)}")
    if not _NAME.fullmatch(name):
        raise InvalidValue(
            f"{name!r} is not a valid policy name: use lower-case words with dashes, such as night-shift"
        )
    if name in known_policies():
        raise InvalidValue(f"policy {name!r} already exists: see fluxsched policy list")

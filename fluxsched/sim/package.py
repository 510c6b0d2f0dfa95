"""For the commands `policy new` and `plugin new`: a package from a template, complete or not at all."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Collection
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import NamedTuple

from fluxsched.errors import InvalidValue, Refused
from fluxsched.sched.registry import known_plugins, known_policies

NAME_CHARS_MAX = 60
"""Names of policies and plugins stand in tables, file names and one-line specifications."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class PackageKind(NamedTuple):
    """Kind of package to make: `what` it is called, the folder of its template, and the names that are taken."""

    what: str
    template: str
    taken: Callable[[], Collection[str]]

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """The files of a new package, and what they are made of."""
        return (
            ("pyproject.toml.in", "pyproject.toml"),
            ("README.md.in", "README.md"),
            (f"{self.what}.py.in", "{module}.py"),
            (f"test_{self.what}.py.in", "test_{module}.py"),
        )


POLICY = PackageKind("policy", "policy_template", known_policies)
PLUGIN = PackageKind("plugin", "plugin_template", known_plugins)


def make_package(kind: PackageKind, name: str, directory: Path) -> list[Path]:
    """Write a package with what works and has this name; all of it, or nothing. Returns its files.

    Raises InvalidValue for a name that cannot be one, Refused for a directory that is there already.
    """
    check_name(kind, name)
    module = f"fluxsched_{name.replace('-', '_')}"
    words = {"name": name, "module": module, "cls": "".join(part.capitalize() for part in name.split("-"))}
    if keyword.iskeyword(words["cls"]):
        words["cls"] += kind.what.capitalize()
    source = files("fluxsched.sim") / kind.template
    texts = {
        directory / made.format(module=module): Template((source / raw).read_text("utf-8")).substitute(words)
        for raw, made in kind.files
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


def check_name(kind: PackageKind, name: str) -> None:
    """Raise InvalidValue for what is no name of one, or is taken."""
    what = kind.what
    if len(name) > NAME_CHARS_MAX:
        raise InvalidValue(f"a {what}'s name has at most {NAME_CHARS_MAX} characters: this one has {len(name)}")
    if not _NAME.fullmatch(name):
        raise InvalidValue(
            f"{name!r} is not a valid {what} name: use lower-case words with dashes, such as night-shift"
        )
    if name in kind.taken():
        raise InvalidValue(f"{what} {name!r} already exists: see fluxsched {what} list")

"""All targets, by name."""

from __future__ import annotations

import importlib

from tests.fuzz.target import Target

NAMES = "texts", "objects", "files", "commands", "messages", "wire", "scheduler_interface", "services", "sizes"
MODULES = tuple(f"tests.fuzz.targets.{name}" for name in NAMES)


def by_module() -> dict[str, tuple[Target, ...]]:
    """The targets of each module."""
    return {module: importlib.import_module(module).TARGETS for module in MODULES}


def targets() -> list[Target]:
    """Every target."""
    return [target for some in by_module().values() for target in some]


def find(name: str) -> Target:
    """One target. Raises KeyError naming those that there are."""
    return find_in(module_of(name), name)


def module_of(name: str) -> str:
    """The module of a target. Raises KeyError naming those that there are."""
    for module, some in by_module().items():
        if name in (target.name for target in some):
            return module
    raise KeyError(f"no target {name!r}: there are {', '.join(target.name for target in targets())}")


def find_in(module: str, name: str) -> Target:
    """A target of a module; no other module is imported."""
    some: tuple[Target, ...] = importlib.import_module(module).TARGETS
    return next(target for target in some if target.name == name)

"""The pages of rfc/, and its scripts as modules: `generate` makes tables and schemas."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

RFC = Path(__file__).parents[2] / "rfc"


def script(name: str) -> ModuleType:
    """Return a script of rfc/ as a module."""
    spec = importlib.util.spec_from_file_location(f"rfc_{name}", RFC / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = script("generate")

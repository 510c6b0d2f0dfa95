"""The pages of rfc/, and its script that generates their tables and schemas, as a module."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

RFC = Path(__file__).parents[2] / "rfc"


def _generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rfc_generate", RFC / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = _generate()

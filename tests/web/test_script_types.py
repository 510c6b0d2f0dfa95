"""The page's script by TypeScript's checker: calls, properties and values that cannot be."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fluxsched.web.standalone import STATIC
from tests.source import ROOT

OLDEST = 5
"""Major version of TypeScript that knows all options."""
NEEDED = f"TypeScript's `tsc` {OLDEST} or newer: npm install --prefix .venv/typescript typescript"
PINNED = ROOT / ".venv/typescript/node_modules/.bin"
"""The one that .ci/run installs goes before any other."""
COMPILED_S = 300.0
TAKEN_FOR_GRANTED = Path(__file__).with_name("page.d.ts")
OPTIONS = (
    "--noEmit", "--allowJs", "--checkJs", "--target", "es2023", "--lib", "es2023,dom,dom.iterable",
    "--module", "esnext", "--moduleResolution", "bundler", "--types", "", "--strict", "false",
    "--noImplicitThis", "--strictBindCallApply", "--noUnusedLocals", "--noUnusedParameters",
)  # fmt: skip
"""Not `--strict`: the page's templates say which elements there are, and whether one is null."""


def said_by(tsc: str, *words: str) -> str:
    return subprocess.run([tsc, *words], check=False, stdout=subprocess.PIPE, text=True, timeout=COMPILED_S).stdout


def faults(*files: Path) -> str:
    """What the compiler says of modules and of those that they import."""
    tsc = shutil.which("tsc", path=f"{PINNED}{os.pathsep}{os.environ['PATH']}")
    version = "" if tsc is None else said_by(tsc, "--version")
    found = re.fullmatch(r"Version (\d+)\..*\n", version)
    if tsc is None or found is None or int(found[1]) < OLDEST:
        pytest.skip(f"the types of the script are not checked here: install {NEEDED}")
    return said_by(tsc, *OPTIONS, str(TAKEN_FOR_GRANTED), *map(str, files))


@pytest.mark.slow
def test_the_script_has_no_fault_of_type_and_one_would_be_found(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.js"
    wrong.write_text("export const half = (text = '') => text / 2;\n")
    (found,) = faults(*sorted(STATIC.rglob("*.js")), wrong).splitlines()
    assert "wrong.js(1,36): error TS2362: The left-hand side of an arithmetic operation" in found

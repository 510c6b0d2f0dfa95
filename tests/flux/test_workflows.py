"""Programs of rfc/workflows.md: ours, and those of other tools where Flux's Python bindings are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "rfc" / "workflows.md"
TOOLS_PYTHON = os.environ.get("FLUXSCHED_TOOLS_PYTHON", sys.executable)
"""An interpreter that has Flux's bindings and the tools."""
PRINTED = {"executorlib": "[0, 1, 4, 9]", "psij": "[1, 2]", "parsl": "[0, 1, 4, 9]"}


def blocks():
    return {
        re.search(r"(?:import|from) (\w+)", text)[1]: text
        for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    }


def run_inside(tmp_path, python, text):
    path = tmp_path / "program.py"
    path.write_text(text)
    inside = [sys.executable, "-m", "fluxsched", "run", python, str(path)]
    start = [sys.executable, "-m", "fluxsched", "start", "--fake", "1x4", "--", *inside]
    done = subprocess.run(start, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_executor_runs_calls_and_commands(tmp_path):
    squares, status = run_inside(tmp_path, sys.executable, blocks()["fluxsched"]).splitlines()
    assert squares == "[0, 1, 4, 9]"
    assert status.startswith("3 ƒ")


@pytest.mark.parametrize("tool", PRINTED)
def test_the_tool_runs_unchanged(tmp_path, tool):
    found = subprocess.run([TOOLS_PYTHON, "-c", f"import flux, {tool}"], capture_output=True, text=True)
    if found.returncode != 0:
        pytest.skip(f"{TOOLS_PYTHON}: {found.stderr.splitlines()[-1]}; FLUXSCHED_TOOLS_PYTHON names another one")
    assert PRINTED[tool] in run_inside(tmp_path, TOOLS_PYTHON, blocks()[tool])


def test_every_tool_on_the_page_is_tried():
    assert set(blocks()) == {"fluxsched", *PRINTED}

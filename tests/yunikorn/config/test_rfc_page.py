"""rfc/si-queues.md: its example is read, and every key, property, rule and limit is on it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

pytest.importorskip("yaml")

from fluxsched.yunikorn.config import queues
from fluxsched.yunikorn.config.faults import ConfigFaults, Section
from fluxsched.yunikorn.config.queues import RULES
from fluxsched.yunikorn.config.reader import read_config

PAGE = (Path(__file__).parents[3] / "rfc" / "si-queues.md").read_text()
(EXAMPLE,) = re.findall(r"<!-- configuration -->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
FOLDER = Path(queues.__file__).parent


def test_the_example_is_read() -> None:
    (found,) = read_config(EXAMPLE)
    assert [queue.name for queue in found.root.children] == ["batch", "tenants"]
    assert [str(rule) for rule in found.rules] == ["provided", "tag namespace"]


def test_every_key_is_on_the_page() -> None:
    faults = ConfigFaults()
    section = Section({}, (), faults)
    queues.read_queue(section, 1)
    keys = [*section.known, *queues.PROPERTIES, *RULES, "placementrules", "nodesortpolicy", "preemption"]
    assert [key for key in keys if f"`{key}`" not in PAGE] == []


def test_every_limit_is_on_the_page_with_its_value() -> None:
    limits = {
        name: getattr(importlib.import_module(f"fluxsched.yunikorn.config.{file.stem}"), name)
        for file in FOLDER.glob("*.py")
        for name in re.findall(r"^([A-Z_]+_MAX) =", file.read_text(), re.MULTILINE)
    }
    del limits["FAULTS_TOLD_MAX"], limits["FILTERED_NAME_CHARS_MAX"]
    for name, value in limits.items():
        (row,) = [line for line in PAGE.splitlines() if f"`{name}`" in line]
        assert f" {value:,}" in row, name

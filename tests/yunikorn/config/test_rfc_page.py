"""rfc/si-queues.md: its example is read, and every key, property, rule and limit is on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("yaml")

from fluxsched.yunikorn import config as queues
from fluxsched.yunikorn import placement, sections
from fluxsched.yunikorn.config import RULES, read_config
from fluxsched.yunikorn.sections import ConfigFaults, Section

PAGE = (Path(__file__).parents[3] / "rfc" / "si-queues.md").read_text()
(EXAMPLE,) = re.findall(r"<!-- configuration -->\n```yaml\n(.*?)```", PAGE, re.DOTALL)


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
        name: getattr(module, name)
        for module in (queues, sections, placement)
        for name in re.findall(r"^([A-Z_]+_MAX) =", Path(module.__file__).read_text(), re.MULTILINE)
    }
    del limits["FAULTS_TOLD_MAX"], limits["FILTERED_NAME_CHARS_MAX"], limits["USERS_KEPT_MAX"]
    for name, value in limits.items():
        (row,) = [line for line in PAGE.splitlines() if f"`{name}`" in line]
        assert f" {value:,}" in row, name

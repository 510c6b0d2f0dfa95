"""rfc/security.md: each of its claims names a test, and the tests that it names exist."""

from __future__ import annotations

import re

from .source import ROOT, Source

PAGE = (ROOT / "rfc/security.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_NOT_DEFENDED = "## What is not defended"


def test_the_named_tests_exist() -> None:
    named = NAMED.findall(PAGE)
    assert len(named) > 30
    missing = []
    for path, name in named:
        file = ROOT / path
        defined = {node.name for _, node in Source(path, file.read_text()).functions} if file.exists() else set()
        missing += [] if name in defined else [f"{path}::{name}"]
    assert missing == []


def test_each_claim_names_a_test() -> None:
    written = re.sub(r"<!-- generated: roles -->.*?<!-- end -->", "", PAGE, flags=re.DOTALL)
    claims, _, rest = written.partition(_NOT_DEFENDED)
    rows = [line for line in claims.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    assert [row for row in rows if not NAMED.search(row) and not row.endswith("| test |")] == []
    assert "\n- " in rest, "what is not defended is said, too"

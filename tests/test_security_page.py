"""rfc/security.md: each of its claims names a test, and the tests that it names exist."""

from __future__ import annotations

import re

from .source import ROOT

PAGE = (ROOT / "rfc/security.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_NOT_DEFENDED = "## What is not defended"


def test_the_named_tests_exist() -> None:
    named = NAMED.findall(PAGE)
    assert len(named) > 30
    missing = []
    for path, name in named:
        text = (ROOT / path).read_text() if (ROOT / path).exists() else ""
        missing += [] if re.search(rf"^ *(async )?def {name}\(", text, re.MULTILINE) else [f"{path}::{name}"]
    assert missing == []


def test_each_claim_names_a_test() -> None:
    written = re.sub(r"<!-- generated: roles -->.*?<!-- end -->", "", PAGE, flags=re.DOTALL)
    claims, _, rest = written.partition(_NOT_DEFENDED)
    rows = [line for line in claims.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    assert [row for row in rows if not NAMED.search(row) and not row.endswith("| test |")] == []
    assert "\n- " in rest, "what is not defended is said, too"

"""What is different between two configurations: every key, once, and whether it needs a restart."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from fluxsched.core.tomltext import toml_text
from fluxsched.runtime.config.changes import changes, in_force

OLD = """
resource.heartbeat = "2s"
resource.exclude = "0"
policy.limits.duration = "2h"
[queues.a]
[queues.b.policy]
limits.duration = "1h"
limits.job-size.max.nnodes = 4
[[scheduler]]
policy = "easy"
[exec]
kill-timeout = "5s"
"""


@pytest.mark.parametrize(
    ("words", "by", "changed", "restart"),
    [
        ('"2h"', '"1h"', [("policy.limits.duration", "2h", "1h")], []),
        ('"2s"', '"1s"', [], [("resource.heartbeat", "2s", "1s")]),
        ("[queues.a]", 'policy.unsatisfiable = "deny"\n[queues.a]', [], [("policy.unsatisfiable", None, "deny")]),
        ('"easy"', '"fifo"', [], [("scheduler", [{"policy": "easy"}], [{"policy": "fifo"}])]),
        ("[queues.a]", '[queues.a]\ngroup = "x"', [("queues.a.group", None, "x")], []),
        ("[queues.a]", '["queues"."c d"]', [('queues."c d"', None, {}), ("queues.a", {}, None)], []),
        ("limits.job-size.max.nnodes = 4", "", [("queues.b.policy.limits.job-size", {"max": {"nnodes": 4}}, None)], []),
        ('policy.limits.duration = "2h"', "", [("policy.limits", {"duration": "2h"}, None)], []),
        ('[exec]\nkill-timeout = "5s"', "[exec]", [], [("exec.kill-timeout", "5s", None)]),
        ('"2s"', '"2s" # as ever', [], []),
        ('policy = "easy"', 'policy = "easy"\n[future]\nkey = 1', [], [("future.key", None, 1)]),
    ],
)
def test_every_key_that_differs_is_named_once(words: str, by: str, changed: list[Any], restart: list[Any]) -> None:
    old, new = tomllib.loads(OLD), tomllib.loads(OLD.replace(words, by))
    found = changes(old, new)
    assert [one[:3] for one in found if one.is_live] == changed
    assert [one[:3] for one in found if not one.is_live] == restart
    merged = in_force(old, new)
    assert changes(merged, new) == [one for one in found if not one.is_live]  # these are told until the restart
    assert all(not one.is_live for one in changes(merged, new))


@pytest.mark.parametrize(
    "raw",
    [
        tomllib.loads(OLD),
        {},
        {"a": {"b c": {}, "d": [1, 2.5, True, "x\n\"\x7f\x01"]}, "t": [{"p": "q", "in": {"x": {}, "y": 1}}], "e": []},
        {"n": float("inf"), "x": {"y": {"z": {}}}},
    ],
)
def test_what_is_shown_is_read_back_as_the_same(raw: dict[str, Any]) -> None:
    assert tomllib.loads(toml_text(raw)) == raw
